"""Table B.4: does spectral normalisation of the network matter?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from repulse_lab.paper.architectures import COLUMNS
from repulse_lab.paper.printed import printed
from repulse_lab.study.experiment import Experiment
from repulse_lab.study.grid import Grid, Row
from repulse_lab.study.presets import NARROW18, PHOTO_NOTES, full
from repulse_lab.study.tables import by_rows
from repulse_lab.study.training import Network, Networks

ROWS = (
    *map(Row, ("MAP", "DDU", "LL-Laplace", "SNGP", "LL-E")),
    Row("fs-RLL-E", "CIFAR-100"),
    Row("fs-RLL-E", "Tiny ImageNet"),
    Row("DE"),
)


def normalised(network: Network) -> tuple[Network, ...]:
    """Return a network without spectral normalisation, and with two coefficients."""
    others = [replace(network, label=f"{network.label} (SN {c:g})", spectral_norm=c) for c in (3.0, 7.0)]
    return (replace(network, spectral_norm=None), *others)


GRID = Grid(
    "cifar10",
    ROWS,
    Networks(normalised(NARROW18), 3),
    Networks(normalised(full("resnet18", "ResNet-18", "cifar", None)), 5),
    (
        "A ResNet-18 with an eighth of the channels, trained for 6 epochs; three networks of each kind.",
        *PHOTO_NOTES[1:],
    ),
)


EXPERIMENT = Experiment(
    "spectral-norm",
    "Does spectral normalisation of the network matter?",
    "Table B.4",
    GRID.plan,
    by_rows(COLUMNS, "CIFAR-10", partial(printed, "B.4")),
)
