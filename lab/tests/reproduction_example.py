"""What a run of several experiments would leave, small and made up, for the tests of the page."""

from __future__ import annotations

import base64
import json
import math
import random
from functools import cache
from pathlib import Path
from typing import Any

import torch

from repulse._files import write_whole
from repulse.evaluation.plots import png_of
from repulse.evaluation.table import Column, Table
from repulse_lab.study.experiment import Outcome
from repulse_lab.study.figures import Figure, Heat, Line, Lines, PointGroup, Points
from repulse_lab.study.output import FILE, Findings

NASTY = """<script>alert("1")</script> & 'x' </script>"""


def _main_table(rng: random.Random) -> Table:
    columns = [
        Column("accuracy", 2, "higher", "Share of right predictions."),
        Column("NLL", 3, "lower", "In nats."),
        Column("ECE", 2, "lower", "Expected calibration error, in per cent."),
        Column("MNIST/ambig.", 1, "higher", "AUROC by aleatoric uncertainty."),
        Column("MNIST/OOD", 1, "higher", "AUROC by epistemic uncertainty."),
        Column("ambig./OOD", 1, "higher", "AUROC by epistemic uncertainty."),
        Column("seconds", 1),
    ]
    table = Table("method", columns, title="DirtyMNIST, ResNet-18")
    base = {
        "MAP": (99.2, 0.031, 1.2, 95.1, 93.0, 61.2),
        "deep ensemble": (99.4, 0.024, 0.6, 96.0, 97.5, 84.9),
        "DDU": (99.2, 0.031, 1.2, 95.1, 99.4, 98.1),
        "SNGP": (99.1, 0.035, 1.6, 94.4, 97.1, 83.3),
        "LL-Laplace": (99.2, 0.030, 0.9, 95.2, 95.8, 80.4),
        "LL-E": (99.2, 0.029, 0.7, 95.4, 96.0, 82.2),
        "RLL-E": (99.2, 0.029, 0.7, 95.4, 96.1, 82.0),
        "fs-RLL-E, training data": (99.2, 0.028, 0.5, 95.3, 92.1, 70.4),
        "fs-RLL-E, patches of 8": (99.2, 0.029, 0.8, 95.4, 98.3, 93.9),
        "fs-RLL-E, eMNIST": (99.2, 0.029, 0.8, 95.5, 98.9, 96.4),
    }
    for index, (name, values) in enumerate(base.items()):
        seeds = [[v * (1 + rng.gauss(0, 0.002)) for v in values] + [20 * rng.random()] for _ in range(3)]
        if name == "SNGP":
            seeds[1][2] = math.nan
        printed = [min(v * (1 + rng.gauss(0, 0.006)), 99.95) if j != 3 else None for j, v in enumerate(values)]
        table.add(name, seeds, [4, 5] if index == 9 else [], [*printed, None])
    return table


def _oracle_table(rng: random.Random) -> Table:
    sets = ("eMNIST", "kMNIST", "fashionMNIST", "Omniglot", "SVHN", "textures", "noise")
    table = Table(
        "repelled on", [Column(name, 1, "higher") for name in sets], title="Oracle repulsion sets", across=True
    )
    for index, name in enumerate(("nothing (LL-E)", "dirtyMNIST", *sets[:4])):
        values = [[80 + 18 * rng.random() for _ in sets] for _ in range(2)]
        table.add(name, values, [index - 2] if index > 1 else [], [80 + 18 * rng.random() for _ in sets[:4]])
    table.footnote = "† Repelled on the training part of this set."
    return table


def _thumbnail(bright: float, generator: torch.Generator) -> str:
    image = torch.zeros(1, 28, 28)
    image[:, 6:22, 10:18] = bright
    image += 0.25 * torch.rand(1, 28, 28, generator=generator)
    return base64.b64encode(png_of(image)).decode()


def _cloud(name: str, x: float, y: float, count: int, rng: random.Random, images: bool) -> PointGroup:
    generator = torch.Generator().manual_seed(count)
    pictures = [_thumbnail(i / count, generator) for i in range(count)] if images else []
    xs = [max(0.0, rng.gauss(x, 0.22)) for _ in range(count)]
    return PointGroup(name, xs, [max(0.0, rng.gauss(y, 0.13)) for _ in range(count)], pictures)


