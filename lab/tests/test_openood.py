"""OpenOOD's protocol: the metrics by their definitions, and a table of its form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from repulse import Recipe
from repulse.baselines import METHODS
from repulse.integrations.openood import METRICS, postprocessor
from repulse_lab.openood import (
    FAR,
    NEAR,
    FeaturePostprocessor,
    Loader,
    LogitPostprocessor,
    evaluate,
    loaders,
    markdown,
    measure,
    postprocessors,
)


def inferred(confidence, predicted=None, labels=None):
    confidence = np.array(confidence)
    zeros = np.zeros(len(confidence), int)
    return zeros if predicted is None else predicted, confidence, zeros if labels is None else labels


def test_metrics_by_their_definitions():
    inside, outside = (
        inferred([0.9, 0.8, 0.7, 0.2], np.array([0, 1, 1, 1]), np.array([0, 1, 1, 0])),
        [0.6, 0.5, 0.3, 0.1],
    )
    found = dict(zip(METRICS, measure(inside, inferred(outside)), strict=True))
    pairs = [(i, o) for i in inside[1] for o in outside]
    assert found["AUROC"] == pytest.approx(100 * np.mean([i > o for i, o in pairs]))
    assert found["FPR@95"] == pytest.approx(25)  # the threshold that finds all four flags the 0.2
    assert found["ACC"] == 75
    perfect = measure(inferred([2.0, 3.0]), inferred([0.0, 1.0]))
    assert perfect == [0.0, 100.0, 100.0, 100.0, 100.0]


def images(count, seed):
    return torch.randint(256, (count, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def data():
    known = Loader(images(230, 0), torch.arange(230) % 4)
    strange = {name: Loader(images(40, 1) // 64, -torch.ones(40, dtype=torch.int64)) for name in (*NEAR, *FAR)}
    return {
        "id": {"train": known, "val": known, "test": known},
        "near": {name: strange[name] for name in NEAR},
        "far": {name: strange[name] for name in FAR},
    }


@pytest.mark.filterwarnings("ignore::repulse.FitWarning")  # of an untrained network
def test_a_table_of_its_form(data):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)
        ).eval()
    assert [len(batch["label"]) for batch in data["id"]["test"]] == [200, 30]
    processors = {
        "msp": LogitPostprocessor(lambda logits: logits.softmax(dim=1).amax(dim=1)),
        "knn": FeaturePostprocessor("KNN"),
        "repulse": postprocessor(recipe=Recipe(epochs=3, heads=3), progress=False),
    }
    tables = {name: evaluate(net, processor, data) for name, processor in processors.items()}
    assert list(tables["repulse"]) == [*NEAR, "nearood", *FAR, "farood"]
    for table in tables.values():
        assert table["farood"] == pytest.approx(np.mean([table[name] for name in FAR], axis=0).tolist())
    with torch.no_grad():
        logits = net(torch.cat([batch["data"] for batch in data["id"]["test"]]))
    right = (logits.argmax(dim=1) == data["id"]["test"].labels).float().mean()
    assert tables["msp"]["tin"][-1] == tables["knn"]["tin"][-1] == pytest.approx(100 * float(right))
    written = markdown(tables).splitlines()
    assert written[0] == "| set | postprocessor | FPR@95 | AUROC | AUPR_IN | AUPR_OUT | ACC |"
    assert len(written) == 2 + 3 * 6


def test_every_row_is_a_method_that_there_is():
    assert {p.name for p in postprocessors().values() if isinstance(p, FeaturePostprocessor)} < set(METHODS)


@pytest.mark.data
def test_the_sets_of_the_benchmark(data_root):
    found = loaders(data_root)
    assert {name: len(loader.labels) for name, loader in found["id"].items()} == {
        "train": 50_000,
        "val": 1000,
        "test": 9000,
    }
    for split, names in (("near", NEAR), ("far", FAR)):
        assert tuple(found[split]) == names
        for loader in found[split].values():
            assert loader.images.shape[1:] == (3, 32, 32)
            assert set(loader.labels.tolist()) == {-1}
