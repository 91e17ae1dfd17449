"""Networks of every family are split where they end, fitted with heads, and given back as they were.

Each family is a real model of its real library with random weights, only smaller. The closed form is the same for all:
the last layer's weights on the penultimate features are the network's logits.
"""

from __future__ import annotations

import copy
import functools
import os
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import repulse
from models import CLASSES, QUICK, Odd, images, normal, perceptron, rebuilt, same_state, state_of
from repulse import BackboneError, DataError, Recipe, retrofit
from repulse._modes import evaluating
from repulse.backbone import Ending, split
from torchvision_operators import define_missing

os.environ["HF_HUB_OFFLINE"] = "1"  # transformers is imported later, inside the tests
pytestmark = [
    pytest.mark.filterwarnings("ignore::repulse.FitWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.[a-z_]+` is deprecated:DeprecationWarning"),
]


# Families: a model, a batch of inputs, another batch, and the ending that should be found.


def of_images(model, *layers, pooling="none", size=32):
    return model, images(size), images(size, seed=1), Ending(layers, pooling)


def of_pixels(model, *layers, size=32):
    return model, {"pixel_values": images(size)}, {"pixel_values": images(size, seed=1)}, Ending(layers)


def of_text(model, *layers, pooling="none"):
    return model, sentences(), sentences(seed=1), Ending(layers, pooling)


def sentences(seed=0, length=9, count=10):
    """Token ids with padding at the end, of different length in each row."""
    ids = torch.randint(3, 90, (count, length), generator=torch.Generator().manual_seed(seed))
    mask = (torch.arange(length) < torch.arange(count).unsqueeze(1) % (length - 2) + 3).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def timm_model(name, **settings):
    define_missing()
    timm = pytest.importorskip("timm")
    return timm.create_model(name, num_classes=CLASSES, **settings)


def hugging_face(kind, config, **settings):
    define_missing()
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, kind)(getattr(transformers, config)(num_labels=CLASSES, **settings))


SMALL = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
TIMM_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 4}
TIMM_SWIN = {"img_size": 32, "embed_dim": 24, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 4, 8), "window_size": 4}
TIMM_RESNETV2 = {"layers": (1, 1, 1, 1), "channels": (16, 32, 48, 64), "stem_chs": 8}
TIMM_REPVIT = {"embed_dim": (8, 16, 24, 32), "depth": (1, 1, 1, 1)}
HF_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "layer_type": "basic"}
HF_SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4}


def of_vectors(model, *layers):
    return model, normal(10, 4), normal(10, 4, seed=1), Ending(layers)


