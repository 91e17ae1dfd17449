"""Metrics of more positions than fit into memory: what a metric needs is counted, batch by batch.

Scores are counted in bins that have the sign, the exponent and eight bits of the mantissa of a float: in order, 0.4 %
wide, and the same for every score, so that areas under curves are those of exact scores to about 1e-4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from repulse.errors import DataError, check_positive_integer, expected
from repulse.metrics.calibration import calibration_error
from repulse.metrics.inputs import check_bins
from repulse.metrics.ranking import area, cumulated, false_at_95, precision
from repulse.prediction import PositionPrediction

KEPT_BITS = 15
"""Bits of a float that are not looked at."""

BINS = 2 ** (32 - KEPT_BITS)


class StreamingRanking:
    """How well scores separate two kinds of positions, from counts in bins.

    Examples:
        >>> ranking = StreamingRanking()
        >>> ranking.update(torch.tensor([0.0, 1.0, 1.0, 2.0]), torch.tensor([False, False, True, True]))
        >>> ranking.auroc
        0.875
    """

    def __init__(self) -> None:
        self.counts = torch.zeros(2, BINS, dtype=torch.int64)

    def update(self, scores: Tensor, outside: Tensor) -> None:
        """Count scores, larger for what is further out, of positions that are `outside` or not."""
        if scores.shape != outside.shape:
            raise DataError(expected("outside", f"of shape {tuple(scores.shape)}", f"{tuple(outside.shape)}"))
        if bool(torch.isnan(scores).any()):
            raise DataError(expected("scores", "free of NaN", f"{int(torch.isnan(scores).sum())} NaN"))
        index = score_bins(scores.detach().cpu().float().flatten())
        side = outside.cpu().flatten().bool()
        for i, chosen in enumerate((index[~side], index[side])):
            self.counts[i] += chosen.bincount(minlength=BINS)

    @property
    def auroc(self) -> float:
        """Probability that a position outside scores above one inside; ties count half."""
        return float(area(*self._cumulated()))

    @property
    def aupr(self) -> float:
        """Average precision of finding what is outside."""
        return float(precision(*self._cumulated()))

    @property
    def fpr95(self) -> float:
        """Share of positions inside above the largest threshold that finds 95 % of those outside."""
        return float(false_at_95(*self._cumulated()))

    def _cumulated(self) -> tuple[Tensor, Tensor]:
        if not bool((self.counts.sum(dim=1) > 0).all()):
            raise DataError(expected("scores", "of both kinds of positions", f"{self.counts.sum(dim=1).tolist()}"))
        inside, outside = (cumulated(counts.flip(0)) for counts in self.counts)
        return inside, outside


def score_bins(scores: Tensor) -> Tensor:
    """Return the bin of each float: larger numbers never come in lower bins."""
    bits = scores.add(0.0).view(torch.int32).long()  # minus zero becomes zero
    ordered = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return (ordered >> KEPT_BITS) + BINS // 2


class PositionMetrics:
    """Accuracy, intersection over union, likelihood and calibration over all positions that count.

    Args:
        classes: number of classes.
        bins: of the confidence, for the calibration error.
    """

    def __init__(self, classes: int, bins: int = 15) -> None:
        check_positive_integer("classes", classes)
        check_bins(bins)
        self.classes, self.bins = classes, bins
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64)
        self.binned = torch.zeros(3, bins, dtype=torch.float64)  # number, confidence, right
        self.log_likelihood = 0.0
        self.errors = StreamingRanking()

    def update(self, prediction: PositionPrediction, targets: Tensor) -> None:
        """Count the positions of a batch; targets in -100, -1 and 255 take no part."""
        targets = targets.to(prediction.probs.device)
        known = prediction.known(targets)
        wanted, labels = targets[known].cpu(), prediction.labels[known].cpu()
        confidence = prediction.confidence[known].double().clamp(0.0, 1.0).cpu()
        right = labels == wanted
        self.confusion += (wanted * self.classes + labels).bincount(minlength=self.classes**2).view_as(self.confusion)
        edges = torch.arange(1, self.bins, dtype=torch.float64) / self.bins  # a bin has its upper edge
        index = torch.bucketize(confidence, edges)
        for row, values in zip(self.binned, (torch.ones_like(confidence), confidence, right.double()), strict=True):
            row.index_add_(0, index, values)
        self.log_likelihood += float(prediction.log_likelihood(targets).double().sum())
        self.errors.update(prediction.total[known], ~right)

    @property
    def positions(self) -> int:
        """Number of positions that count."""
        return int(self.confusion.sum())

    @property
    def iou(self) -> list[float]:
        """Intersection over union of each class; NaN for one that neither the targets nor the predictions have."""
        both = self.confusion.diagonal().double()
        either = self.confusion.sum(dim=0) + self.confusion.sum(dim=1) - self.confusion.diagonal()
        return (both / either).tolist()

    def reliability(self) -> dict[str, list[float]]:
        """Return confidence, accuracy and share of each bin that is not empty."""
        count, confidence, right = self.binned[:, self.binned[0] > 0]
        columns = (confidence / count, right / count, count / count.sum())
        return dict(zip(("confidence", "accuracy", "share"), (column.tolist() for column in columns), strict=True))

    def compute(self) -> dict[str, float]:
        """Return accuracy, mean_iou, nll, ece and misclassification_auroc, over all positions so far."""
        if not self.positions:
            raise DataError(expected("targets", "classes at some position", "none that is not ignored"))
        count, confidence, right = self.binned
        mixed = 0 < int(self.confusion.diagonal().sum()) < self.positions
        return {
            "accuracy": int(self.confusion.diagonal().sum()) / self.positions,
            "mean_iou": _mean(self.iou),
            "nll": -self.log_likelihood / self.positions,
            "ece": calibration_error(confidence / count, right / count, count / count.sum()),
            "misclassification_auroc": self.errors.auroc if mixed else math.nan,
        }


def _mean(values: Sequence[float]) -> float:
    """Return the mean of those that are numbers."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
