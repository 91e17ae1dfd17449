"""`retrofit`: the user's model goes in, comes back unchanged, and knows what it does not know."""

from __future__ import annotations

import runpy
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import repulse
from repulse import Recipe, repulsion, retrofit
from repulse.backbone import split

QUICK = Recipe(epochs=3, heads=4, lr=1e-2, repulsion_samples=64)
pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(8, 5),
    )


@pytest.fixture
def loader() -> DataLoader:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(96, 3, 12, 12, generator=generator)
    return DataLoader(TensorDataset(images, torch.arange(96) % 5), batch_size=32)


def test_the_model_comes_back_as_it_was(network, loader):
    network.train()
    network[1].eval()  # a part frozen by its owner
    before = {name: value.clone() for name, value in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    ensemble = retrofit(network, loader, recipe=QUICK, progress=False)
    ensemble.predict(loader)
    assert ensemble.model is network
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert [module.training for module in network.modules()] == modes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    assert all(p.requires_grad and p.grad is None for p in network.parameters())


def test_the_last_layer_is_found_by_running_not_by_registration():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)  # registered first, runs last
            self.body = nn.Linear(6, 4)
            self.never = nn.Linear(3, 3)

        def forward(self, x):
            return self.head(self.body(x).relu())

    model = Odd()
    x = torch.randn(5, 6)
    backbone = split(model, x)
    assert backbone.ending.layers == ("head",)
    torch.testing.assert_close(nn.functional.linear(backbone(x), *backbone.weights), model(x))


def test_prediction_from_a_tensor_a_batch_and_a_loader_agree(network, loader):
    ensemble = retrofit(network, loader, recipe=QUICK, progress=False)
    images = loader.dataset.tensors[0]
    whole = ensemble.predict(images)
    torch.testing.assert_close(ensemble.predict(loader).log_probs, whole.log_probs)
    torch.testing.assert_close(ensemble.predict(next(iter(loader))).log_probs, whole.log_probs[:, :32])
    torch.testing.assert_close(ensemble(images).exp(), whole.probs)
    torch.testing.assert_close(ensemble(images).argmax(dim=1), whole.labels)


def test_a_list_of_inputs_is_a_loader_and_none_is_dropped(network, loader):
    ensemble = retrofit(network, loader, recipe=QUICK, progress=False)
    images = loader.dataset.tensors[0]
    assert len(ensemble.predict(list(images.split(40)))) == 96
    assert len(ensemble.predict([images])) == 96
    # Each head: a weight for each of 8 features and 7 distance columns, and a bias, for each of 5 classes.
    assert repr(ensemble).startswith("Ensemble(4 linear heads, 8 features -> Classification(classes=5); 320 parameters")


def test_threads_get_their_own_predictions(network, loader):
    """Four callers at once, while the network dawdles: each gets what it asked for."""
    ensemble = retrofit(network, loader, recipe=QUICK, progress=False)
    network[0].register_forward_hook(lambda *_: time.sleep(0.002))
    batches = [torch.rand(4, 3, 12, 12, generator=torch.Generator().manual_seed(i)) for i in range(24)]
    alone = [ensemble.predict(batch).log_probs for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda batch: ensemble.predict(batch).log_probs, batches))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_retrofit_works_whatever_the_mode(network, loader, mode):
    with mode():
        assert len(retrofit(network, loader, recipe=QUICK, progress=False).history) == 3


def test_gradients_flow_to_the_inputs(network, loader):
    ensemble = retrofit(network, loader, recipe=QUICK, progress=False)
    x = torch.rand(2, 3, 12, 12, requires_grad=True)
    ensemble(x).sum().backward()
    assert x.grad.abs().sum() > 0


def test_images_are_repelled_on_synthetic_ones_and_it_says_so(network, loader, capsys):
    ensemble = retrofit(network, loader, recipe=QUICK)
    assert "dead leaves" in capsys.readouterr().err
    assert "dead leaves, phase scramble" in ensemble.repulsion
    assert ensemble.recipe.space == "function"


def test_a_table_is_repelled_on_rows_that_never_were_and_it_says_so(capsys):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    batches = [(torch.randn(64, 4), torch.arange(64) % 2)]
    ensemble = retrofit(model, batches, recipe=QUICK)
    assert "half-shuffled rows, wide box" in ensemble.repulsion
    assert "because the inputs are a table" in capsys.readouterr().err
    assert ensemble.recipe.space == "function"


