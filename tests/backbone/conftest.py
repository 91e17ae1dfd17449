"""Folders of kept features, and processes that can be killed while they make them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from children import Children, computed
from repulse.backbone.features import Features


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    children = Children()
    yield children
    children.close()


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """A folder with complete features; not to be changed."""
    folder = tmp_path_factory.mktemp("kept") / "cache"
    computed(cache=folder)
    return folder


@pytest.fixture
def copy(kept, folder) -> Path:
    """A folder with complete features, to be changed."""
    shutil.copytree(kept, folder)
    return folder


@pytest.fixture(scope="module")
def right() -> Features:
    """What every run must come to: features computed without a cache."""
    return computed()[0]
