"""Choosing a positive constant by a loss, so that the choice is never at an end of what was tried."""

from __future__ import annotations

from collections.abc import Callable


def smallest(
    loss: Callable[[float], float], start: float, step: float = 2.0, sections: int = 0, steps: int = 40
) -> float:
    """Find the constant with the smallest loss, by steps of `step` from the start and then between two steps.

    Steps go on until both neighbours of the best constant are no better, so that it is inside of what was tried,
    whatever the start. Golden sections, if any, narrow the range between its neighbours.

    Args:
        loss: of a positive constant, with one valley.
        start: first constant to try.
        step: ratio of two neighbours.
        sections: number of golden sections; each evaluates the loss twice.
        steps: maximum number of steps away from the start, for a loss that falls for ever.

    Examples:
        >>> smallest(lambda x: (x - 1000) ** 2, start=1.0, step=10.0)
        1000.0
        >>> round(smallest(lambda x: (x - 0.7) ** 2, start=20.0, sections=40), 6)
        0.7
    """
    losses: dict[int, float] = {}

    def at(k: int) -> float:
        if k not in losses:
            losses[k] = loss(start * step**k)
        return losses[k]

    best = 0
    for direction in (1, -1):
        while abs(best + direction) <= steps and at(best + direction) < at(best):
            best += direction
    low, high = best - 1.0, best + 1.0
    ratio = (5**0.5 - 1) / 2
    for _ in range(sections):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if loss(start * step**left) <= loss(start * step**right) else (left, high)
    return start * step ** ((low + high) / 2)