FAMILIES = {
    "sequential": lambda: of_vectors(perceptron(), "2"),
    "timm resnet": lambda: of_images(timm_model("resnet18"), "fc"),
    "timm densenet": lambda: of_images(
        timm_model("densenet121", growth_rate=4, block_config=(2, 2, 2, 2)), "classifier"
    ),
    "timm efficientnet": lambda: of_images(timm_model("test_efficientnet"), "classifier"),
    "timm convnext": lambda: of_images(timm_model("test_convnext"), "head.fc"),
    "timm vit": lambda: of_images(timm_model("vit_tiny_patch16_224", **TIMM_VIT), "head"),
    "timm resnetv2": lambda: of_images(timm_model("resnetv2_50", **TIMM_RESNETV2), "head.fc"),
    "timm swin": lambda: of_images(timm_model("swin_tiny_patch4_window7_224", **TIMM_SWIN), "head.fc"),
    "timm mobilenetv3": lambda: of_images(timm_model("mobilenetv3_small_050"), "classifier"),
    "timm mobilevit": lambda: of_images(timm_model("mobilevit_xxs"), "head.fc", size=64),
    "timm deit": lambda: of_images(timm_model("deit_tiny_distilled_patch16_224", **TIMM_VIT), "head", "head_dist"),
    "timm levit": lambda: of_images(timm_model("levit_128s", img_size=64), "head.linear", "head_dist.linear", size=64),
    "timm repvit": lambda: of_images(timm_model("repvit_m0_9", **TIMM_REPVIT), "head.head.l", "head.head_dist.l"),
    "hf bert": lambda: of_text(
        hugging_face("BertForSequenceClassification", "BertConfig", vocab_size=100, **SMALL), "classifier"
    ),
    "hf distilbert": lambda: of_text(
        hugging_face(
            *("DistilBertForSequenceClassification", "DistilBertConfig"),
            **{"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
        ),
        "classifier",
    ),
    "hf gpt2": lambda: of_text(
        hugging_face(
            *("GPT2ForSequenceClassification", "GPT2Config"),
            **{"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4},
            **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        ),
        "score",
        pooling="one",
    ),
    "hf vit": lambda: of_pixels(
        hugging_face("ViTForImageClassification", "ViTConfig", image_size=32, patch_size=8, **SMALL), "classifier"
    ),
    "hf resnet": lambda: of_pixels(
        hugging_face("ResNetForImageClassification", "ResNetConfig", **HF_RESNET), "classifier.1"
    ),
    "hf swin": lambda: of_pixels(hugging_face("SwinForImageClassification", "SwinConfig", **HF_SWIN), "classifier"),
    "convolution, then pooling": lambda: of_images(
        nn.Sequential(
            *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5)),
            *(nn.Conv2d(8, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        ),
        *("4",),
        pooling="mean",
    ),
    "pooling, then convolution": lambda: of_images(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, CLASSES, 1)), "3"
    ),
    "length-one convolution": lambda: (
        nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Conv1d(8, CLASSES, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten()),
        normal(10, 3, 16),
        normal(10, 3, 16, seed=1),
        Ending(("2",), "mean"),
    ),
    "several inputs": lambda: (
        Several(),
        (normal(10, 4), normal(10, 2)),
        (normal(10, 4, seed=1), normal(10, 2, seed=1)),
        Ending(("head",)),
    ),
    "text with padding": lambda: (
        Reader(),
        sentences()["input_ids"],
        sentences(seed=1)["input_ids"],
        Ending(("head",)),
    ),
}


class Several(nn.Module):
    """Takes two inputs."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, CLASSES)
        self.left, self.right = nn.Linear(4, 8), nn.Linear(2, 8)

    def forward(self, left, right):
        return self.head(torch.tanh(self.left(left) * self.right(right)))


class Reader(nn.Module):
    """PyTorch's own transformer, told which tokens are padding; in eval mode its layers return nested tensors."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 16, padding_idx=0)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, ids):
        padding = ids == 0
        hidden = self.encoder(self.embedding(ids), src_key_padding_mask=padding)
        return self.head(hidden.masked_fill(padding.unsqueeze(2), 0).sum(dim=1) / (~padding).sum(dim=1, keepdim=True))


