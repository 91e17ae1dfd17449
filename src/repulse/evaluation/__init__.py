"""Measuring a method: all metrics of it from one pass over each data set, as numbers, tables and plots."""

from repulse.evaluation.evaluate import Evaluation, Method, evaluate
from repulse.evaluation.overlap import overlap

__all__ = ["Evaluation", "Method", "evaluate", "overlap"]
