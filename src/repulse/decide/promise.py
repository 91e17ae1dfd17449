"""What a gate promises, in numbers and in words, and whether there is enough data to promise it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from repulse.decide.conformal import ClassSets, Intervals, allowed_above
from repulse.errors import DataError, RecipeError, check_choice, check_number, expected
from repulse.metrics.inputs import check_share

Sets = Literal["lac", "aps", "raps", "normalised", "cqr"]

SMALLEST = 1e-9
"""Share that can be promised: the number of samples that smaller ones need is no number that can be told."""

POSITIONS = tuple(-9 + 13.5 * i / 62 for i in range(63))
"""Fixed sequence of doubts, from strict to loose, as the log odds of `1 - max p`; after them everything is accepted."""

STARTS = (7, 18, 29, 39, 63)
"""Positions at which the sequence starts: `1 - max p` of 0.0006, 0.006, 0.06, 0.4, and everything."""


@dataclass(frozen=True)
class Promise:
    """What holds for inputs that are drawn like the calibration data.

    Attributes:
        false_alarms: largest share of them that is called foreign.
        risk: largest share of wrong predictions among those accepted; None if nothing is abstained from.
        delta: probability, over draws of calibration data, with which `risk` may be exceeded.
        alpha: largest share of them whose set or interval misses the target.
        sets: how sets ("lac", "aps", "raps") or intervals ("normalised", "cqr") are made.
        by_class: whether `false_alarms` holds within each predicted class.
        tolerance: error from which on a predicted number is wrong; None for classes.
    """

    false_alarms: float = 0.05
    risk: float | None = None
    delta: float = 0.05
    alpha: float = 0.1
    sets: Sets = "lac"
    by_class: bool = False
    tolerance: float | None = None

    def __post_init__(self) -> None:
        for name in ("false_alarms", "delta", "alpha", "risk"):
            share = getattr(self, name)
            if name == "risk" and share is None:
                continue
            check_share(name, share)
            if share < SMALLEST:
                raise RecipeError(
                    expected(name, f"at least {SMALLEST:g}, which a billion samples can show", f"{share:g}")
                )
        if self.tolerance is not None:
            check_number("tolerance", self.tolerance, positive=True)

    def check_task(self, classes: bool) -> None:
        """Refuse what cannot be promised of classes, or of numbers."""
        check_choice("sets", self.sets, get_args(ClassSets if classes else Intervals))
        if classes and self.tolerance is not None:
            raise DataError(expected("tolerance", "None for classes, which are right or wrong", self.tolerance))
        if not classes and self.by_class:
            raise DataError(expected("by_class", "False for numbers, which have no classes", True))
        if not classes and (self.risk is None) != (self.tolerance is None):
            got = f"`risk` {self.risk} and `tolerance` {self.tolerance}"
            raise DataError(expected("tolerance", "given with `risk`: from which error on a number is wrong", got))

    def samples_needed(self) -> dict[str, int]:
        """Return the smallest number of calibration samples with which each promise says anything.

        A p-value is at least `1 / (m + 1)`. A start of the sequence passes with n familiar samples without one error if
        `(1 - risk)^n <= delta / 5`; with thresholds by class, half of the samples are left for this.

        Examples:
            >>> Promise(false_alarms=0.01, risk=0.02).samples_needed()
            {'false_alarms': 99, 'alpha': 9, 'risk': 230}
        """
        needed = {name: math.ceil(1 / getattr(self, name) - 1 - 1e-9) for name in ("false_alarms", "alpha")}
        if self.risk is not None:
            tested = math.ceil(math.log(self.delta / len(STARTS)) / math.log1p(-self.risk) - 1e-9)
            needed["risk"] = 2 * tested - 1 if self.by_class else _with_foreign(tested, self.false_alarms)
        return needed

    def check_samples(self, count: int) -> None:
        """Refuse to promise what so few samples cannot hold."""
        for name, needed in self.samples_needed().items():
            if count < needed:
                wanted = (
                    f"at least {needed:,} samples, without which no `{name}` of {getattr(self, name):g} can be held"
                )
                raise DataError(expected("data", wanted, f"{count:,}"))


def _with_foreign(familiar: int, false_alarms: float) -> int:
    """Return the smallest number of samples of which so many are familiar."""
    count = max(math.floor(familiar / (1 - false_alarms)) - 2, familiar)
    while count - allowed_above(count, false_alarms) < familiar:
        count += 1
    return count
