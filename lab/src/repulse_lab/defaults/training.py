"""Train the networks of the problems from a seed, and keep them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repulse._tensors import read_tensors, write_tensors
from repulse.errors import CheckpointError
from repulse_lab.defaults.problem import Samples


@dataclass(frozen=True)
class Schedule:
    """How a network is trained: AdamW with a cosine decay.

    Attributes:
        steps: number of steps, at most.
        batch: samples per step.
        lr: learning rate at the start.
        weight_decay: of AdamW.
        patience: steps without a smaller loss on the validation samples after which training ends, and the best weights
            are taken; None trains to the end.
    """

    steps: int
    batch: int = 128
    lr: float = 1e-3
    weight_decay: float = 0.0
    patience: int | None = None


CHECK = 50
"""Steps between two looks at the validation samples."""


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute the cross-entropy of classes, or the mean squared error of numbers."""
    if targets.is_floating_point():
        return F.mse_loss(outputs.squeeze(-1), targets)
    return F.cross_entropy(outputs, targets)


def trained_network(
    build: Callable[[], nn.Module],
    train: Samples,
    schedule: Schedule,
    seed: int,
    path: Path,
    validation: Samples | None = None,
) -> nn.Module:
    """Return the network of this seed: read from `path` if it was trained on the same data and in the same way.

    Args:
        build: makes the network with random weights.
        train: samples with targets.
        schedule: how to train.
        seed: of the initial weights and of the order of the samples.
        path: safetensors file of the weights.
        validation: samples that decide when to stop, if `schedule.patience` is given.
    """
    assert train.targets is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build()
    stopping = validation.digest() if validation is not None and schedule.patience is not None else ""
    digest = f"{train.digest()}-{stopping}-{sorted(asdict(schedule).items())}-{seed}-{network}"
    with suppress(CheckpointError):  # not there, or damaged
        weights, about = read_tensors(path)
        if about.get("training") == digest:
            network.load_state_dict(weights)
            return network.eval()
    _train(network, train, schedule, seed, validation)
    write_tensors(path, network.state_dict(), {"training": digest})
    return network.eval()


def _train(network: nn.Module, train: Samples, schedule: Schedule, seed: int, validation: Samples | None) -> None:
    assert train.targets is not None
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=schedule.lr, weight_decay=schedule.weight_decay)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule.steps)
    best, best_at, weights = float("inf"), 0, None
    order = torch.empty(0, dtype=torch.long)
    network.train()
    for step in range(schedule.steps):
        if not len(order):
            order = torch.randperm(train.count, generator=generator)
        index, order = order[: schedule.batch], order[schedule.batch :]
        loss = loss_of(network(train.batch(index)), train.targets[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
        if schedule.patience is None or validation is None or (step + 1) % CHECK:
            continue
        now = _validation_loss(network, validation)
        if now < best:
            best, best_at, weights = now, step, copy.deepcopy(network.state_dict())
        elif step - best_at >= schedule.patience:
            break
    if weights is not None:
        network.load_state_dict(weights)


@torch.no_grad()
def _validation_loss(network: nn.Module, validation: Samples) -> float:
    network.eval()
    total = sum(float(loss_of(network(inputs), targets)) * len(targets) for inputs, targets in validation)
    network.train()
    return total / validation.count
