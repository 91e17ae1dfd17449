"""What the outputs of a head mean: one file for each kind of output, all of which keep the contract in `task.py`."""

from repulse.particles.tasks.classification import Classification
from repulse.particles.tasks.multilabel import Multilabel
from repulse.particles.tasks.multiregression import Multiregression
from repulse.particles.tasks.regression import Regression
from repulse.particles.tasks.task import Task

KINDS: dict[str, type[Task]] = {task.kind: task for task in (Classification, Multilabel, Regression, Multiregression)}
"""Tasks by the name that recipes and saved ensembles give them; several regression targets are "regression" there."""

__all__ = ["KINDS", "Classification", "Multilabel", "Multiregression", "Regression", "Task"]
