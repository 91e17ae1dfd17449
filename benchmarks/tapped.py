"""What `layers="auto"` taps on networks that people use, with random weights: the table in docs/networks.md.

    python benchmarks/tapped.py          # print the table
    python benchmarks/tapped.py --write  # put it into the page

Needs timm, transformers and efficientnet-lite-pytorch.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from repulse._operators import define_missing
from repulse.backbone import Backbone, split
from repulse_lab.networks.lenet import LeNet
from repulse_lab.networks.mlp import MLP
from repulse_lab.networks.resnet_cifar import ResNetCifar

PAGE = Path(__file__).parent.parent / "docs" / "networks.md"
HEAD = "| network | input | features | taps: columns | channels to a column | all columns |\n|" + " --- |" * 6
SIDE = 128
TIMM = {
    "resnet18": {},
    "resnet50": {},
    "efficientnet_b0": {},
    "convnext_tiny": {},
    "mobilenetv3_large_100": {},
    "densenet121": {},
    "regnety_008": {},
    "vit_tiny_patch16_224": {"img_size": SIDE},
    "swin_tiny_patch4_window7_224": {"img_size": SIDE},
}


def of_timm(name: str) -> nn.Module:
    define_missing()
    import timm

    return timm.create_model(name, num_classes=10, **TIMM[name])


def efficientnet_lite() -> nn.Module:
    from efficientnet_lite_pytorch import EfficientNet

    return EfficientNet.from_name("efficientnet-lite0")


def minilm() -> nn.Module:
    define_missing()
    import transformers

    config = transformers.BertConfig(
        vocab_size=100, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    return transformers.BertForSequenceClassification(config)


def vit() -> nn.Module:
    define_missing()
    import transformers

    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=SIDE))


def images(side: int = SIDE, channels: int = 3) -> torch.Tensor:
    return torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(0))


def texts() -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 90, (2, 9), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], str]] = {
    **{f"timm {name}": (lambda name=name: of_timm(name), images, f"{SIDE} px") for name in TIMM},
    "EfficientNet-Lite0": (efficientnet_lite, images, f"{SIDE} px"),
    "Hugging Face ViT, base": (vit, lambda: {"pixel_values": images()}, f"{SIDE} px"),
    "Hugging Face BERT, as MiniLM": (minilm, texts, "tokens, with a mask"),
    "ResNet-20 (CIFAR)": (ResNetCifar, lambda: images(32), "32 px"),
    "LeNet-5": (LeNet, lambda: images(28, 1), "28 px, grey"),
    "perceptron": (lambda: MLP(20, 3), lambda: images(2, 5).flatten(1), "20 columns"),
}


def tapped(name: str) -> Backbone:
    """Split a network with random weights."""
    build, batch, _ = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return split(build(), batch(), layers="auto")


def row(name: str, backbone: Backbone) -> str:
    """Return the row of the table."""
    taps = ", ".join(f"`{tap.name}`: {tap.columns}" for tap in backbone.taps)
    groups = " and ".join(map(str, sorted({tap.group for tap in backbone.taps})))
    columns = backbone.width - backbone.penultimate
    return f"| {name} | {NETWORKS[name][2]} | {backbone.penultimate:,} | {taps} | {groups} | {columns:,} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/networks.md")
    arguments = parser.parse_args()
    table = "\n".join([HEAD, *(row(name, tapped(name)) for name in NETWORKS)])
    print(table)
    if arguments.write:
        marks = "<!-- tapped -->\n", "<!-- end of tapped -->"
        text = re.sub(
            f"{marks[0]}.*?{marks[1]}", lambda _: f"{marks[0]}{table}\n{marks[1]}", PAGE.read_text(), flags=re.S
        )
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
