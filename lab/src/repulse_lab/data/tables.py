"""Tables: regressions of the UCI repository with the rows that everybody uses, and classes of the R package mlbench."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repulse.errors import DataError, expected
from repulse_lab.data.dataset import Contents
from repulse_lab.data.registry import Found, Layouts

SPLITS = tuple(f"{part}-{number}" for number in range(5) for part in ("train", "test"))
FILES = ("data.txt", "index_features.txt", "index_target.txt")


def uci_layouts(name: str, split: str) -> Layouts:
    """Return the files of a table: as in the repository that has the splits, or straight in a folder."""
    rows = f"index_{split.replace('-', '_')}.txt"
    return [
        [f"{folder}/{file}" for file in (*FILES, rows)]
        for folder in (f"UCI_Datasets/{name}/data", f"files/uci/{name}", f"uci/{name}")
    ]


def read_uci(found: Found) -> Contents:
    """Read features `(N, D)` and target of the rows of a split, in the units of the table."""
    table = np.loadtxt(found.paths[0], ndmin=2)
    features, target, rows = (np.loadtxt(path, ndmin=1).astype(np.int64) for path in found.paths[1:])
    for name, index, size in (("rows", rows, table.shape[0]), ("columns", np.append(features, target), table.shape[1])):
        if not len(index) or index.min() < 0 or index.max() >= size:
            raise DataError(expected(f"the {name} of {found.paths[3].parent}", f"from 0 to {size - 1}", "others"))
    inputs = torch.from_numpy(table[np.ix_(rows, features)]).float()
    return Contents(inputs, torch.from_numpy(table[rows, target[0]]).float())


@dataclass(frozen=True)
class Classes:
    """A table of the R package mlbench.

    Attributes:
        title: what it is, in a line.
        target: name of the column of classes.
        columns: number of others.
        classes: number of classes.
        file: name of the file without its ending.
    """

    title: str
    target: str
    columns: int
    classes: int
    file: str


MLBENCH = {
    "vehicle": Classes("silhouettes of vehicles", "Class", 18, 4, "Vehicle"),
    "vowel": Classes("vowels of speakers", "Class", 10, 11, "Vowel"),
    "satellite": Classes("soils in satellite images", "classes", 36, 6, "Satellite"),
    "pima": Classes("diabetes of Pima women", "diabetes", 8, 2, "PimaIndiansDiabetes"),
    "glass": Classes("kinds of glass", "Type", 9, 6, "Glass"),
    "letter": Classes("letters in distorted fonts", "lettr", 16, 26, "LetterRecognition"),
    "sonar": Classes("sonar echoes of mines and rocks", "Class", 60, 2, "Sonar"),
    "ionosphere": Classes("radar echoes of the ionosphere", "Class", 34, 2, "Ionosphere"),
    "shuttle": Classes("states of a space shuttle", "Class", 9, 7, "Shuttle"),
}
"""Tables of classes by name."""


def mlbench_layouts(name: str, split: str) -> Layouts:
    """Return the file of a table: in the data folder of the package, wherever that was put."""
    file = f"{MLBENCH[name].file}.rda"
    return [[f"mlbench/data/{file}"], [f"mlbench/{file}"]]


def read_mlbench(name: str, found: Found) -> Contents:
    """Read columns and classes of all rows; columns of categories become the numbers of these."""
    try:
        import rdata
    except ImportError as reason:
        raise DataError("Reading R data needs `rdata`; `pip install 'repulse-lab[tables]'` brings it.") from reason
    about = MLBENCH[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old files do not name their encoding, and hold nothing but ASCII
        frame = rdata.read_rda(found.paths[0])[about.file]
    columns = [_numbers(frame[column]) for column in frame.columns if column != about.target]
    classes = frame[about.target].astype("category").cat
    return Contents(torch.stack(columns, dim=1), _tensor(classes.codes).long(), tuple(map(str, classes.categories)))


def _numbers(column: Any) -> Tensor:
    return _tensor(column.cat.codes if hasattr(column, "cat") else column).float()


def _tensor(column: Any) -> Tensor:
    return torch.from_numpy(column.to_numpy().copy())
