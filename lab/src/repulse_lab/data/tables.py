"""Regression tables of the UCI repository, with the train and test rows that everybody uses."""

from __future__ import annotations

import numpy as np
import torch

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
