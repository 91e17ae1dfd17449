"""Making ambiguous digits: what lies between handwritten digits of two to four classes.

The recipe is that of AmbiguousMNIST (Mukhoti, Kirsch, van Amersfoort, Torr, Gal: Deep Deterministic Uncertainty). A
variational autoencoder decodes convex combinations of latent codes of digits; an ensemble of LeNets looks at the result
and keeps the images about which its members agree that they are ambiguous. The ensemble's mean prediction is then the
distribution that the labels are drawn from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from repulse.errors import DataError, expected
from repulse.prediction import entropy, mean_log_probs, mutual_information
from repulse_lab.data.images import normalise
from repulse_lab.networks.lenet import LeNet

MEAN, STD = (0.1307,), (0.3081,)
"""Of the pixels of the MNIST training images."""

Network = TypeVar("Network", bound=nn.Module)

CLASSES = 10
DISAGREEMENT = 0.05
"""Largest mutual information, in nats, of an image that is kept."""

AMBIGUITY = (0.05, 3.0)
"""Entropies, in nats, of an image that is kept."""

STRATA = torch.linspace(0.05, 1.6, 51)
"""Edges of the bins of entropy from which images are drawn alike."""


@dataclass(frozen=True)
class Effort:
    """How much is spent on a build. The original spends 74 epochs and four million candidates.

    Attributes:
        images: how many are made from one pool of digits.
        candidates: how many are looked at for them.
        epochs: of the autoencoder.
        lenets: members of the ensemble.
        lenet_epochs: of each of them.
    """

    images: int = 6000
    candidates: int = 120_000
    epochs: int = 25
    lenets: int = 5
    lenet_epochs: int = 3


class Autoencoder(nn.Module):
    """A variational autoencoder of flat images: 784-512-256-32 and back."""

    def __init__(self, pixels: int = 784, latent: int = 32) -> None:
        super().__init__()
        self.encoder = _perceptron(pixels, 512, 256, 2 * latent)
        self.decoder = _perceptron(latent, 256, 512, pixels)

    def encode(self, images: Float[Tensor, "B D"]) -> tuple[Float[Tensor, "B Z"], Float[Tensor, "B Z"]]:
        """Return mean and log-variance of the code of each image."""
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        return mean, log_variance

    def decode(self, codes: Float[Tensor, "B Z"]) -> Float[Tensor, "B D"]:
        """Return pixels between 0 and 1."""
        return self.decoder(codes).sigmoid()

    def loss(self, images: Float[Tensor, "B D"], generator: torch.Generator) -> Float[Tensor, ""]:
        """Compute the negative evidence lower bound, the mean over images."""
        mean, log_variance = self.encode(images)
        noise = torch.randn(mean.shape, generator=generator)
        drawn = self.decoder(mean + noise * (0.5 * log_variance).exp())
        missed = F.binary_cross_entropy_with_logits(drawn, images, reduction="sum")
        divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum()
        return (missed + divergence) / len(images)


class Maker:
    """An autoencoder and an ensemble, trained on some digits, that make ambiguous ones of others.

    Args:
        images: digits to train on.
        labels: their classes.
        effort: how much to spend.
        generator: of everything that is random.
        progress: whether to show bars.
    """

    def __init__(
        self,
        images: UInt8[Tensor, "N 1 28 28"],
        labels: Int[Tensor, " N"],
        effort: Effort,
        generator: torch.Generator,
        progress: bool = False,
    ) -> None:
        self.effort, self.generator, self.progress = effort, generator, progress
        flat = images.flatten(1).float() / 255
        self.autoencoder = self._seeded(Autoencoder)
        self._train(self.autoencoder, lambda net, rows: net.loss(flat[rows], generator), len(flat), effort.epochs)
        self.lenets = [self._seeded(LeNet) for _ in range(effort.lenets)]
        seen = normalise(images, MEAN, STD)

        def missed(lenet: LeNet, rows: Tensor) -> Tensor:
            return F.cross_entropy(lenet(seen[rows]), labels[rows])

        for lenet in self.lenets:
            self._train(lenet, missed, len(seen), effort.lenet_epochs)
        with torch.no_grad():
            drawn = self.autoencoder.decode(self.autoencoder.encode(flat[:10_000])[0])
        # Decoded digits are paler than real ones: bring their pixels to the mean and deviation of real ones.
        self.scale = STD[0] / float(drawn.std())
        self.shift = MEAN[0] - self.scale * float(drawn.mean())

    @torch.no_grad()
    def make(
        self, images: UInt8[Tensor, "N 1 28 28"], labels: Int[Tensor, " N"]
    ) -> tuple[UInt8[Tensor, "M 1 28 28"], Float[Tensor, "M 10"]]:
        """Make ambiguous images between digits of a pool, with the ensemble's mean probabilities of them."""
        codes = self.autoencoder.encode(images.flatten(1).float() / 255)[0]
        kept, beliefs = [], []
        sizes = [len(part) for part in torch.arange(self.effort.candidates).split(2000)]
        for size in tqdm(sizes, desc="candidates", disable=not self.progress, leave=False):
            candidates = self.draw(mixtures(codes, labels, size, self.generator))
            log_probs = self.judge(candidates)
            good = ambiguous(log_probs)
            kept.append(candidates[good])
            beliefs.append(mean_log_probs(log_probs[:, good]))
        log_probs = torch.cat(beliefs)
        chosen = stratified(entropy(log_probs), self.effort.images, self.generator)
        return torch.cat(kept)[chosen], log_probs[chosen].exp()

    def draw(self, codes: Float[Tensor, "B Z"]) -> UInt8[Tensor, "B 1 28 28"]:
        """Decode images with the contrast of MNIST."""
        pixels = self.autoencoder.decode(codes) * self.scale + self.shift
        crisp = (1.2 * pixels - 0.15).clamp(0, 1)
        return (crisp * 255).round().to(torch.uint8).view(-1, 1, 28, 28)

    def judge(self, images: UInt8[Tensor, "B 1 28 28"]) -> Float[Tensor, "n B K"]:
        """Compute log-probabilities of each member of the ensemble."""
        inputs = normalise(images, MEAN, STD)
        return torch.stack([lenet(inputs).log_softmax(dim=-1) for lenet in self.lenets])

    def _seeded(self, kind: Callable[[], Network]) -> Network:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=self.generator)))
            return kind()

    def _train(self, network: Network, loss: Callable[[Network, Tensor], Tensor], rows: int, epochs: int) -> None:
        """Train by Adam, with a rate that rises and falls once over the few epochs there are."""
        batches, rate = -(-rows // 128), 2e-3
        optimizer = torch.optim.Adam(network.parameters(), lr=rate, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * batches)
        for _ in tqdm(range(epochs), desc=type(network).__name__, disable=not self.progress, leave=False):
            for batch in torch.randperm(rows, generator=self.generator).split(128):
                optimizer.zero_grad()
                loss(network, batch).backward()
                optimizer.step()
                schedule.step()
        network.eval().requires_grad_(False)


def barycentric(count: int, corners: Int[Tensor, " count"], generator: torch.Generator) -> Float[Tensor, "count 4"]:
    """Draw weights that sum to one, uniform over the simplex with the given number of corners (2 to 4).

    Cutting a stick at uniform places gives pieces that are distributed so.
    """
    cuts = torch.rand(count, 3, generator=generator)
    cuts[torch.arange(3) >= corners.unsqueeze(1) - 1] = 1.0  # fewer corners, fewer cuts
    ends = torch.cat([torch.zeros(count, 1), cuts.sort(dim=1).values, torch.ones(count, 1)], dim=1)
    return ends.diff(dim=1)


def mixtures(
    codes: Float[Tensor, "N Z"], labels: Int[Tensor, " N"], count: int, generator: torch.Generator
) -> Float[Tensor, "count Z"]:
    """Draw random convex combinations of codes of two, three or four different classes."""
    classes = torch.rand(count, CLASSES, generator=generator).argsort(dim=1)[:, :4]
    sizes = labels.bincount(minlength=CLASSES)
    if not bool(sizes.all()):
        raise DataError(expected("the digits", f"of all {CLASSES} classes", f"none of class {int(sizes.argmin())}"))
    within = (torch.rand(count, 4, generator=generator) * sizes[classes]).long().clamp(max=sizes[classes] - 1)
    chosen = labels.argsort(stable=True)[(sizes.cumsum(0) - sizes)[classes] + within]
    weights = barycentric(count, torch.randint(2, 5, (count,), generator=generator), generator)
    return (codes[chosen] * weights.unsqueeze(-1)).sum(dim=1)


def ambiguous(log_probs: Float[Tensor, "n B K"]) -> Bool[Tensor, " B"]:
    """Find images that members call ambiguous (total entropy) while agreeing with each other (mutual information)."""
    doubt = entropy(mean_log_probs(log_probs))
    return (mutual_information(log_probs) <= DISAGREEMENT) & (doubt >= AMBIGUITY[0]) & (doubt <= AMBIGUITY[1])


def stratified(values: Float[Tensor, " N"], count: int, generator: torch.Generator) -> Int[Tensor, " count"]:
    """Draw rows without replacement over the bins of `STRATA`: a bin of n values has weight n^0.2, its rows the same.

    A bin that has fewer than its share gives all it has; the other bins make up for it. The rows come shuffled.
    """
    order = torch.randperm(len(values), generator=generator)
    bins = torch.bucketize(values[order], STRATA, right=True) - 1  # -1 and 50 are outside
    sizes = bins[(bins >= 0) & (bins < len(STRATA) - 1)].bincount(minlength=len(STRATA) - 1)
    take = shares(sizes, count)
    chosen = torch.cat([order[bins == at][: int(some)] for at, some in enumerate(take)])
    return chosen[torch.randperm(count, generator=generator)]


def shares(sizes: Int[Tensor, " bins"], count: int) -> Int[Tensor, " bins"]:
    """Return how many to take from each bin: proportional to `sizes ** 0.2`, at most all of it, `count` in total."""
    if int(sizes.sum()) < count:
        wanted = f"enough for at least {count} ambiguous images"
        raise DataError(expected("the candidates", wanted, f"{int(sizes.sum())} of them"))
    weights = sizes.double() ** 0.2
    low, high = 0.0, float(sizes.max()) + 1  # of the factor between weight and share
    for _ in range(60):
        middle = (low + high) / 2
        enough = float(torch.minimum(weights * middle, sizes.double()).sum()) >= count
        low, high = (low, middle) if enough else (middle, high)
    exact = torch.minimum(weights * high, sizes.double())
    take = exact.floor().long()
    rest = torch.where(take < sizes, exact - take, -1.0).argsort(descending=True, stable=True)
    take[rest[: count - int(take.sum())]] += 1
    return take


def _perceptron(*widths: int) -> nn.Sequential:
    layers = [layer for pair in zip(widths, widths[1:], strict=False) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])