@functools.cache
def family(name):
    """One model of a family for all tests, which must all leave it as it is; training, with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, *rest = FAMILIES[name]()
        model.train()
        with torch.no_grad():
            for module in model.modules():  # statistics of no data would make some outputs vanish
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.running_mean.normal_(0, 0.1)
                    module.running_var.uniform_(0.5, 1.5)
                    module.weight.uniform_(0.5, 1.5)
            last = [p for name in rest[-1].layers for p in model.get_submodule(name).parameters()]
            for parameter in last:  # some start at almost zero
                parameter.normal_()
            spread = logits_of(model, rest[0]).std(dim=0).amax()
            for parameter in last:
                parameter.div_(spread)
        return model, *rest


@pytest.fixture(params=FAMILIES)
def member(request):
    return SimpleNamespace(**dict(zip(("model", "inputs", "others", "ending"), family(request.param), strict=True)))


@torch.no_grad()
def logits_of(model, inputs):
    """What the model itself says, in eval mode, by a copy so that nothing of it is changed."""
    model = copy.deepcopy(model).eval()
    if isinstance(inputs, dict):
        return model(**inputs).logits
    return (model(*inputs) if isinstance(inputs, tuple) else model(inputs)).flatten(start_dim=1)


def first(inputs, count):
    if isinstance(inputs, dict):
        return {name: value[:count] for name, value in inputs.items()}
    return tuple(value[:count] for value in inputs) if isinstance(inputs, tuple) else inputs[:count]


def test_the_last_layer_is_found_and_gives_the_networks_logits(member):
    before = state_of(member.model)
    backbone = split(member.model, member.inputs)
    assert backbone.ending == member.ending
    assert backbone.outputs == CLASSES
    for inputs in (member.inputs, member.others, first(member.others, 1)):
        torch.testing.assert_close(rebuilt(backbone, inputs), logits_of(member.model, inputs), rtol=1e-4, atol=1e-4)
    assert same_state(before, state_of(member.model))


def test_the_last_layer_can_be_named(member):
    if len(member.ending.layers) > 1:
        with pytest.raises(BackboneError, match="that of a linear layer, or its softmax"):  # one of two is not enough
            split(member.model, member.inputs, last_layer=member.ending.layers[0])
    else:
        assert split(member.model, member.inputs, last_layer=member.ending.layers[0]).ending == member.ending


def test_heads_that_start_at_the_last_layer_predict_as_the_network_does(member):
    """A fit without steps, of heads around the network's own: their mean is the network, up to the noise."""
    targets = torch.arange(10) % CLASSES
    mapping = isinstance(member.inputs, dict)
    batch = {**member.inputs, "labels": targets} if mapping else (member.inputs, targets)
    recipe = Recipe(init="pretrained", lr=1e-12, epochs=1, heads=400, batch_size=10)
    before = state_of(member.model)
    ensemble = retrofit(member.model, [batch], repulsion=None, recipe=recipe, progress=False)
    assert same_state(before, state_of(member.model))
    assert ensemble.backbone.width == ensemble.heads.features
    wanted = logits_of(member.model, member.inputs).log_softmax(dim=1)
    if isinstance(member.inputs, dict):
        found, predicted = ensemble(**member.inputs), ensemble.predict(batch)
    else:
        found = ensemble(*member.inputs) if isinstance(member.inputs, tuple) else ensemble(member.inputs)
        predicted = ensemble.predict([batch], progress=False)
    torch.testing.assert_close(predicted.probs, found.exp())
    varied = float((wanted - wanted.mean(dim=0)).abs().max())
    assert (found - wanted).abs().max() < 0.1 * varied
    assert (found - wanted.roll(1, dims=0)).abs().max() > 0.5 * varied  # it cannot be said of any logits


# What comes after the last layer.

AFTER = {"softmax": nn.Softmax(dim=1), "log_softmax": nn.LogSoftmax(dim=1), "sigmoid": nn.Sigmoid()}


