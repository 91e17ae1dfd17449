"""Every error the library raises on purpose, and the few checks that word them alike.

Messages follow one pattern, "Expected `heads` to be a positive integer, but got 0.", so that the sentence names the
argument, what would have been right and what came.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from repulse.particles.heads import Particles


class RepulseError(Exception):
    """Base of all errors raised by repulse."""


class RecipeError(RepulseError, ValueError):
    """A setting of the recipe, or of a repulsion source, is not usable."""


class DataError(RepulseError, ValueError):
    """The data is empty, of the wrong shape or type, or holds NaN or infinite values."""


class RepulsionError(DataError):
    """The repulsion samples do not fit the inputs, the features or the recipe."""


class BackboneError(RepulseError, ValueError):
    """The model cannot be split into features and a last linear layer."""


class CacheError(RepulseError, OSError):
    """The folder for computed features cannot be used."""


class CheckpointError(RepulseError, ValueError):
    """What was saved cannot be loaded: damaged, of another format, or for another network."""


class NonFiniteLossError(RepulseError, ArithmeticError):
    """The loss became NaN or infinite.

    Attributes:
        heads: the particles as they were at the end of the last epoch in which everything was finite.
    """

    def __init__(self, message: str, heads: Particles) -> None:
        super().__init__(message, heads)  # both, so that it can cross process borders
        self.heads = heads

    def __str__(self) -> str:
        return self.args[0]


class FitWarning(UserWarning):
    """The fit ended, but something about it deserves a look."""


class PromiseWarning(UserWarning):
    """A gate was asked to hold what its calibration data cannot show."""


class CacheWarning(UserWarning):
    """Features that were kept are not the ones that are needed, and are recomputed."""


class DataWarning(UserWarning):
    """The data was read, but perhaps not as it was meant."""


def expected(argument: str, wanted: str, got: object) -> str:
    """Return the sentence that all input errors follow.

    Examples:
        >>> expected("heads", "a positive integer", 0)
        'Expected `heads` to be a positive integer, but got 0.'
    """
    name = argument if "`" in argument or " " in argument else f"`{argument}`"  # what is no name is a phrase
    return f"Expected {name} to be {wanted}, but got {got}."


def in_one_line(reason: BaseException) -> str:
    """Return the type of an exception that is not ours, and the first line of what it says, for a sentence about it."""
    said = (str(reason).strip().splitlines() or [""])[0].rstrip(".: ")
    return f"{type(reason).__name__}: {said}" if said else type(reason).__name__


def check_choice(argument: str, value: object, known: Iterable[str]) -> None:
    """Refuse a name that is not one of `known`, and suggest the nearest one."""
    known = list(known)
    if isinstance(value, str) and value in known:
        return
    message = expected(argument, "one of " + ", ".join(repr(name) for name in known), repr(value))
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(value.lower(), lower, n=1) if isinstance(value, str) else []
    raise RecipeError(message + (f" Did you mean {lower[near[0]]!r}?" if near else ""))


def check_dense(argument: str, values: Tensor, error: type[DataError] = DataError) -> None:
    """Refuse a tensor that is sparse, or has no values."""
    if str(values.layout) != "torch.strided":
        raise error(expected(argument, "a dense tensor; call its `to_dense()`", f"one of layout {values.layout}"))
    if values.is_meta:
        raise error(expected(argument, "a tensor with values", "one on the meta device"))


def check_positive_integer(argument: str, value: object) -> None:
    """Refuse what is not an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RecipeError(expected(argument, "a positive integer", repr(value)))


def check_number(argument: str, value: object, *, positive: bool) -> None:
    """Refuse what is not a finite number above zero (or, if not `positive`, at least zero)."""
    wanted = "a positive, finite number" if positive else "a finite number that is zero or larger"
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or float(value) < 0 or (positive and value == 0):  # pyright: ignore[reportArgumentType]
        raise RecipeError(expected(argument, wanted, repr(value)))