def _uncertainty_map(rng: random.Random) -> Figure:
    def panel(title: str, epistemic: float, images: bool) -> Points:
        clouds = [("MNIST", 0.1, 0.05), ("ambiguous MNIST", 0.8, 0.1), ("fashionMNIST", 0.9 - epistemic, epistemic)]
        groups = [_cloud(name, x, y, 60, rng, images) for name, x, y in clouds]
        axes = ("aleatoric uncertainty (nats)", "epistemic uncertainty (nats)")
        return Points(title, *axes, groups, x_range=(0, 1.8), y_range=(0, 1.2))

    panels = [panel("LL-E", 0.15, False), panel("fs-RLL-E, patches", 0.7, True)]
    return Figure(
        "map", "Every input as a point.", "Out-of-distribution inputs move up with repulsion.", panels, columns=2
    )


def _heat_maps(rng: random.Random) -> Figure:
    def panel(title: str, x: float, y: float) -> Heat:
        bins = range(30)
        values = [[round(900 * math.exp(-((i - x) ** 2 + (j - y) ** 2) / 40) - 2) for i in bins] for j in bins]
        shown = [[v if v > 0 else None for v in row] for row in values]
        data = [
            PointGroup("training data", [rng.uniform(0.2, 1.5) for _ in range(12)], [rng.random() for _ in range(12)])
        ]
        axes = ("aleatoric (nats)", "epistemic (nats)")
        return Heat(title, *axes, shown, (0.0, 1.8), (0.0, 2.0), True, "inputs", 900.0, data)

    panels = [panel("MNIST", 2, 1), panel("ambiguous", 14, 3), panel("fashion", 8, 18)]
    return Figure("histograms", "How often each pair of uncertainties occurs.", "Three clouds in three places.", panels)


def _curves(rng: random.Random) -> Figure:
    severities = [1.0, 2.0, 3.0, 4.0, 5.0]

    def panel(title: str, label: str, start: float, slope: float) -> Lines:
        lines = []
        for k, name in enumerate(("MAP", "deep ensemble", "LL-E", "fs-RLL-E", "SNGP", "DDU", "LL-Laplace")):
            y = [start + slope * (1 - 0.12 * k) * s + 0.1 * rng.random() for s in severities]
            lines.append(Line(name, severities, y, [v - 0.3 for v in y], [v + 0.3 for v in y]))
        return Lines(title, "severity", label, lines)

    xs = [i / 10 for i in range(51)]
    bundle = [Line("", xs, [math.sin(x) + k * (x / 5) ** 3 for x in xs]) for k in range(-8, 8)]
    dots = Line("data", xs[5:25], [math.sin(x) + 0.1 * rng.random() for x in xs[5:25]], dots=True)
    panels = [panel("CIFAR-10-C: ECE", "ECE (%)", 2, 3.2), panel("CIFAR-10-C: NLL", "NLL (nats)", 0.2, 0.4)]
    panels.append(Lines("Regression", "input", "output", [*bundle, dots]))
    return Figure(
        "corruption", "Calibration under corruption, mean and band over seeds.", "All rise with severity.", panels
    )


def _outcomes(name: str, count: int) -> list[Outcome]:
    return [
        Outcome({"method": "LL-E", "seed": i % 3}, f"{name}{i}", {"figures": {"accuracy": 1.0}}) for i in range(count)
    ]