@pytest.mark.parametrize("activation", AFTER)
def test_what_comes_after_the_last_layer_is_undone_and_it_says_so(activation, capsys):
    single = activation == "sigmoid"
    torch.manual_seed(0)
    model = perceptron(1 if single else CLASSES, AFTER[activation])
    x, y = normal(10, 4), torch.arange(10) % (2 if single else CLASSES)
    backbone = split(model, x)
    assert backbone.ending == Ending(("2",), "none", activation)
    torch.testing.assert_close(rebuilt(backbone, x), model[:3](x).detach())
    ensemble = retrofit(model, [(x, y)], repulsion=None, recipe=QUICK)
    said = capsys.readouterr().err
    assert f"heads take the place of `2`, followed by a {activation.replace('_', '-')}" in said
    assert ensemble.predict(x).probs.shape == (10, 2 if single else CLASSES)
    retrofit(model, [(x, y)], repulsion=None, recipe=QUICK, progress=False)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("shape", [(10,), (10, 1)], ids=["vector", "column"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("squeezed", [False, True], ids=["column out", "vector out"])
def test_a_single_logit_becomes_two_classes(shape, dtype, squeezed):
    torch.manual_seed(0)
    model = perceptron(1, *[nn.Flatten(0)] * squeezed)
    x = normal(10, 4)
    y = (torch.arange(10) % 2).to(dtype).view(shape)
    recipe = Recipe(init="pretrained", lr=1e-12, epochs=1, heads=400)
    ensemble = retrofit(model, [(x, y)], repulsion=None, recipe=recipe, progress=False)
    probs = ensemble.predict(x).probs
    assert probs.shape == (10, 2)
    odds = ensemble(x)
    assert odds.shape == model(x).shape
    torch.testing.assert_close(odds.view(10), probs[:, 1].log() - probs[:, 0].log())
    torch.testing.assert_close(odds, model(x).detach(), rtol=0.0, atol=0.05)


def test_a_single_logit_wants_zeros_and_ones():
    with pytest.raises(DataError, match=r"Expected `targets` to be 0 or 1 .+, but got values from 0 to 2\.$"):
        retrofit(perceptron(1), [(normal(9, 4), torch.arange(9) % 3)], repulsion=None, recipe=QUICK, progress=False)


def test_a_single_logit_learns_its_classes():
    x = normal(200, 4)
    y = (x[:, 0] > 0).float()
    torch.manual_seed(0)
    recipe = Recipe(epochs=100, lr=2e-2, layers="last")
    ensemble = retrofit(perceptron(1), [(x, y)], repulsion=None, recipe=recipe, progress=False)
    assert (ensemble(x).squeeze(1) > 0).eq(y > 0).float().mean() > 0.9


@pytest.mark.parametrize("how", ["tuple", "list", "dict", "object"])
def test_logits_may_come_with_other_outputs(how):
    class Talkative(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head, self.other = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 7)

        def forward(self, x):
            hidden = self.body(x).tanh()
            logits, other = self.head(hidden), self.other(hidden)
            forms = {"tuple": (logits, other), "list": [logits, other], "dict": {"other": other, "logits": logits}}
            return forms.get(how) or SimpleNamespace(other=other, logits=logits)

    model, x = Talkative(), normal(6, 4)
    backbone = split(model, x)
    assert backbone.ending == Ending(("head",))
    torch.testing.assert_close(rebuilt(backbone, x), model.head(model.body(x).tanh()).detach())


# Batches and inputs of all forms.


def test_a_mapping_gives_inputs_by_name_and_keeps_its_labels_from_the_model():
    bert, inputs, others, _ = family("hf bert")
    transformers = pytest.importorskip("transformers")
    seen = []
    hook = bert.register_forward_pre_hook(lambda _, args, named: seen.append((args, set(named))), with_kwargs=True)
    try:
        labels = torch.arange(10) % CLASSES
        batches = [transformers.BatchEncoding({**part, "labels": labels}) for part in (inputs, others)]
        ensemble = retrofit(bert, batches, repulsion=[others], recipe=QUICK, progress=False)
        whole = ensemble.predict(batches, progress=False)
        torch.testing.assert_close(ensemble.predict(transformers.BatchEncoding(inputs)).probs, whole[:10].probs)
        torch.testing.assert_close(ensemble.predict((others, labels)).probs, whole[10:].probs)
        torch.testing.assert_close(ensemble(**batches[0]).exp(), whole[:10].probs)
        torch.testing.assert_close(ensemble(inputs).exp(), whole[:10].probs)
    finally:
        hook.remove()
    assert seen
    assert all(call == ((), {"input_ids", "attention_mask"}) for call in seen)


@pytest.mark.parametrize("name", repulse.backbone.batches.TARGETS)
def test_targets_have_several_names(name):
    bert, inputs, _, _ = family("hf bert")
    labels = torch.arange(10) % CLASSES
    tuples, mappings = [(inputs, labels)], [{**inputs, name: labels}]
    one, other = (retrofit(bert, data, repulsion=None, recipe=QUICK, progress=False) for data in (tuples, mappings))
    assert torch.equal(one.heads.vectors(), other.heads.vectors())


def test_classes_are_named_by_whoever_knows_them():
    x, y = normal(10, 4), torch.arange(10) % 3
    names = {0: "ant", 1: "bee", 2: "cow"}

    def fitted(model, data=((x, y),), **more):
        return retrofit(model, list(data), repulsion=None, recipe=QUICK, progress=False, **more).class_names

    model = perceptron(3)
    assert fitted(model) is None
    assert fitted(model, class_names=["a", "b", "c"]) == ("a", "b", "c")
    model.config = SimpleNamespace(id2label=names)
    assert fitted(model) == ("ant", "bee", "cow")
    model.config = SimpleNamespace(id2label={i: f"LABEL_{i}" for i in range(3)})  # a default, which says nothing
    assert fitted(model) is None
    data = TensorDataset(x, y)
    data.classes = ["x", "y", "z"]
    loader = DataLoader(data, batch_size=5)
    ensemble = retrofit(perceptron(3), loader, repulsion=None, recipe=QUICK, progress=False)
    assert ensemble.class_names == ("x", "y", "z")


@pytest.fixture(scope="module")
def pair():
    """An ensemble on a network of two inputs, the inputs and their targets."""
    inputs, targets = (normal(10, 4), normal(10, 2)), torch.arange(10) % CLASSES
    torch.manual_seed(0)
    ensemble = retrofit(Several(), [(inputs, targets)], repulsion=[(inputs,)], recipe=QUICK, progress=False)
    return ensemble, inputs, targets


def test_several_inputs_are_several_arguments(pair):
    ensemble, (left, right), targets = pair
    probs = ensemble(left, right).exp()
    for question in (((left, right), targets), [((left, right), targets)], ((left, right),)):
        torch.testing.assert_close(ensemble.predict(question, progress=False).probs, probs)
    loader = DataLoader([((a, b), int(y)) for a, b, y in zip(left, right, targets, strict=True)], batch_size=4)
    torch.testing.assert_close(ensemble.predict(loader, progress=False).probs, probs)


def test_several_inputs_alone_are_predicted(pair):
    ensemble, inputs, _ = pair
    torch.testing.assert_close(ensemble.predict(inputs).probs, ensemble(*inputs).exp())


@pytest.mark.parametrize("form", ["several", "mapping"])
def test_a_batch_is_predicted_as_the_loader_gives_it(form):
    """A loader makes lists of what its data set gives in tuples."""
    inputs, targets = (normal(8, 4), normal(8, 2)), torch.arange(8) % CLASSES
    names = ("left", "right")
    rows = [(*row[:2], int(row[2])) for row in zip(*inputs, targets, strict=True)]
    samples = [((a, b) if form == "several" else dict(zip(names, (a, b), strict=True)), y) for a, b, y in rows]
    loader = DataLoader(samples, batch_size=8)
    ensemble = retrofit(Several(), loader, repulsion=None, recipe=QUICK, progress=False)
    torch.testing.assert_close(ensemble.predict(next(iter(loader))).probs, ensemble(*inputs).exp())


# Wrappers and number types.


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, lambda m: torch.compile(nn.DataParallel(m))])
def test_wrappers_are_taken_off(wrap):
    """Nothing is compiled: the network inside is run as it is."""
    model, x = Odd(), normal(6, 4)
    before = state_of(model)
    assert split(wrap(model), x).ending == Ending(("head",))
    data = [(x, torch.arange(6) % 3)]
    one, other = (
        retrofit(network, data, repulsion=None, recipe=QUICK, progress=False) for network in (wrap(model), model)
    )
    assert one.model is model
    assert torch.equal(one.heads.vectors(), other.heads.vectors())
    assert torch.equal(one(x), other(x))
    assert same_state(before, state_of(model))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_other_floats_will_do(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))
    model.to(dtype)
    x, y = images(12).to(dtype), torch.arange(10) % CLASSES
    backbone = split(model, x)
    assert backbone.ending == Ending(("4",))
    torch.testing.assert_close(rebuilt(backbone, x), model(x).detach())
    recipe = Recipe(init="pretrained", lr=1e-12, epochs=1, heads=400)
    ensemble = retrofit(model, [(x, y)], repulsion=repulse.repulsion.Noise(), recipe=recipe, progress=False)
    wanted = model(x).detach().float().log_softmax(dim=1)
    torch.testing.assert_close(ensemble.predict(x).probs.float(), wanted.exp(), rtol=0.0, atol=0.02)
    assert model[0].weight.dtype == dtype


