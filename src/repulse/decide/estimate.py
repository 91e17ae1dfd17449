"""How well predictions are doing without labels, from how doubt and error went together on calibration data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from repulse.decide.calibration import Calibration

BINS, PER_BIN = 15, 40
"""Most bins of doubt, and the samples that a bin needs."""


@dataclass(frozen=True)
class Estimate:
    """A mean error and the interval that holds it with 95 % if doubt means what it meant on calibration data."""

    value: float
    low: float
    high: float


class Reliability:
    """The mean error of calibration samples in bins of their doubt: how often predictions of this doubt are wrong.

    The estimate for a stream is the mean over its inputs of the error of their bin; its variance is that of the bins'
    means, weighted by how many inputs fall into each, plus that of the inputs' own errors. For numbers, errors are in
    units of the predicted standard deviation, and the mean is one of absolute errors. What this cannot see is a change
    of the labels of inputs that look as before.

    Args:
        rows: calibration samples that are not foreign.
        classes: whether errors are 0 or 1.
    """

    def __init__(self, rows: Calibration, classes: bool) -> None:
        doubt, error = rows.doubt.numpy(), rows.error.numpy()
        self.classes = classes
        error = error if classes else error / np.maximum(doubt, 1e-300)
        bins = max(1, min(BINS, len(doubt) // PER_BIN))
        self.edges = np.quantile(doubt, np.arange(1, bins) / bins) if len(doubt) else np.empty(0)
        at = self.bin_of(doubt)
        self.count = np.maximum(np.bincount(at, minlength=bins), 1)
        self.mean = np.bincount(at, error, minlength=bins) / self.count
        if classes:
            smoothed = (self.mean * self.count + 1) / (self.count + 2)
            self.variance = smoothed * (1 - smoothed)
        else:
            self.variance = np.bincount(at, (error - self.mean[at]) ** 2, minlength=bins) / self.count

    def bin_of(self, doubt: np.ndarray) -> np.ndarray:
        """Return the bin of each doubt."""
        return np.searchsorted(self.edges, doubt, side="left")

    def estimate(self, doubt: np.ndarray) -> Estimate:
        """Estimate the mean error of inputs from their doubts; NaN for none."""
        if not len(doubt):
            return Estimate(math.nan, math.nan, math.nan)
        at, size = self.bin_of(doubt), np.ones(len(doubt)) if self.classes else doubt
        weight = np.bincount(at, size, minlength=len(self.mean)) / len(doubt)
        value = float((weight * self.mean).sum())
        of_bins = (weight**2 * self.variance / self.count).sum()
        of_inputs = (size**2 * self.variance[at]).sum() / len(doubt) ** 2
        half = 1.96 * math.sqrt(of_bins + of_inputs)
        return Estimate(value, max(value - half, 0.0), min(value + half, 1.0) if self.classes else value + half)
