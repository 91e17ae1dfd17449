"""Train a network on images and their classes, so that a training that is killed goes on where it was."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from repulse.backbone.fingerprint import architecture_of, digest_of, weights_of
from repulse.errors import DataError, RecipeError, RepulseError, expected
from repulse_lab.data.images import normalise
from repulse_lab.networks import resume
from repulse_lab.networks.augment import augment
from repulse_lab.networks.schedule import SCHEDULES, Schedule

__all__ = ["SCHEDULES", "DivergedError", "Record", "Schedule", "train"]


class DivergedError(RepulseError, ArithmeticError):
    """The loss, or the weights, of a network in training became NaN or infinite."""


@dataclass(frozen=True)
class Record:
    """What one epoch of a training did.

    Attributes:
        epoch: its number, from 1.
        loss: mean cross-entropy of its batches, each before its step.
        accuracy: share of images that were right, before their step and as augmented.
        lr: learning rate of its last step.
        seconds: how long it took.
    """

    epoch: int
    loss: float
    accuracy: float
    lr: float
    seconds: float


def train(
    network: nn.Module,
    images: Tensor,
    targets: Tensor,
    schedule: Schedule,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    channels_last: bool | None = None,
    progress: bool = True,
) -> list[Record]:
    """Train a network in place, on the device it is on, and leave it in eval mode.

    The result depends on the network's weights, the data, the schedule and the seed, and on nothing else; the global
    random state is left as it was.

    Args:
        network: maps a batch to logits `(B, K)`.
        images: bytes `(N, C, H, W)`, which are normalised batch by batch, or floats of any shape, used as they are.
        targets: the class of each image.
        schedule: how to train; see `SCHEDULES`.
        mean: of each channel, in [0, 1], for bytes.
        std: likewise.
        seed: of order, augmentation and dropout.
        checkpoint: a folder in which the training is kept after every epoch. Called again with the same arguments and
            the network, or one equal to it at the start, it goes on to the very numbers of an undisturbed training.
        channels_last: whether to bring the network into this memory layout; None does where there are convolutions,
            which are mostly faster so.
        progress: show a bar.

    Returns:
        One record for each epoch, those before an interruption included.

    Raises:
        DataError: images and targets are not as described.
        CheckpointError: the folder holds another training, or cannot be used.
        DivergedError: the loss or the weights became NaN or infinite. The network is then as it was after the last
            epoch in which they were not, and so is the checkpoint.
    """
    _check(network, images, targets, schedule, mean, std, seed)
    folder = None if checkpoint is None else Path(checkpoint)
    about = {
        "schedule": asdict(schedule) | {"milestones": list(schedule.milestones)},
        "seed": seed,
        "normalisation": [list(mean or ()), list(std or ())],
        "network": architecture_of(network),
        "weights": weights_of(network),
        "data": "" if folder is None else digest_of(images, targets),
    }
    if channels_last or (channels_last is None and any(isinstance(part, nn.Conv2d) for part in network.modules())):
        network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    optimizer = schedule.make_optimizer(network.parameters())
    with resume.alone(folder):
        kept = None if folder is None else resume.bring_back(folder, about, network, optimizer)
        records = [Record(**record) for record in kept or []]
        loop = _Loop(network, optimizer, images, targets, schedule, mean, std, seed)
        steps = math.ceil(len(images) / schedule.batch_size)
        bar = tqdm(
            total=schedule.epochs * steps,
            initial=len(records) * steps,
            **{"unit": "batch", "delay": 2.0, "disable": not progress, "leave": False},
        )
        try:
            with bar:
                for epoch in range(len(records), schedule.epochs):
                    records.append(loop.run_epoch(epoch, bar))
                    if folder is not None:
                        resume.keep(folder, about, [asdict(record) for record in records], network, optimizer)
        finally:
            network.eval()
    return records


class _Loop:
    """A network, its data and all that is needed for an epoch."""

    def __init__(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        images: Tensor,
        targets: Tensor,
        schedule: Schedule,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
        seed: int,
    ) -> None:
        self.network, self.optimizer, self.schedule, self.seed = network, optimizer, schedule, seed
        self.images, self.targets = images.cpu(), targets.cpu().long()
        self.mean, self.std = tuple(mean or ()), tuple(std or ())
        self.device = next(network.parameters()).device
        self.highest = int(targets.max())

    def run_epoch(self, epoch: int, bar: tqdm) -> Record:
        """Run one pass over the data; whatever ends it early, the network goes back to where it was before."""
        before = {name: value.clone() for name, value in self.network.state_dict().items()}
        try:
            return self._epoch(epoch, bar)
        except BaseException:
            self.network.load_state_dict(before)
            raise

    def _epoch(self, epoch: int, bar: tqdm) -> Record:
        start = time.perf_counter()
        generator = torch.Generator().manual_seed(_seed(self.seed, epoch))
        batches = torch.randperm(len(self.images), generator=generator).split(self.schedule.batch_size)
        loss, right, rate = 0.0, 0, 0.0
        self.network.train()
        bar.set_description(f"epoch {epoch + 1}/{self.schedule.epochs}")
        with _own_randomness(_seed(self.seed, epoch), self.device):
            for i, batch in enumerate(batches):
                rate = self.schedule.rate(epoch + i / len(batches))
                value, correct = self._step(batch, rate, generator)
                if not math.isfinite(value):
                    raise _diverged("the loss", f"{value} in step {i + 1} of epoch {epoch + 1}")
                loss, right = loss + value * len(batch), right + correct
                bar.set_postfix(loss=f"{value:.3f}", refresh=False)
                bar.update()
        if not all(bool(value.isfinite().all()) for value in self.network.state_dict().values()):
            raise _diverged("the weights", f"NaN or infinite values after epoch {epoch + 1}")
        count = len(self.images)
        return Record(epoch + 1, loss / count, right / count, rate, time.perf_counter() - start)

    def _step(self, batch: Tensor, rate: float, generator: torch.Generator) -> tuple[float, int]:
        """Take one step of the optimiser; return the loss before it, and how many images were right."""
        x = self.images[batch]
        if x.ndim == 4:
            x = augment(x, self.schedule.crop, self.schedule.flip, generator)
        x = normalise(x, self.mean, self.std) if x.dtype == torch.uint8 else x
        target = self.targets[batch].to(self.device)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        logits = self.network(x.to(self.device))
        if logits.ndim != 2 or logits.shape[1] <= self.highest:
            got = f"shape {tuple(logits.shape)}"
            raise DataError(expected("network(images)", f"logits (B, K) with K above {self.highest}", got))
        loss = F.cross_entropy(logits, target)
        loss.backward()
        self.optimizer.step()
        return loss.item(), int((logits.argmax(dim=1) == target).sum())


def _diverged(what: str, got: str) -> DivergedError:
    return DivergedError(expected(what, "finite", f"{got}; a lower learning rate may help"))


def _seed(seed: int, epoch: int) -> int:
    """Return a seed for every epoch of every training."""
    return (seed * 1_000_003 + epoch) % 2**63


@contextmanager
def _own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Use a global random state of our own inside (dropout draws from it), and restore the caller's afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _check(
    network: object,
    images: Tensor,
    targets: Tensor,
    schedule: object,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    seed: int,
) -> None:
    """Refuse what cannot be trained on, in a sentence."""
    if not isinstance(network, nn.Module) or not any(True for _ in network.parameters()):
        raise DataError(expected("network", "a module with parameters", type(network).__name__))
    if not isinstance(schedule, Schedule):
        raise RecipeError(expected("schedule", "a `Schedule`, such as SCHEDULES['cifar']", type(schedule).__name__))
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise RecipeError(expected("seed", "an integer from 0 on", repr(seed)))
    if not isinstance(images, Tensor) or images.ndim < 2 or not len(images):
        got = f"shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise DataError(expected("images", "a tensor with at least one image", got))
    if images.dtype == torch.uint8:
        if images.ndim != 4 or mean is None or std is None or not len(mean) == len(std) == images.shape[1]:
            got = f"shape {tuple(images.shape)}, mean {mean} and std {std}"
            raise DataError(expected("images of bytes", "(N, C, H, W) with `mean` and `std` of each channel", got))
        if min(std) <= 0:
            raise DataError(expected("std", "above zero", std))
    elif not images.is_floating_point() or not bool(torch.isfinite(images).all()):
        got = f"{images.dtype}" if not images.is_floating_point() else "NaN or infinite values"
        raise DataError(expected("images", "bytes, or finite floats", got))
    elif mean is not None or std is not None:
        raise DataError(expected("mean and std", "left out for floats, which are used as they are", (mean, std)))
    if images.ndim != 4 and (schedule.crop or schedule.flip):
        got = f"shape {tuple(images.shape)}"
        raise DataError(expected("images", "(N, C, H, W) for a schedule that crops or flips", got))
    whole = isinstance(targets, Tensor) and not targets.is_floating_point() and targets.dtype != torch.bool
    if not whole or targets.shape != images.shape[:1] or int(targets.min()) < 0:
        got = f"{targets.dtype} of shape {tuple(targets.shape)}" if isinstance(targets, Tensor) else type(targets)
        raise DataError(expected("targets", f"{len(images)} classes from 0 on, one per image", got))
