"""Curves of methods on their own test set: are they right as often as they say, and on what they are surest of?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from repulse import metrics
from repulse.prediction import ClassPrediction
from repulse_lab.jobs.job import Job, Place, Result, work
from repulse_lab.study.cells import CODE, fit_method
from repulse_lab.study.experiment import Cell, Outcome, groups
from repulse_lab.study.figures import Figure, Line, Lines

BINS = 15
MIN_SAMPLES = 20
"""Samples below which a bin says nothing."""
COVERAGES = [percent / 100 for percent in range(2, 101, 2)]
LABEL = "curves"
"""What marks the cells of curves, which no table shows and no claim is about."""


@work(*CODE, "repulse_lab.study.cells", seconds=lambda about: 8.0 if about["method"] == "repulse" else 3.0)
def draw_curves(about: Mapping[str, Any], place: Place) -> Result:
    """Measure reliability, and risk against coverage, on the test set."""
    trial, _ = fit_method(about, place)
    prediction = trial.method.predict(trial.sets()[0])
    assert isinstance(prediction, ClassPrediction)
    return {"figures": {}, **curves_of(prediction, trial.images.test_targets)}


def curves_of(prediction: ClassPrediction, targets: Tensor) -> dict[str, list[float | None]]:
    """Compute confidence and accuracy in bins, None for a bin of few samples, and the risk at each of `COVERAGES`.

    Examples:
        >>> import torch
        >>> probs = torch.tensor([[0.97, 0.03], [0.6, 0.4]]).repeat_interleave(MIN_SAMPLES, dim=0)
        >>> found = curves_of(ClassPrediction(probs.log().unsqueeze(0)), torch.arange(2 * MIN_SAMPLES) // MIN_SAMPLES)
        >>> [found[name][-1] for name in ("confidence", "accuracy", "risk")], found["risk"][24]
        ([0.97, 1.0, 0.5], 0.0)
    """
    confidence, accuracy, share = metrics.reliability(prediction, targets, BINS)
    confidence = confidence.masked_fill(share < MIN_SAMPLES / len(targets) - 1e-9, math.nan)
    _, risk = metrics.risk_coverage(prediction.total, prediction.labels != targets)
    at = [max(math.ceil(coverage * len(risk)) - 1, 0) for coverage in COVERAGES]
    return {"confidence": _plain(confidence), "accuracy": _plain(accuracy), "risk": _plain(risk[at])}


def _plain(values: Tensor) -> list[float | None]:
    return [round(value, 5) if math.isfinite(value) else None for value in values.double().tolist()]


def with_curves(cells: Sequence[Cell], rows: Sequence[str]) -> list[Cell]:
    """Return cells that draw curves of some rows of a grid, in addition to those that measure them."""
    return [
        Cell(Job(draw_curves, cell.job.about, cell.job.needs, cell.job.code), {**cell.labels, "beyond": LABEL})
        for cell in cells
        if cell.labels["row"] in rows or str(cell.labels["row"]).startswith("DE-")
    ]


def figures(outcomes: Sequence[Outcome], title: str, name: str) -> list[Figure]:
    """Draw, for each network, reliability next to risk and coverage."""
    drawn = [one for one in outcomes if one.labels.get("beyond") == LABEL]
    panels = []
    for (network,), found in groups(drawn, "network").items():
        rows = groups(found, "row").items()
        reliability = [_reliability(str(row), [one.result for one in seeds]) for (row,), seeds in rows]
        risk = [_risk(str(row), [one.result for one in seeds]) for (row,), seeds in rows]
        panels.append(Lines(f"{network}: reliability", "confidence", "accuracy", reliability, True, (0, 1), (0, 1)))
        panels.append(Lines(f"{network}: selection", "coverage (%)", "error rate (%)", risk))
    if not panels:
        return []
    caption = (
        f"{title}. Left: accuracy in {BINS} bins of confidence, mean over seeds; on the dotted line a method is right "
        "as often as it says. Right: error rate on the share of test images that a method is surest of (by total "
        "uncertainty); bands are standard deviations over seeds."
    )
    alt = "Curves of accuracy against confidence, and of the error rate against coverage, for several methods."
    return [Figure(f"curves-{name}", caption, alt, panels, columns=2)]


def _reliability(name: str, seeds: Sequence[Mapping[str, Any]]) -> Line:
    both = [[_mean([one[key][i] for one in seeds]) for i in range(BINS)] for key in ("confidence", "accuracy")]
    points = [(x, y) for x, y in zip(*both, strict=True) if x is not None and y is not None]
    return Line(name, [x for x, _ in points], [y for _, y in points])


def _risk(name: str, seeds: Sequence[Mapping[str, Any]]) -> Line:
    runs = [[100 * risk for risk in one["risk"]] for one in seeds]
    return Line.over(name, [100 * coverage for coverage in COVERAGES], runs)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
