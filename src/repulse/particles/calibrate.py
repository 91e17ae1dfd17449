"""Put fitted heads around the network, as data that nothing was fitted to prefers; assume what such data would show.

Classification chooses the share of the network and a temperature (`centre.py`), regression the noise, the tail and the
size of the disagreement (`noise.py`). Both need the release (`distance.py`), whose quantiles come from rows that the
whitening has not seen: validation rows, or training rows under whitenings of the others.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from repulse._mapped import row_chunks
from repulse.errors import FitWarning
from repulse.particles.centre import GAIN_WITHOUT_LABELS, Centre, choose_centre
from repulse.particles.centred import CentredHeads
from repulse.particles.distance import SMALLEST, DistanceColumns, Release
from repulse.particles.growth import ClassGaussians, Growth, measures_of
from repulse.particles.heads import Heads
from repulse.particles.noise import GAUSSIAN, USUAL_SHARE, Noise, choose_noise, leave_one_out
from repulse.particles.scaling import Scaling
from repulse.particles.tasks import Multiregression, Regression
from repulse.particles.view import View

FOLDS = 5
"""Parts of the training rows, each seen by the whitening of the others."""

ENOUGH = 1000
"""Validation rows that are enough to take quantiles from."""

ROWS_PER_COLUMN = 20
"""Training rows per feature from which on the whitening does not know its own rows by heart."""

MAX_REFERENCE = 20_000
"""Rows from which quantiles are taken, at most."""

HELD_OUT = 6
"""Without validation data, a regression keeps every sixth row from the fit, to see there how far heads disagree."""

NUMBER_ALPHAS = (0.75, 0.5, 0.25, 0.0)
"""Shares of the network in the centre of a regression that are tried besides the whole of it."""

Network = tuple[Tensor, Tensor]
"""Weight and bias of the network's last layer."""

Validation = tuple[Tensor, Tensor]
"""Features and targets that nothing was fitted to."""


@dataclass(frozen=True)
class Assumed:
    """What a regression takes for granted before heads are fitted.

    Attributes:
        noise: standard deviation of the residuals.
        residuals: of rows that nothing was fitted to, or what stands in for them.
        measured: whether they were measured on validation rows.
    """

    noise: float
    residuals: Float[Tensor, " M"]
    measured: bool


@dataclass(frozen=True)
class Unseen:
    """Rows that nothing was fitted to, as distances see them.

    Attributes:
        squares: their mean squares.
        measures: distances with which disagreement grows.
    """

    squares: Float[Tensor, "M c"]
    measures: Float[Tensor, "M m"]

    @classmethod
    def of(cls, distances: DistanceColumns, features: Tensor, gaussians: ClassGaussians | None = None) -> Unseen:
        """Compute the distances of rows."""
        coordinates = distances.coordinates(features)
        squares = coordinates.square() @ distances.averages
        return cls(squares, measures_of(squares.clamp_min(SMALLEST).log(), coordinates, gaussians))

    @classmethod
    def joined(cls, parts: Sequence[Unseen]) -> Unseen:
        """Return the rows of all parts."""
        return cls(torch.cat([part.squares for part in parts]), torch.cat([part.measures for part in parts]))


def gaussians_of(distances: DistanceColumns, features: Tensor, targets: Tensor, classes: int) -> ClassGaussians | None:
    """Compute the Gaussians of classes along the axes of all features."""
    axes = int(distances.ends[distances.bands - 1])

    def rows() -> Iterator[tuple[Tensor, Tensor]]:
        begin = 0
        for part in row_chunks(features):
            yield distances.coordinates(part)[:, :axes], targets[begin : begin + len(part)]
            begin += len(part)

    return ClassGaussians.of(rows(), classes)


def release_of(distances: DistanceColumns, features: Tensor, taps: int, validation: Validation | None) -> Release:
    """Compute the release from rows that the whitening has not seen."""
    return Release.of(unseen_rows(distances, features, taps, validation).squares)


def unseen_rows(
    distances: DistanceColumns,
    features: Tensor,
    taps: int,
    validation: Validation | None,
    gaussians: ClassGaussians | None = None,
    targets: Tensor | None = None,
) -> Unseen:
    """Return validation rows, and training rows under whitenings and Gaussians of the others if those are few."""
    rows = [] if validation is None else [Unseen.of(distances, part, gaussians) for part in row_chunks(validation[0])]
    if validation is None or len(validation[0]) < ENOUGH:
        rows += _cross_fitted(distances, features, taps, gaussians, targets)
    return Unseen.joined(rows)


