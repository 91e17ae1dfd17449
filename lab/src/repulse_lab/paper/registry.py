"""Every experiment by its name."""

from __future__ import annotations

import importlib

from repulse.errors import check_choice
from repulse_lab.study.experiment import Experiment

NAMES = (
    "toy",
    "dirty-mnist",
    "uncertainty-map",
    "active-learning",
    "cifar10",
    "cifar100",
    "corruption",
    "inductive-bias",
    "feature-collapse",
    "spectral-norm",
    "architectures",
    "repulsion-sets",
    "human-ambiguity",
    "text",
    "ablation",
    "strength",
    "initialisation",
    "hundred-classes",
)
"""In the order of the paper; the last six go beyond it."""


def experiment(name: str) -> Experiment:
    """Return the experiment of a name, which is in the module of that name."""
    check_choice("name", name, NAMES)
    return importlib.import_module(f"repulse_lab.paper.{name.replace('-', '_')}").EXPERIMENT


def chosen(names: list[str]) -> list[Experiment]:
    """Return the experiments of some names, each once; "all" is every one."""
    for name in names:
        check_choice("name", name, ("all", "claims", *NAMES))
    wanted = NAMES if "all" in names else [name for name in NAMES if name in names]
    return [experiment(name) for name in wanted]
