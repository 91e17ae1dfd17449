"""Give a pretrained network a last layer for other classes, trained on its penultimate features."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import nn

from repulse._tensors import kept_tensors, write_tensors
from repulse.backbone import split
from repulse_lab.defaults.features import features_of
from repulse_lab.defaults.problem import Samples
from repulse_lab.defaults.training import Schedule, trained_network


def train_last_layer(
    network: nn.Module, name: str, train: Samples, classes: int, schedule: Schedule, seed: int, keep: Path
) -> None:
    """Replace the last layer of a network, in place.

    Args:
        network: everything but its last layer stays as it is.
        name: of its last layer, a linear one.
        train: samples with targets.
        classes: number of outputs of the new layer.
        schedule: how it is trained.
        seed: of its initial weights and the order of the samples.
        keep: folder for the features of the training samples and for the layer.
    """
    path = keep / f"penultimate-{train.digest()}.safetensors"
    if (kept := kept_tensors(path)) is None:
        backbone = split(network, train.batch(torch.arange(8)), layers="last", last_layer=name)
        kept = {"features": features_of(backbone, train)}
        write_tensors(path, kept)
    features = kept["features"]
    build = partial(nn.Linear, features.shape[1], classes)
    layer = trained_network(build, Samples(features, train.targets), schedule, seed, keep / f"{seed}-0.safetensors")
    setattr(network, name, layer)
