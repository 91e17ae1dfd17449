"""Shapes written in annotations are checked while the tests run."""

from __future__ import annotations

import importlib
import os
import pkgutil
from pathlib import Path

import pytest
import torch
from jaxtyping import install_import_hook

LEAVES = {f"repulse.integrations.{name}" for name in ("huggingface", "lightning", "pytorch_ood", "skorch", "sklearn")}
"""Modules of classes that inherit from other libraries', imported only by the tests that are about them."""

with install_import_hook("repulse", "shapes.check"):
    import repulse

    for _module in pkgutil.walk_packages(repulse.__path__, "repulse."):
        if _module.name not in LEAVES:
            importlib.import_module(_module.name)

torch.set_num_threads(1)  # many small tensors on a shared machine: threads only wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the real data sets, or a skip that says what is missing."""
    root = os.environ.get("REPULSE_DATA")
    if not root:
        pytest.skip("REPULSE_DATA is not set: this test needs the real data sets (see CONTRIBUTING.md)")
    return Path(root)


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit with few steps where a recipe leaves their number open: for tests of what is around the fit."""
    monkeypatch.setattr("repulse.particles.loop.MIN_STEPS", 60)
