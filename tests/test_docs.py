"""Code shown to readers runs, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import repulse
from repulse import baselines

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES.append(ROOT / "docs" / "results" / "index.md")
CODE = [
    pytest.param(code, id=f"{page.name}-{i}")
    for page in PAGES
    for i, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.fixture
def names():
    """What the pages take for granted: a model, loaders, images."""
    torch.manual_seed(0)
    images = torch.rand(64, 3, 16, 16)
    loader = DataLoader(TensorDataset(images, torch.arange(64) % 4), batch_size=32)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    x = torch.randn(64, 3)
    return {
        "repulse": repulse,
        "repulsion": repulse.repulsion,
        "model": model,
        "train_loader": loader,
        "validation_loader": loader,
        "calibration_loader": DataLoader(TensorDataset(torch.rand(256, 3, 16, 16), torch.arange(256) % 4), 64),
        "test_loader": loader,
        "other_loader": [images, images],
        "other_images_loader": [images, images],
        "images": images,
        "test_images": images,
        "new_images": images,
        "x": x,
        "unfamiliar_images": images,
        "validation_labels": torch.arange(64) % 4,
        "features": x,
        "other_features": x,
        "repulsion_features": 3 * x,
        "targets": torch.arange(64) % 4,
    }


@pytest.mark.filterwarnings("ignore::repulse.FitWarning")
@pytest.mark.parametrize("code", CODE)
def test_code_on_the_pages_runs(code, names, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # some of it writes files
    monkeypatch.setattr("repulse.particles.loop.MIN_STEPS", 20)
    known = dict(baselines.METHODS)
    monkeypatch.setattr("repulse.baselines.registry.METHODS", known)  # a page that registers a method leaves no trace
    if 'task="regression"' in code:
        names["model"] = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
        names["loader"] = [(names["x"], names["x"][:, 0])]
        names["validation_rows"] = [(names["x"].flip(0), names["x"].flip(0)[:, 0])]
    if re.search(r"\bensemble[.,]", code.split("ensemble =")[0]):
        names["ensemble"] = repulse.retrofit(names["model"], names["train_loader"], progress=False)
        names["p"] = names["ensemble"].predict(names["images"])
    exec(code, names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_placeholder_is_left(page):
    text = page.read_text()
    assert not re.search(r"TODO|FIXME", text)
    assert "Not measured yet" not in text
    for name, table in re.findall(r"<!-- (\w+) -->\n(.*?)<!-- end of \1 -->", text, re.DOTALL):
        assert "| --- |" in table, f"the table {name} is not filled in"
