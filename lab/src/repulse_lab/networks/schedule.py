"""Training schedules: how long, how fast, with which optimiser and which changes to the images."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from repulse.errors import RecipeError, check_choice, check_number, check_positive_integer, expected

OPTIMIZERS = ("sgd", "adam")
POLICIES = ("steps", "onecycle")
RISE = 0.25
"""Share of a one-cycle schedule in which the learning rate rises."""


@dataclass(frozen=True)
class Schedule:
    """How a network is trained.

    Attributes:
        epochs: passes over the data.
        lr: learning rate; for "onecycle", the highest one.
        milestones: epochs from which on the learning rate is `factor` times what it was, for "steps".
        factor: see there.
        momentum: of "sgd".
        weight_decay: added to the gradient, times the weights.
        batch_size: images per step; the last batch of an epoch may be smaller.
        optimizer: "sgd" or "adam".
        policy: "steps", or "onecycle": a linear rise from a 25th of `lr`, then half a cosine down to zero.
        crop: pixels of black by which images are padded on each side before a random crop to their size.
        flip: mirror half of the images, drawn at random.
    """

    epochs: int
    lr: float
    milestones: tuple[int, ...] = ()
    factor: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch_size: int = 128
    optimizer: str = "sgd"
    policy: str = "steps"
    crop: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        check_positive_integer("epochs", self.epochs)
        check_positive_integer("batch_size", self.batch_size)
        for name in ("lr", "factor"):
            check_number(name, getattr(self, name), positive=True)
        for name in ("momentum", "weight_decay"):
            check_number(name, getattr(self, name), positive=False)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("policy", self.policy, POLICIES)
        if isinstance(self.crop, bool) or not isinstance(self.crop, int) or self.crop < 0:
            raise RecipeError(expected("crop", "a number of pixels, or 0", repr(self.crop)))
        object.__setattr__(self, "milestones", tuple(self.milestones))
        rising = all(a < b for a, b in zip((0, *self.milestones), (*self.milestones, self.epochs), strict=True))
        if self.milestones and not rising:
            wanted = f"rising epochs between 0 and {self.epochs}"
            raise RecipeError(expected("milestones", wanted, self.milestones))
        if self.milestones and self.policy != "steps":
            raise RecipeError(expected("milestones", "left out for a one-cycle schedule", self.milestones))

    def rate(self, epoch: float) -> float:
        """Return the learning rate after a number of epochs, which need not be whole.

        Examples:
            >>> [round(SCHEDULES["dirty-mnist"].rate(epoch), 4) for epoch in (0, 24.9, 25, 40)]
            [0.1, 0.1, 0.01, 0.001]
        """
        if self.policy == "steps":
            return self.lr * self.factor ** sum(epoch >= milestone for milestone in self.milestones)
        done = epoch / self.epochs
        if done < RISE:
            return self.lr * (1 + 24 * done / RISE) / 25
        return self.lr * (1 + math.cos(math.pi * (done - RISE) / (1 - RISE))) / 2

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a fresh optimiser, whose learning rate is still to be set."""
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, lr=self.lr, weight_decay=self.weight_decay)
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)


SCHEDULES = {
    "dirty-mnist": Schedule(epochs=50, lr=0.1, milestones=(25, 40)),
    "cifar": Schedule(epochs=300, lr=0.1, milestones=(150, 250), crop=4, flip=True),
    "cpu-lenet": Schedule(epochs=8, lr=0.1, policy="onecycle"),
    "cpu-resnet18": Schedule(epochs=8, lr=0.2, policy="onecycle", crop=4, flip=True),
    "cpu-dirty-mnist": Schedule(epochs=2, lr=0.1, policy="onecycle"),
    "cpu-cifar": Schedule(epochs=6, lr=0.2, policy="onecycle", crop=4, flip=True),
}
"""Those of the paper, "dirty-mnist" and "cifar", and short ones for a few CPU cores."""
