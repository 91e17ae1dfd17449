"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from repulse.errors import DataError, expected
from repulse.files.columns import Columns

TrainedNetwork = Annotated[
    str,
    typer.Argument(
        help="The trained network: a name of timm, a folder of Hugging Face, package.module:function (or "
        "file.py:function) that returns the network or (network, transform), or `linear` for ready features.",
        metavar="MODEL",
    ),
]
TrainingData = Annotated[
    Path,
    typer.Argument(
        help="Its training data: a folder of class folders, a CSV, TSV or Parquet table, an .npz, or a .tar.",
        metavar="DATA",
    ),
]
Classes = Annotated[
    Path | None,
    typer.Option(help="File with the name of a class in each line, in the order of the outputs.", metavar="FILE"),
]
Heads = Annotated[Path, typer.Argument(help="Folder that `repulse fit` wrote.", metavar="HEADS")]
Checkpoint = Annotated[Path | None, typer.Option(help="File of the weights of MODEL.", metavar="FILE")]
Text = Annotated[str | None, typer.Option(help="Column of texts. [default: found by name]", metavar="COLUMN")]
PathColumn = Annotated[
    str | None, typer.Option("--path", help="Column of image files. [default: found by name]", metavar="COLUMN")
]
Label = Annotated[
    str | None,
    typer.Option(help="Column of labels; several, separated by commas. [default: found by name]", metavar="COLUMN"),
]
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
    multilabel = "multilabel"
    regression = "regression"


class Engine(StrEnum):
    """Who runs the workers."""

    processes = "processes"
    ray = "ray"
    spark = "spark"
    dask = "dask"


def named_sources(given: list[str] | None, option: str, taken: tuple[str, ...]) -> dict[str, str]:
    """Return the data of each NAME=DATA."""
    found = {}
    for one in given or []:
        name, equals, source = one.partition("=")
        if not equals or not name or not source or name in (*taken, *found):
            wanted = f"NAME=DATA, with a name of its own other than {', '.join(taken)}"
            raise DataError(expected(option, wanted, repr(one)))
        found[name] = source
    return found


def columns_of(text: str | None, path: str | None, label: str | None, key: str | None) -> Columns:
    """Return the columns that were named."""
    return Columns(text, path, label, key)
