"""The data of a fit, and the result of one of its steps: shared by the loop and both kinds of step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from repulse.particles.tasks import Task


def identity(batch: Tensor) -> Tensor:
    """Return features that need no preparation."""
    return batch


@dataclass(frozen=True)
class FitData:
    """Everything the loop needs besides the particles.

    Attributes:
        x: training features (or inputs), `(N, ...)`.
        y: targets in the units of `task`.
        repulsion: features (or inputs) on which to repel, or None.
        prepare: applied to features as they enter the pool from which batches are drawn (scaling).
        task: likelihood in those units.
        samples: N, where `x` is no more than such a pool.
    """

    x: Tensor
    y: Tensor
    repulsion: Tensor | None
    prepare: Callable[[Tensor], Tensor]
    task: Task
    samples: int | None = None

    @property
    def size(self) -> int:
        """N, the number of training samples."""
        return len(self.x) if self.samples is None else self.samples


@dataclass(frozen=True)
class StepDiagnostics:
    """What the record of an epoch needs to know of its last step; None where there is no repulsion (sample).

    Attributes:
        ratio: size of the weighted repulsion gradient over that of likelihood and prior.
        bandwidth: of the kernel, one per set.
        k: kernel values.
        outputs: on the training batch.
        repulsion_outputs: on the repulsion batch.
    """

    ratio: float | None
    bandwidth: Float[Tensor, "*S"] | None
    k: Float[Tensor, "*S n n"] | None
    outputs: Float[Tensor, "n B O"]
    repulsion_outputs: Float[Tensor, "n R O"] | None


@dataclass(frozen=True)
class StepResult:
    """The mean negative log-likelihood of the heads at a step, and their total repulsion, if any."""

    nll: Float[Tensor, ""] | float
    repulsion: Float[Tensor, ""] | float | None
    measured: StepDiagnostics | None
