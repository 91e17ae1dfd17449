"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from repulse.files.columns import Columns

Heads = Annotated[Path, typer.Argument(help="Folder that `repulse fit` wrote.", metavar="HEADS")]
Checkpoint = Annotated[Path | None, typer.Option(help="File of the weights of MODEL.", metavar="FILE")]
Text = Annotated[str | None, typer.Option(help="Column of texts. [default: found by name]", metavar="COLUMN")]
PathColumn = Annotated[
    str | None, typer.Option("--path", help="Column of image files. [default: found by name]", metavar="COLUMN")
]
Label = Annotated[str | None, typer.Option(help="Column of labels. [default: found by name]", metavar="COLUMN")]
Key = Annotated[
    str | None, typer.Option(help="Column that identifies samples. [default: found by name]", metavar="COLUMN")
]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Samples at once. [default: as at the fit]")]
Model = Annotated[
    str | None, typer.Option("--model", help="The network, if it is elsewhere than at the fit.", metavar="MODEL")
]


class Task(StrEnum):
    """What the network predicts."""

    classification = "classification"
    regression = "regression"


class Engine(StrEnum):
    """Who runs the workers."""

    processes = "processes"
    ray = "ray"
    spark = "spark"
    dask = "dask"


def columns_of(text: str | None, path: str | None, label: str | None, key: str | None) -> Columns:
    """Return the columns that were named."""
    return Columns(text, path, label, key)