# The model is evaluated, and given back.


def test_everything_runs_in_eval_mode():
    """Also when training mode would change the network itself, as batch norm does."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Dropout(0.5), nn.Linear(8, CLASSES)),
    )
    model.train()
    model[0].eval()
    modes = []
    model.register_forward_hook(lambda module, *_: modes.append([part.training for part in module.modules()]))
    before = state_of(model)
    x, y = images(12), torch.arange(10) % CLASSES
    ensemble = retrofit(model, [(x, y)], repulsion=[images(12, seed=2)], recipe=QUICK.replace(layers="auto"))
    passes = len(modes)
    torch.testing.assert_close(ensemble.predict(x).probs, ensemble(x).exp())
    assert passes >= 4
    assert len(modes) == passes + 2
    assert not any(any(mode) for mode in modes)
    assert same_state(before, state_of(model))


@pytest.mark.parametrize("where", ["split", "data", "repulsion", "predict"])
def test_an_error_in_the_middle_of_a_pass_leaves_the_model_as_it_was(where):
    """A pass that fails half-way, after some modules have run and others have not."""
    model = Odd().train()
    model.body.eval()
    good, bad, y = normal(6, 4), torch.full((6, 4), 1e3), torch.arange(6) % 3

    def fails(module, inputs):
        if wanted and inputs[0].sum() == lucky:
            raise RuntimeError("out of luck")

    wanted = True
    lucky = model.body(bad).tanh().sum()
    model.aux.register_forward_pre_hook(fails)
    before = state_of(model)
    batches = {"split": [(bad, y)], "data": [(good, y), (bad, y)]}.get(where, [(good, y)])

    def run():
        recipe = QUICK.replace(layers=("body",))
        repulsion = [bad] if where == "repulsion" else None
        retrofit(model, batches, repulsion=repulsion, recipe=recipe, progress=False).predict(bad)

    with pytest.raises(DataError, match=r"inputs the model can take.+ on which it fails: out of luck"):
        run()
    assert same_state(before, state_of(model))
    wanted = False
    run()


def test_an_interrupt_in_the_middle_of_a_pass_leaves_the_model_as_it_was():
    model = Odd().train()
    hook = model.aux.register_forward_pre_hook(lambda module, inputs: (_ for _ in ()).throw(KeyboardInterrupt))
    before = state_of(model)
    with pytest.raises(KeyboardInterrupt):
        split(model, normal(6, 4))
    assert same_state(before, state_of(model))
    hook.remove()


class MaskedMean(nn.Module):
    """Averages over tokens that are no padding, after its last layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, ids):
        mask = (ids > 0).float().unsqueeze(-1)
        return (self.fc(self.embed(ids)) * mask).sum(dim=1) / mask.sum(dim=1)


