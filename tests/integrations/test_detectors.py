"""pytorch-ood with its own package, and OpenOOD by a small stand-in of what it calls."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import torch

import repulse
from models import normal, perceptron, trained_perceptron
from repulse import DataError, Recipe
from repulse.integrations import openood
from torchvision_operators import define_missing

QUICK = Recipe(epochs=40, heads=3)
X, Y = normal(60, 4), torch.arange(60) % 5
FAR = 8 * normal(60, 4, seed=1)


@pytest.fixture(scope="module")
def ensemble():
    return repulse.retrofit(perceptron(), [(X, Y)], recipe=QUICK, progress=False)


@pytest.mark.filterwarnings("ignore")  # that library's own
def test_a_detector_of_pytorch_ood(ensemble):
    define_missing()
    from pytorch_ood.api import Detector, RequiresFittingException
    from pytorch_ood.metrics import OODMetrics

    from repulse.integrations.pytorch_ood import RepulseDetector

    detector = RepulseDetector(perceptron(), recipe=QUICK, progress=False)
    assert isinstance(detector, Detector)
    with pytest.raises(RequiresFittingException):
        detector(X)
    assert detector.fit([(X, Y)]) is detector
    assert detector.ensemble.heads.count == 3
    given = RepulseDetector(ensemble).fit([(X, Y)])
    assert given.ensemble is ensemble
    measured = OODMetrics()
    for inputs, labels in ((X, Y), (FAR, -torch.ones(60))):
        measured.update(given(inputs), labels)
    wanted = repulse.metrics.auroc(ensemble.score(X), ensemble.score(FAR))
    assert measured.compute()["AUROC"] == pytest.approx(float(wanted), abs=1e-6)
    assert wanted > 0.7
    assert str(given.to("cpu").device) == "cpu"


def batches(inputs, labels):
    """As OpenOOD's loaders give them."""
    return [
        {"data": x, "label": y, "index": torch.arange(len(x)), "image_name": ["a"] * len(x)}
        for x, y in zip(inputs.split(25), labels.split(25), strict=True)
    ]


@pytest.fixture
def their_package(monkeypatch):
    """The two names of OpenOOD that are imported, and what its evaluator asks of a postprocessor."""

    class BasePostprocessor:
        def __init__(self, config):
            self.config = config

    class Evaluator:
        def __init__(self, net, id_name, data_root="./data", postprocessor=None, batch_size=200):
            if not isinstance(postprocessor, BasePostprocessor):
                raise TypeError("postprocessor should inherit BasePostprocessor in OpenOOD")
            self.net, self.postprocessor, self.batch_size = net, postprocessor, batch_size
            inside = {"train": batches(X, Y), "val": batches(X, Y), "test": batches(X, Y)}
            self.loaders = {"id": inside, "ood": {"near": {"far": batches(FAR, -torch.ones(60).long())}, "far": {}}}
            postprocessor.setup(net, self.loaders["id"], self.loaders["ood"])
            assert not postprocessor.APS_mode or postprocessor.hyperparam_search_done

        def eval_ood(self):
            found = [
                self.postprocessor.inference(self.net, loader, True)
                for loader in (self.loaders["id"]["test"], self.loaders["ood"]["near"]["far"])
            ]
            return [np.concatenate(column) for column in zip(*found, strict=True)]

    package, processors, api = (ModuleType(f"openood{tail}") for tail in ("", ".postprocessors", ".evaluation_api"))
    processors.BasePostprocessor, api.Evaluator = BasePostprocessor, Evaluator
    for module in (package, processors, api):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return BasePostprocessor


def test_openood_runs_it_as_one_more_postprocessor(their_package, ensemble):
    assert isinstance(openood.postprocessor(ensemble), their_package)
    evaluator = openood.evaluator(perceptron(), "cifar10", ensemble, batch_size=25)
    predicted, confidence, labels = evaluator.eval_ood()
    assert evaluator.batch_size == 25
    assert (predicted.dtype, labels.dtype) == (int, int)
    assert (labels == -1).sum() == 60
    np.testing.assert_array_equal(predicted[:60], ensemble.predict(X).labels)
    np.testing.assert_allclose(confidence[60:], -ensemble.score(FAR), rtol=1e-4, atol=1e-7)
    assert confidence[:60].mean() > confidence[60:].mean()


def test_without_an_ensemble_its_setup_retrofits_the_net():
    """With OpenOOD missing, too: nothing of it is needed to call the class."""
    net = trained_perceptron(X, Y)
    processor = openood.postprocessor(recipe=QUICK, progress=False)
    with pytest.raises(DataError, match="set up, by `setup` or with an `ensemble`"):
        processor.postprocess(net, X)
    processor.setup(net, {"train": batches(X, Y), "val": batches(X, Y)}, {})
    assert processor.ensemble.model is net
    assert processor.ensemble.summary().data == "validation"
    labels, confidence = processor.postprocess(net, X)
    assert torch.equal(confidence, -processor.ensemble.score(X))
    assert torch.equal(labels, processor.ensemble.predict(X).labels)


def test_its_evaluator_needs_the_package():
    with pytest.raises(ModuleNotFoundError, match="installed from its repository"):
        openood.evaluator(perceptron(), "cifar10")
