"""A small perceptron for tables, trained with early stopping: what an estimator retrofits if it is given no network."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repulse.errors import check_number, check_positive_integer

BATCH = 128
PATIENCE = 20
"""Epochs without a better loss on held-out rows after which training ends."""


def train_perceptron(
    train: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor] | None,
    outputs: int,
    hidden: tuple[int, ...],
    *,
    epochs: int,
    lr: float,
    weight_decay: float,
    seed: int,
    labels: bool = False,
) -> nn.Sequential:
    """Train a perceptron by AdamW on rows `(N, d)` and their targets, which are classes (integers) or numbers.

    Numbers may be several labels, 0 or 1 each. With validation rows the weights are those of the epoch that did best on
    these.
    """
    inputs, targets = train
    for width in (epochs, *hidden):
        check_positive_integer("epochs and hidden", width)
    check_number("lr", lr, positive=True)
    check_number("weight_decay", weight_decay, positive=False)
    generator = torch.Generator().manual_seed(seed)
    network = perceptron(inputs.shape[1], hidden, outputs, generator).to(inputs.dtype)
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=weight_decay)
    best, kept, waited = math.inf, None, 0
    with torch.enable_grad():
        for epoch in range(epochs):
            for group in optimizer.param_groups:
                group["lr"] = lr * 0.5 * (1 + math.cos(math.pi * epoch / epochs))
            for rows in _batches(len(inputs), generator):
                optimizer.zero_grad(set_to_none=True)
                _loss(network(inputs[rows]), targets[rows], labels).backward()
                optimizer.step()
            if validation is None:
                continue
            with torch.no_grad():
                found = float(_loss(network(validation[0]), validation[1], labels))
            if found < best:
                best, waited = found, 0
                kept = {name: value.clone() for name, value in network.state_dict().items()}
            else:
                waited += 1
            if waited >= PATIENCE:
                break
    if kept is not None:
        network.load_state_dict(kept)
    return network.eval()


def perceptron(inputs: int, hidden: tuple[int, ...], outputs: int, generator: torch.Generator) -> nn.Sequential:
    """Make linear layers with ReLUs between them, initialised as `torch.nn.Linear` is, from a generator."""
    widths = (inputs, *hidden, outputs)
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:], strict=False):
        layer = nn.utils.skip_init(nn.Linear, before, after)
        for value in layer.parameters():
            nn.init.uniform_(value, -1 / math.sqrt(before), 1 / math.sqrt(before), generator=generator)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _batches(count: int, generator: torch.Generator) -> Iterator[Tensor]:
    yield from torch.randperm(count, generator=generator).split(BATCH)


def _loss(outputs: Tensor, targets: Tensor, labels: bool) -> Tensor:
    if targets.is_floating_point() and labels:
        return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))
    if targets.is_floating_point():
        return F.mse_loss(outputs.view_as(targets), targets.to(outputs.dtype))
    return F.cross_entropy(outputs, targets)