def test_inputs_of_no_known_kind_are_repelled_in_feature_space():
    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.last = nn.Linear(3, 8), nn.Linear(8, 2)

        def forward(self, nodes, links):
            return self.last(torch.bmm(links, self.body(nodes).relu()).mean(dim=1))

    torch.manual_seed(0)
    batches = [((torch.randn(32, 5, 3), torch.rand(32, 5, 5)), torch.arange(32) % 2)]
    ensemble = retrofit(Graph(), batches, recipe=QUICK, progress=False)
    assert "on 64 samples of Mixture([Shell(" in ensemble.repulsion


@pytest.mark.parametrize("samples", [7, 64, 1000])
def test_there_are_as_many_repulsion_samples_as_wanted(network, loader, samples):
    recipe = QUICK.replace(repulsion_samples=samples)
    ensemble = retrofit(network, loader, recipe=recipe, progress=False)
    assert ensemble.repulsion.startswith(f"on {samples:,} samples")


def test_a_source_that_the_model_cannot_take_is_refused_before_features_are_computed(network, loader):
    class Wide(repulsion.Source):
        takes_mappings = True

        def sample(self, batch, generator):
            return batch.new_ones(batch.shape, dtype=torch.int64)

    with pytest.raises(repulse.RepulsionError, match=r"samples of Wide.* to be inputs the model can take"):
        retrofit(network, loader, repulsion=Wide(), recipe=QUICK, progress=False)


@pytest.mark.parametrize(
    "where",
    [
        repulsion.TrainingData(),
        repulsion.PatchShuffle(4),
        repulsion.Mixture([repulsion.Noise(), repulsion.Mixup()]),
        [torch.rand(40, 3, 12, 12), torch.rand(40, 3, 12, 12)],
        torch.rand(50, 8),
    ],
    ids=["training data", "patches", "mixture", "loader", "features"],
)
def test_every_kind_of_repulsion_is_taken(network, loader, where):
    ensemble = retrofit(network, loader, repulsion=where, recipe=QUICK.replace(repulsion_samples=60), progress=False)
    assert ensemble.history[-1].force_ratio > 0
    assert ensemble.repulsion.startswith(("on 60 samples", "on 50 samples"))


def test_regression_networks(loader):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    batches = [(x[:128], x[:128, 0]), (x[128:], x[128:, 0])]
    box = repulsion.UniformBox(-6, 6)
    ensemble = retrofit(model, batches, repulsion=box, recipe=Recipe(task="regression", epochs=40), progress=False)
    p = ensemble.predict(x)
    assert p.mean.shape == p.std.shape == (256,)
    assert ensemble(x).shape == (256, 1)


def test_the_example_of_a_repulsive_deep_ensemble_runs(capsys):
    with torch.random.fork_rng():
        runpy.run_path(str(Path(__file__).parent.parent / "examples" / "repulsive_deep_ensemble.py"))
    near, far = (float(line.split("epistemic ")[1].split()[0]) for line in capsys.readouterr().out.splitlines())
    assert far > 10 * near


def test_the_public_surface_is_what_it_says():
    assert all(hasattr(repulse, name) for name in repulse.__all__)


@pytest.mark.data
def test_published_resnet20_on_cifar10(data_root, monkeypatch):
    """Accuracy of the published weights, and a better ranking of unseen natural images after retrofitting."""
    from repulse_lab.data import load
    from repulse_lab.data.images import normalise
    from repulse_lab.networks.resnet_cifar import MEAN, STD, load_published

    monkeypatch.setattr("repulse.particles.loop.MIN_STEPS", 500)
    network = load_published(data_root / "weights" / "resnet20-12fca82f.th")
    test, labels = (part[:1000] for part in load("cifar10", "test", data_root).labelled)
    inside = normalise(test, MEAN, STD)
    images, targets = load("cifar10", "train", data_root).labelled
    batches = [(normalise(images[i : i + 500], MEAN, STD), targets[i : i + 500]) for i in range(0, 2000, 500)]
    ensemble = retrofit(network, batches, recipe=Recipe(repulsion_samples=1000), progress=False)
    outside = normalise(load("tiny-imagenet", "evaluation", data_root).images[:500], MEAN, STD)
    with torch.no_grad():
        logits, foreign = (torch.cat([network(part) for part in x.split(250)]) for x in (inside, outside))
    accuracy = logits.argmax(dim=1).eq(labels).float().mean()
    assert float(accuracy) == pytest.approx(0.915, abs=1.5e-3)  # of the first 1,000; 91.73 % of all 10,000
    alone = repulse.metrics.auroc(*(repulse.functional.entropy(z.log_softmax(dim=-1)) for z in (logits, foreign)))
    prediction = ensemble.predict(inside.split(500), progress=False)
    epistemic = repulse.metrics.auroc(prediction.epistemic, ensemble.predict(outside).epistemic)
    assert epistemic > alone + 0.02
    assert repulse.metrics.accuracy(prediction, labels) > 0.912