@cache
def example() -> list[Findings]:
    rng = random.Random(0)
    about = {"preset": "cpu", "date": "2026-11-16"}
    return [
        Findings(
            "dirty-mnist", "Does repulsion tell ambiguous digits from unseen sets?", "Table 1", **about, minutes=31.4,
            command="repulse-lab reproduce dirty-mnist --preset cpu --seeds 3",
            notes=["10,000 training digits instead of 60,000.", "Patches of 8 tiles; three seeds instead of ten."],
            missing=["eMNIST is not there: put it into DATA/emnist."],
            tables=[_main_table(rng), _oracle_table(rng)], outcomes=_outcomes("d", 30),
        ),
        Findings(
            "histograms", "Where do inputs fall between aleatoric and epistemic doubt?", "Figure 2", **about,
            minutes=12.0, command="repulse-lab reproduce histograms --preset cpu", notes=[], missing=[],
            figures=[_uncertainty_map(rng), _heat_maps(rng)], outcomes=_outcomes("h", 6),
        ),
        Findings(
            "corruption", "Does calibration survive corruption?", "Figure 4", **about, minutes=55.5,
            command="repulse-lab reproduce corruption --preset cpu", notes=["Five corruptions instead of nineteen."],
            missing=[], figures=[_curves(rng)], outcomes=_outcomes("c", 40),
        ),
        Findings(
            "nasty", f"Beyond {NASTY}", f"beyond the paper {NASTY}", **about, minutes=0.1, command=f"echo {NASTY}",
            notes=[NASTY], missing=[NASTY], tables=[_nasty_table()], figures=[_nasty_figure()], outcomes=[],
        ),
    ]  # fmt: skip


def _nasty_table() -> Table:
    table = Table(NASTY, [Column(NASTY, 1, "higher", NASTY), Column("b", 2, "lower")], title=NASTY, footnote=NASTY)
    table.add(NASTY, [[math.nan, 0.5]], printed=[1.0, None])
    table.add("item 10", [[2.0, 0.25]], printed=[None, 0.25])
    table.add("item 9", [[3.0, 0.75]], printed=[3.5, 0.5])
    return table


def _nasty_figure() -> Figure:
    line = Line(NASTY, [0.0, 1.0, 2.0], [1.0, math.nan, 3.0])
    other = Line("b & <i>c</i>", [0.0, 2.0], [5.0, 1.0])
    return Figure("nasty", NASTY, NASTY, [Lines(NASTY, NASTY, NASTY, [line, other])])


CLAIMS = [
    {"id": "fs", "text": "Repulsion in function space finds out-of-distribution inputs better than plain heads.",
     "source": "Table 1", "verdict": "confirmed", "evidence": "AUROC 98.3 against 96.0 on three sets, on all seeds.",
     "effect": 2.31, "unit": "points of AUROC", "interval": [1.62, 3.05], "confidence": "All 3 seeds agree.",
     "experiments": ["dirty-mnist", "elsewhere"]},
    {"id": "rll", "text": "Repelling parameters changes nothing.", "source": "Section 4", "verdict": "confirmed",
     "evidence": "96.1 against 96.0.", "effect": 0.1, "unit": "points of AUROC", "interval": [-0.4, 0.5],
     "confidence": "The interval holds zero.", "experiments": ["dirty-mnist"]},
    {"id": "hurt", "text": "Repulsion on training data hurts.", "source": "Table 1", "verdict": "confirmed",
     "evidence": "92.1.", "effect": -3.9, "unit": "points of AUROC", "interval": [-4.6, -3.1],
     "experiments": ["dirty-mnist", "histograms"]},
    {"id": "ece", "text": f"Calibration stays that of a deep ensemble under corruption. {NASTY}", "source": NASTY,
     "verdict": "contradicted", "evidence": NASTY, "effect": 1.4, "unit": "points of ECE", "interval": [0.2, 2.6],
     "experiments": ["corruption"]},
    {"id": "cifar100", "text": "No gain on CIFAR-100-C.", "source": "Figure 4", "verdict": "not testable here",
     "evidence": "CIFAR-100 is not there.", "effect": None, "unit": "", "interval": None, "confidence": "",
     "experiments": []},
    {"id": "sn", "text": "Spectral normalisation matters only for SNGP.", "source": "Table B.4", "verdict": "undecided",
     "evidence": "The seeds differ by more than the effect.", "effect": 0.4, "unit": "points of AUROC",
     "interval": [-1.5, 2.2], "confidence": "Three seeds are too few.", "experiments": ["dirty-mnist"]},
]  # fmt: skip


def leave(folder: Path, claims: list[dict[str, Any]] | None = None) -> Path:
    """What a run would leave, without its pictures."""
    for findings in example():
        write_whole(folder / findings.name / FILE, json.dumps(findings.to_json(), allow_nan=False))
    if claims is not None:
        write_whole(folder / "claims.json", json.dumps({"format": 1, "claims": claims}))
    return folder