def _cross_fitted(
    distances: DistanceColumns, features: Tensor, taps: int, gaussians: ClassGaussians | None, targets: Tensor | None
) -> list[Unseen]:
    """Return training rows, each under a whitening and Gaussians that have not seen it, unless there are plenty.

    Rows fewer than their columns lie mostly outside the axes of the others, where nothing is measured, and would look
    nearer than they are to a whitening that has seen them: no row counts as nearer than that.
    """
    samples, width = features.shape
    columns = width if gaussians is None else max(width, gaussians.means.numel())
    if samples >= ROWS_PER_COLUMN * columns:
        step = -(-samples // MAX_REFERENCE)
        return [Unseen.of(distances, part[::step], gaussians) for part in row_chunks(features)]
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(5)).to(features.device)
    parts = []
    for fold in range(min(FOLDS, samples)):
        seen = torch.ones(samples, dtype=torch.bool, device=features.device)
        seen[order[fold::FOLDS]] = False
        rest = features[seen]
        whitening = Scaling.of(rest, taps, 1.0, whiten=True).whitening
        assert whitening is not None
        found = DistanceColumns.of(whitening, rest, width - taps, distances.bands)
        own = None if targets is None else gaussians_of(found, rest, targets[seen], int(targets.max()) + 1)
        unseen = Unseen.of(found, features[~seen], own)
        known = Unseen.of(distances, features[~seen], gaussians)
        squares = torch.maximum(_aligned(unseen.squares, distances.columns), known.squares)
        parts.append(Unseen(squares, torch.maximum(unseen.measures, known.measures)))
    return parts


def _aligned(squares: Tensor, columns: int) -> Tensor:
    """Return as many columns as there should be: fewer rows may have fewer bands, whose last one then stands in."""
    if squares.shape[1] == columns:
        return squares
    return squares[:, [min(i, squares.shape[1] - 1) for i in range(columns)]]


@torch.no_grad()
def centre_classes(
    heads: Heads,
    view: View,
    release: Release,
    growth: Growth | None,
    network: Network | None,
    validation: Validation | None,
    earlier: Centre | None = None,
) -> CentredHeads:
    """Put the heads of a classifier around the network; without labels its own probabilities are kept."""
    assert view.distances is not None
    centre = Centre(1.0 if network is not None else 0.0, gain=GAIN_WITHOUT_LABELS)
    made = CentredHeads.around(heads, view.distances, release, network, centre, heads.task, growth)
    if validation is not None:
        _choose_centre(made, validation, earlier)
    return made


@torch.no_grad()
def recentre(heads: CentredHeads, validation: Validation) -> None:
    """Choose the centre of a classifier's heads again, in place, and the release if there are enough rows.

    The result is that of a fit with the same validation data and the same `tap_scale`. With fewer rows than quantiles
    need, the release stays as it is.
    """
    if len(validation[0]) >= ENOUGH:
        gaussians = heads.gaussians
        unseen = Unseen.joined([Unseen.of(heads.distances, part, gaussians) for part in row_chunks(validation[0])])
        release = Release.of(unseen.squares)
        heads.release_quantiles, heads.release_largest = release.quantiles, release.largest
        if heads.growth_usual.shape[1]:
            heads.growth_usual = Growth.of(unseen.measures).usual
    _choose_centre(heads, validation)


def _choose_centre(heads: CentredHeads, validation: Validation, earlier: Centre | None = None) -> None:
    features, targets = validation
    parts = [heads.uncentred(part) for part in row_chunks(features)]
    outputs, release = torch.cat([part[0] for part in parts], dim=1), torch.cat([part[2] for part in parts])
    logits = [part[1] for part in parts if part[1] is not None]
    network = torch.cat(logits) if logits else None
    heads.centre = choose_centre(network, outputs, release, targets, heads.task, earlier)


def assume_noise(
    features: Tensor,
    targets: Float[Tensor, " N"],
    network: Network,
    validation: Validation | None,
    inputs: Float[Tensor, "N e"] | None,
) -> Assumed:
    """Find how large residuals are on rows that nothing was fitted to.

    Without validation rows, those of a kernel regression on the inputs that has not seen a row stand in. If the network
    leaves much less on its training rows, it knows these by heart, and half of the noise that it has learnt comes back
    at new rows: `tau^2 = max(train MSE, LOO MSE + max(0, noise - train MSE) / 2)`.
    """
    if validation is not None:
        residuals = validation[1] - network_outputs(network, validation[0])[:, 0]
        return Assumed(_root_mean_square(residuals), residuals, measured=True)
    own = float((targets - network_outputs(network, features)[:, 0]).double().square().mean())
    rows = features if inputs is None else inputs
    residuals, noise = leave_one_out(rows.cpu(), targets.cpu())
    left = float(residuals.square().mean()) + 1e-30
    wanted = max(own, left + max(0.0, noise - own) / 2)
    if own < wanted / 2:
        warnings.warn(
            f"The network's error on its training rows is {math.sqrt(own):.3g}, but a regression that has not seen "
            f"them leaves {math.sqrt(wanted):.3g}: the network knows its training rows by heart, and they cannot show "
            "how much noise there is. The larger number was assumed. Pass `validation=`, rows that the network was not "
            "trained on, to measure it.",
            FitWarning,
            stacklevel=4,
        )
    return Assumed(math.sqrt(wanted), residuals * math.sqrt(wanted / left), measured=False)


