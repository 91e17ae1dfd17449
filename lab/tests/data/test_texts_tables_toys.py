"""Queries, regression tables, and what is drawn from a seed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from data_files import write
from repulse.errors import DataError, RecipeError
from repulse_lab import data
from repulse_lab.data import toys


def test_clinc150_by_split(tmp_path):
    parts = {
        "train": [["play it", "music"], ["rain?", "weather"]],
        "val": [["sun?", "weather"]],
        "test": [["snow?", "weather"]],
        "oos_train": [["a", "oos"]],
        "oos_val": [["b", "oos"]],
        "oos_test": [["c", "oos"]],
    }
    write(tmp_path, "files/clinc150/data_full.json", json.dumps(parts))
    write(tmp_path, "files/clinc150/all_wiki_sents.txt", "One.\n\nTwo.\n")
    val = data.load("clinc150", "val", tmp_path)
    assert (val.inputs, val.targets.tolist(), val.classes) == (["sun?"], [1], ("music", "weather"))
    outside = [data.load("clinc150", split, tmp_path) for split in ("oos-train", "oos-val", "oos")]
    assert [each.inputs for each in outside] == [["a"], ["b"], ["c"]]
    assert outside[0].targets is None
    assert data.load("clinc150", "wikipedia", tmp_path)[1:].inputs == ["Two."]


@pytest.mark.parametrize("folder", ["files/uci/yacht", "UCI_Datasets/yacht/data"])
def test_uci_tables_are_cut_by_their_index_files(tmp_path, folder):
    table = np.random.default_rng(0).normal(size=(4, 7))
    write(tmp_path, f"{folder}/data.txt", "\n".join(" ".join(f"{x:.6f}" for x in row) for row in table) + "\n\n")
    write(tmp_path, f"{folder}/index_features.txt", "0\n1\n2\n3\n4\n6\n")
    write(tmp_path, f"{folder}/index_target.txt", "5\n")
    write(tmp_path, f"{folder}/index_train_0.txt", "2\n0\n3\n")
    write(tmp_path, f"{folder}/index_test_0.txt", "1\n")
    train, test = (data.load("uci-yacht", f"{part}-0", tmp_path) for part in ("train", "test"))
    np.testing.assert_allclose(train.inputs, table[[2, 0, 3]][:, [0, 1, 2, 3, 4, 6]], atol=1e-6)
    np.testing.assert_allclose(test.targets, table[[1], 5], atol=1e-6)
    write(tmp_path, f"{folder}/index_test_0.txt", "4\n")
    with pytest.raises(DataError, match="from 0 to 3"):
        data.load("uci-yacht", "test-0", tmp_path)


def test_noise_is_uniform_and_its_halves_differ(monkeypatch):
    monkeypatch.delenv("REPULSE_DATA", raising=False)
    state = torch.random.get_rng_state()
    repulsion, evaluation = (data.load("noise", part) for part in ("repulsion", "evaluation"))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(repulsion.inputs, data.load("noise", "repulsion").inputs)
    assert repulsion.inputs.shape == (10_000, 3, 32, 32)
    assert repulsion.files == ()
    share = torch.bincount(repulsion.inputs.flatten(), minlength=256) / repulsion.inputs.numel()
    assert (share * 256 - 1).abs().max() < 0.05
    assert (repulsion.inputs == evaluation.inputs).float().mean() < 0.005
    assert toys.noise("evaluation", 7, (1, 28, 28)).inputs.shape == (7, 1, 28, 28)
    with pytest.raises(RecipeError, match="positive integer"):
        toys.noise(count=0)


def test_toys_are_what_they_say():
    train, test, repulsion = (data.load("two-moons", split) for split in ("train", "test", "repulsion"))
    assert len(train) == 1500
    assert not torch.equal(train.inputs, test.inputs)
    centre = torch.tensor([[0.0, 0.0], [1.0, 0.5]])[train.targets]
    assert ((train.inputs - centre).norm(dim=1) - 1).square().mean().sqrt() == pytest.approx(0.1, rel=0.1)
    low, high = torch.tensor([-3.0, -3.0]), torch.tensor([4.0, 3.5])
    assert bool(((repulsion.inputs >= low) & (repulsion.inputs <= high)).all())
    blobs = toys.gaussians(count=5000)
    for i in range(5):
        blob = blobs.inputs[blobs.targets == i]
        assert blob.mean(dim=0).norm() == pytest.approx(5, abs=0.15)
        assert blob.std(dim=0).tolist() == pytest.approx([1, 1], abs=0.1)
    sine = toys.sine(count=4000)
    x = sine.inputs.squeeze(1)
    assert bool((((x >= 1.5) & (x <= 2.5)) | ((x >= 4.5) & (x <= 6))).all())
    assert int((x < 3).sum()) == 2000
    assert (sine.targets - x * x.sin()).std() == pytest.approx(0.25, rel=0.05)
    assert toys.sine("test", 1000).inputs.amax() <= 7 < toys.sine("repulsion", 1000).inputs.amax()


def test_tables_of_mlbench_are_read_with_categories_as_numbers(tmp_path):
    pandas, rdata = pytest.importorskip("pandas"), pytest.importorskip("rdata")
    numbers = np.random.default_rng(0).normal(size=(3, 33))
    frame = pandas.DataFrame(numbers, columns=[f"V{i}" for i in range(2, 35)])
    frame.insert(0, "V1", pandas.Categorical(["b", "a", "b"]))
    frame["Class"] = pandas.Categorical(["good", "bad", "good"])
    path = tmp_path / "mlbench" / "data" / "Ionosphere.rda"
    path.parent.mkdir(parents=True)
    rdata.write_rda(path, {"Ionosphere": frame})
    table = data.load("mlbench-ionosphere", "all", tmp_path)
    assert table.inputs[:, 0].tolist() == [1, 0, 1]
    np.testing.assert_allclose(table.inputs[:, 1:], numbers, rtol=1e-6)
    assert (table.targets.tolist(), table.classes) == ([1, 0, 1], ("bad", "good"))
