"""A small network of every family, each a real model of its real library with random weights."""

from __future__ import annotations

import copy
import functools
import os

import pytest
import torch
from torch import nn

from models import CLASSES, images, normal, perceptron
from repulse.backbone import Ending
from torchvision_operators import define_missing

os.environ["HF_HUB_OFFLINE"] = "1"  # transformers is imported later, inside the tests

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
