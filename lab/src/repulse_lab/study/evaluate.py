"""Every method on one network, in one table: an experiment of its own, made of the same cells as the paper's.

What `repulse-lab reproduce` has measured is not measured again, and the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from repulse.baselines import METHODS
from repulse.errors import check_choice
from repulse.evaluation.compare import INSIDE, SELECTIVE
from repulse.evaluation.table import Column, Table
from repulse_lab.study import presets, tables
from repulse_lab.study.experiment import Cell, Experiment, Outcome, Plan, RunOptions
from repulse_lab.study.grid import REPULSIVE, Grid, Row
from repulse_lab.study.problems import CIFAR10
from repulse_lab.study.training import Networks

LAYERS = {
    "last": "Penultimate features, as in the paper",
    "auto": "Penultimate features and taps of earlier stages",
}
COSTS = {
    "fit_seconds": Column("fit, s", 1, "", "Processor seconds to fit, from features."),
    "milliseconds": Column("ms per 1000", 1, "", "Processor milliseconds for 1000 predictions, from features."),
}
RANKS = (
    ("AUROC", "auroc", "higher"),
    ("FPR@95", "fpr95", "lower"),
    ("AUPR, outside positive", "aupr_out", "higher"),
    ("AUPR, inside positive", "aupr_in", "higher"),
)
PHOTOGRAPHS = {
    "accuracy and calibration": INSIDE,
    "selective prediction, and cost": {**SELECTIVE, **COSTS},
    **{
        label: {f"{name} {key}": Column(name, 1, better) for name in (*CIFAR10.sets, "mean")}
        for label, key, better in RANKS
    },
}
DIGITS = {
    "summary": {**tables.DIGITS, **COSTS},
    "AUROC": {
        f"{kind} {name}": Column(f"{kind}/{name}", 1, "higher")
        for kind in ("clean", "ambiguous")
        for name in ("KMNIST", "FashionMNIST", "Omniglot")
    },
}


def rows_for(repulsion: Sequence[str], only_heads: Sequence[str], networks: Sequence[Row]) -> list[Row]:
    """Return every method on both kinds of features; those that use repulsion samples once with each set.

    Args:
        repulsion: sets for all methods that use them.
        only_heads: sets for fs-RLL-E alone.
        networks: rows of ensembles of networks.
    """
    rows = list(networks)
    for layers in LAYERS:
        for method, kind in METHODS.items():
            if kind.uses_repulsion:
                sets = [*repulsion, *(only_heads if method == "fs-RLL-E" else ())]
                rows += [Row(method, name, layers) for name in sets]
            elif layers == "last" or kind.accepts_taps:
                rows.append(Row(method, None, layers))
    return rows


PHOTOGRAPH_ROWS = rows_for(("Tiny ImageNet", "synthetic images"), ("training data", "16 patches"), [Row("DE")])
DIGIT_ROWS = rows_for(
    ("letters", "synthetic images"),
    ("training data", "16 patches", "8 patches", "4 patches", "dead leaves"),
    [Row("DE"), Row(REPULSIVE), Row(REPULSIVE, "letters")],
)
LENET = Networks((presets.LENET,), presets.DIGITS.seeds)
Columns = Mapping[str, Mapping[str, Column]]
EVALUATIONS: dict[str, tuple[Grid, str, Columns]] = {
    "resnet20": (Grid("cifar10", PHOTOGRAPH_ROWS, presets.PUBLISHED, presets.PAPER_WIDE), "ResNet-20", PHOTOGRAPHS),
    "resnet32": (Grid("cifar10", PHOTOGRAPH_ROWS, presets.PUBLISHED, presets.PAPER_WIDE), "ResNet-32", PHOTOGRAPHS),
    "lenet": (Grid("dirty-mnist", DIGIT_ROWS, LENET, presets.PAPER_DIGITS), "LeNet", DIGITS),
}
"""By the name of a network: the grid, the network's label in it, and columns by the title of their table."""


def evaluation(network: str) -> Experiment:
    """Return the experiment that compares every method on a network."""
    check_choice("network", network, EVALUATIONS)
    grid, label, columns = EVALUATIONS[network]

    def plan(options: RunOptions) -> Plan:
        planned = grid.plan(options)
        return Plan([c for c in planned.cells if c.labels["network"] == label], planned.notes, planned.missing)

    def made(outcomes: Sequence[Outcome]) -> list[Table]:
        return [
            table
            for layers, heading in LAYERS.items()
            for title, shown in columns.items()
            for table in tables.methods_as_rows(
                [one for one in outcomes if one.labels["layers"] == layers], shown, f"{heading}: {title}"
            )
        ]

    title = f"Every method on {label}"
    return Experiment(f"{grid.problem}-{network}", title, "beyond the paper", plan, made)


def chosen(cells: Sequence[Cell], methods: Sequence[str], layers: str) -> list[Cell]:
    """Return the cells of some methods ("all" for every one) and of one kind of features, or of "both"."""
    known = list(dict.fromkeys(str(cell.labels["method"]) for cell in cells))
    for method in methods:
        check_choice("methods", method, ("all", *known))
    check_choice("layers", layers, (*LAYERS, "both"))
    wanted = known if "all" in methods else methods
    return [cell for cell in cells if cell.labels["method"] in wanted and layers in ("both", cell.labels["layers"])]