def test_a_pass_in_which_the_output_is_not_the_last_layers_is_refused():
    """Without padding its mean is a plain one; with padding it is not."""
    model = MaskedMean()
    ids = torch.randint(1, 20, (8, 5), generator=torch.Generator().manual_seed(0))
    backbone = split(model, ids)
    assert backbone.ending.pooling == "mean"
    backbone(ids)
    padded = torch.cat([ids, torch.zeros(8, 3, dtype=torch.int64)], dim=1)
    with pytest.raises(BackboneError, match="depends on more"):
        backbone(padded)


def test_modules_that_have_time_first_are_not_tapped():
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0)
            self.encoder = nn.TransformerEncoder(block, 4, enable_nested_tensor=False)
            self.fc = nn.Linear(16, 3)

        def forward(self, x):
            return self.fc(self.encoder(x.transpose(0, 1)).mean(dim=0))

    assert split(TimeFirst(), normal(8, 8, 16), layers="auto").taps == ()


def test_models_that_share_an_encoder_evaluate_at_once_and_get_their_modes_back():
    shared = nn.BatchNorm1d(4)
    one, two = nn.Sequential(shared, nn.Linear(4, 2)), nn.Sequential(shared, nn.Linear(4, 2))
    first, second = evaluating(one), evaluating(two)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not shared.training
    assert one[1].training
    second.__exit__(None, None, None)
    assert shared.training


def test_a_loader_of_single_inputs_gets_as_many_repulsion_samples_as_wanted():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    batches = [(images(8)[:1], torch.tensor([i % 2])) for i in range(12)]
    recipe = Recipe(epochs=1, repulsion_samples=30)
    ensemble = retrofit(model, batches, repulsion=repulse.repulsion.Swirl(), recipe=recipe, progress=False)
    assert "on 30 samples" in ensemble.repulsion


def test_a_list_of_batches_of_different_lengths_is_a_loader():
    model = MaskedMean()
    ids = [
        torch.randint(1, 20, shape, generator=torch.Generator().manual_seed(0)) for shape in ((8, 5), (8, 6), (3, 4))
    ]
    data = [(ids[0], torch.arange(8) % 3)]
    ensemble = retrofit(model, data, repulsion=None, recipe=Recipe(epochs=1), progress=False)
    assert len(ensemble.predict(ids)) == 19
