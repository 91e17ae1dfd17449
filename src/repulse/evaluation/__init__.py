"""Measure a method: all metrics from one pass over each data set, as numbers, tables and plots."""

from repulse.evaluation.evaluate import Evaluation, evaluate
from repulse.evaluation.overlap import overlap

__all__ = ["Evaluation", "evaluate", "overlap"]