def assume_noise_of(
    features: Tensor, targets: Tensor, network: Network, validation: Validation | None, inputs: Tensor | None
) -> list[Assumed]:
    """Return `assume_noise` of each target."""
    if targets.ndim == 1:
        return [assume_noise(features, targets, network, validation, inputs)]
    found = []
    for k in range(targets.shape[1]):
        layer = network[0][k : k + 1], network[1][k : k + 1]
        held_out = None if validation is None else (validation[0], validation[1][:, k])
        found.append(assume_noise(features, targets[:, k], layer, held_out, inputs))
    return found


@torch.no_grad()
def centre_numbers(
    heads: Heads,
    view: View,
    release: Release,
    network: Network,
    assumed: Sequence[Assumed],
    held_out: Validation,
) -> CentredHeads:
    """Put the heads of a regression around the network, with the noise and the tail that residuals show.

    Args:
        heads: fitted with the assumed noise as known.
        view: what they see.
        release: by how much disagreement grows.
        network: the last layer.
        assumed: for each target, residuals, and whether they are of `held_out`.
        held_out: rows that heads were not fitted to.
    """
    assert view.distances is not None
    made = CentredHeads.around(heads, view.distances, release, network, Centre(), heads.task)
    features, targets = held_out
    parts = [made.uncentred(part) for part in row_chunks(features)]
    means = torch.cat([part[0] for part in parts], dim=1).double()
    outputs = torch.cat([part[1] for part in parts]).double()  # pyright: ignore[reportCallIssue, reportArgumentType]
    grown, targets = torch.cat([part[2] for part in parts]).double(), targets.double().reshape(len(features), -1)
    chosen = [_choose_number(one, targets[:, k], outputs[:, k], means[..., k], grown) for k, one in enumerate(assumed)]
    alphas, noises = zip(*chosen, strict=True)
    if isinstance(made.task, Regression):
        made.centre = Centre(alphas[0], gain=noises[0].gain, cost=noises[0].cost)
        tail = min(noises[0].tail, GAUSSIAN)
        made.task = dataclasses.replace(made.task, noise=math.sqrt(noises[0].aleatoric), tail=tail)
    elif isinstance(made.task, Multiregression):
        made.centre = Centre(cost=sum(noise.cost for noise in noises))
        made.task = dataclasses.replace(
            made.task,
            noise=tuple(math.sqrt(noise.aleatoric) for noise in noises),
            tails=tuple(min(noise.tail, GAUSSIAN) for noise in noises),
            shares=alphas,
            gains=tuple(noise.gain for noise in noises),
        )
    return made


@torch.no_grad()
def centre_known_noise(made: CentredHeads, validation: Validation) -> CentredHeads:
    """Choose the share of the network in the centre of a regression whose noise is known."""
    parts = [made.uncentred(part) for part in row_chunks(validation[0])]
    means = torch.cat([part[0] for part in parts], dim=1).double().mean(dim=0)
    outputs = torch.cat([part[1] for part in parts]).double()  # pyright: ignore[reportCallIssue, reportArgumentType]
    targets = validation[1].double().reshape(len(outputs), -1)
    alphas = tuple(_better_centre(targets[:, k], outputs[:, k], means[:, k]) for k in range(targets.shape[1]))
    if isinstance(made.task, Regression):
        made.centre = Centre(alphas[0])
    elif isinstance(made.task, Multiregression):
        made.task = dataclasses.replace(made.task, shares=alphas)
    return made


def _choose_number(
    assumed: Assumed, targets: Tensor, network: Tensor, means: Float[Tensor, "n B"], grown: Float[Tensor, " B"]
) -> tuple[float, Noise]:
    """Choose the share of the network in the centre of one target, and its noise."""
    mean = means.mean(dim=0)
    disagreement = grown.square() * (means - mean).square().mean(dim=0)
    if not assumed.measured:
        typical = disagreement.median().expand(len(assumed.residuals))
        return 1.0, choose_noise(assumed.residuals, typical.cpu(), (USUAL_SHARE,))
    alpha = _better_centre(targets, network, mean)
    return alpha, choose_noise(targets - alpha * network - (1 - alpha) * mean, disagreement)


def _better_centre(targets: Tensor, network: Tensor, heads: Tensor) -> float:
    """Choose the share of the network in the centre of a regression by squared errors.

    The network stays alone unless another centre is better by more than one standard error of the difference: few rows
    cannot tell.
    """
    best, least = 1.0, 0.0
    squared = (targets - network).square()
    for share in NUMBER_ALPHAS:
        gain = squared - (targets - share * network - (1 - share) * heads).square()
        error = float(gain.std(correction=0)) / math.sqrt(len(gain))
        if float(gain.mean()) > max(error, least):
            best, least = share, float(gain.mean())
    return best


def network_outputs(network: Network, features: Tensor) -> Float[Tensor, "B o"]:
    """Return what the network's last layer makes of features, of which it sees the first ones."""
    weight, bias = (part.to(features.device, torch.float32) for part in network)
    parts = [torch.addmm(bias, part[:, : weight.shape[1]].float(), weight.T) for part in row_chunks(features)]
    return torch.cat(parts)


def _root_mean_square(values: Tensor) -> float:
    return math.sqrt(float(values.double().square().mean()) + 1e-30)
