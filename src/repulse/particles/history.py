"""What a fit records of itself, epoch by epoch, and what it says in words when something looks wrong."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from repulse._extras import needs
from repulse._html import table
from repulse.errors import FitWarning

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Epoch:
    """Diagnostics of one epoch; None where there is no repulsion or no repulsion sample.

    An epoch is a pass over the data; if the recipe leaves their number open, as many passes as make 20 steps.

    Attributes:
        nll: negative log-likelihood, mean over heads and batches.
        repulsion: `log sum_j k_ij`, mean over heads and batches: 0 when heads do not feel each other, log n when they
            coincide.
        force_ratio: size of the (weighted) repulsion gradient over that of the likelihood and prior, on the last batch.
        bandwidth: of the kernel, on the last batch.
        kernel: mean kernel value between different heads, on the last batch.
        epistemic_train: mean epistemic uncertainty on the last training batch.
        epistemic_repulsion: the same on the last repulsion batch.
    """

    nll: float
    repulsion: float | None
    force_ratio: float | None
    bandwidth: float | None
    kernel: float | None
    epistemic_train: float
    epistemic_repulsion: float | None


class History(tuple[Epoch, ...]):
    """The epochs of a fit, in order: a tuple that a notebook shows as a table.

    Examples:
        >>> History([Epoch(0.9, None, None, None, None, 0.01, None)])[-1].nll
        0.9
    """

    __slots__ = ()

    def to_frame(self) -> DataFrame:
        """Return a pandas table, one row per epoch from 1 on, NaN where an epoch has no such number."""
        with needs("pandas", extra="files"):
            from pandas import DataFrame, RangeIndex

        rows = [asdict(epoch) for epoch in self]
        names = [field.name for field in fields(Epoch)]
        return DataFrame(rows, RangeIndex(1, len(self) + 1, name="epoch"), names, dtype=float)

    def _repr_html_(self) -> str:
        """Return the first, some, and the last of the epochs as a table."""
        shown = range(0, len(self), max(len(self) // 6, 1))
        shown = sorted({*shown, len(self) - 1} if self else set())
        names = [field.name for field in fields(Epoch)]
        cells = [[str(i + 1), *(_number(getattr(self[i], name)) for name in names)] for i in shown]
        return table(["epoch", *(name.replace("_", " ") for name in names)], cells)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def warn_about(history: Sequence[Epoch], distance: float | None) -> None:
    """Warn, in words, about a fit that should not be trusted as it is.

    Args:
        history: the epochs.
        distance: mean distance between the heads' parameters, relative to their size; None for a single head.
    """
    last = history[-1]
    if distance is not None and distance < 1e-3:
        _warn(
            f"the heads have collapsed onto each other (their parameters differ by {distance:.1e} of their size), so "
            "epistemic uncertainty will be near zero everywhere. Use `init='random'`, a larger `strength`, or a larger "
            "`prior_std`."
        )
    if last.kernel is not None and last.kernel < 1e-6:
        _warn(
            f"the kernel between heads has underflowed (mean value {last.kernel:.1e}), so they no longer repel each "
            "other. Use `bandwidth='median'` or a larger number."
        )
    # A learning rate that decays to zero stops any fit in the end; one that had converged was done by half-time, but
    # for the few hundredths of a nat that a large learning rate costs.
    late, of_all = history[len(history) // 2].nll - last.nll, history[0].nll - last.nll
    if of_all > 0 and late > max(0.08 * of_all, 0.05):
        _warn(
            f"the fit has not converged: its second half still brought {late / of_all:.0%} of all progress since the "
            "first epoch. Use more `epochs` or a larger `lr`."
        )


def _warn(message: str) -> None:
    warnings.warn(f"After fitting, {message}", FitWarning, stacklevel=5)
