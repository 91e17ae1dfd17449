"""Two saved ensembles."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest

from children import Children, network
from saved_ensembles import QUICK, fitted


@pytest.fixture(autouse=True)
def as_users_run_it():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    children = Children()
    yield children
    children.close()


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, Path]:
    """Two folders, each with another ensemble around the same network; not to be changed."""
    root = tmp_path_factory.mktemp("two")
    first = fitted(network(), class_names=["cat", "dog", "élan"])
    second = fitted(network(), recipe=QUICK.replace(seed=1, heads=4, epochs=3))
    return first.save(root / "first"), second.save(root / "second")


@pytest.fixture
def folder(two, tmp_path) -> Path:
    """A folder with a saved ensemble, to be changed."""
    shutil.copytree(two[0], tmp_path / "saved")
    return tmp_path / "saved"
