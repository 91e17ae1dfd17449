"""The estimators under scikit-learn's own checks and tools, and under MAPIE and cleanlab."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits, make_classification, make_regression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

import repulse
from repulse import DataError, Recipe
from repulse.integrations.sklearn import RepulseClassifier, RepulseRegressor

pytestmark = [
    pytest.mark.filterwarnings("ignore::repulse.FitWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning"),
]

HEADS = {"epochs": 1, "heads": 3, "space": "none", "tap_scale": 0.2}
SMALL = {"hidden": (16,), "epochs": 20, "lr": 3e-2}
CLASSIFIER = RepulseClassifier(**SMALL, recipe=Recipe(**HEADS))
REGRESSOR = RepulseRegressor(**SMALL, recipe=Recipe(task="regression", **HEADS))


@pytest.fixture(scope="module")
def classes():
    X, y = make_classification(200, 6, n_informative=4, class_sep=2, random_state=0)
    return X, np.array(["no", "yes"])[y]


@pytest.fixture(scope="module")
def numbers():
    return make_regression(200, 5, noise=5.0, random_state=0)


@pytest.mark.parametrize("estimator", [CLASSIFIER, REGRESSOR], ids=["classifier", "regressor"])
def test_the_checks_of_scikit_learn_pass(estimator):
    found = check_estimator(estimator, on_fail="raise", on_skip=None)
    assert {result["check_name"] for result in found if result["status"] != "passed"} <= {"check_array_api_input"}
    assert len(found) > 45


def test_a_classifier_knows_what_it_does_not_know(classes):
    X, y = classes
    fitted = RepulseClassifier(hidden=(16,), epochs=25, lr=3e-2, recipe=Recipe(epochs=60)).fit(X, y)
    assert fitted.classes_.tolist() == ["no", "yes"]
    assert fitted.score(X, y) > 0.85
    probs = fitted.predict_proba(X)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-12)
    assert fitted.predict(X).tolist() == fitted.classes_[probs.argmax(axis=1)].tolist()
    far = X + 100
    assert np.median(fitted.epistemic(far)) > 3 * np.median(fitted.epistemic(X))
    p = fitted.predict_uncertainty(X)
    np.testing.assert_array_equal(p.epistemic, fitted.epistemic(X))
    np.testing.assert_array_equal(p.aleatoric, fitted.aleatoric(X))


def test_a_regressor_predicts_in_the_units_of_its_targets(numbers):
    X, y = numbers
    fitted = RepulseRegressor(hidden=(32,), epochs=100, lr=1e-2, recipe=Recipe(task="regression", epochs=20)).fit(X, y)
    mean, std = fitted.predict(X, return_std=True)
    assert fitted.score(X, y) > 0.9
    assert 1 < np.median(std) < 50
    assert 0.8 < np.mean(np.abs(y - mean) < 2 * std) <= 1
    np.testing.assert_allclose(fitted.predict(X), mean)
    shifted = RepulseRegressor(**fitted.get_params()).fit(X, 1000 + 10 * y)
    np.testing.assert_allclose(shifted.predict(X), 1000 + 10 * mean, rtol=1e-3)


def test_tables_of_pandas_pipelines_and_searches(classes):
    X, y = classes
    frame = pd.DataFrame(X, columns=[f"column {i}" for i in range(6)])
    fitted = CLASSIFIER.fit(frame, y)
    assert fitted.feature_names_in_.tolist() == list(frame)
    np.testing.assert_array_equal(fitted.predict(frame), RepulseClassifier(**fitted.get_params()).fit(X, y).predict(X))
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame.rename(columns={"column 0": "other"}))
    assert cross_val_score(make_pipeline(StandardScaler(), CLASSIFIER), X, y, cv=2).mean() > 0.75
    search = GridSearchCV(CLASSIFIER, {"hidden": [(4,), (16,)]}, cv=2).fit(X, y)
    assert search.best_params_["hidden"] in {(4,), (16,)}
    assert search.best_estimator_.epistemic(X).shape == (200,)


def test_a_network_that_is_given_is_only_retrofitted():
    X, y = load_digits(return_X_y=True)
    images = X.reshape(-1, 1, 8, 8)[:300] / 16
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    fitted = RepulseClassifier(network, recipe=Recipe(**HEADS)).fit(images, y[:300])
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert fitted.ensemble_.model is network
    assert fitted.predict_proba(images[:5]).shape == (5, 10)
    some = y[:300] < 4  # the network has ten classes, whatever the rows have
    assert RepulseClassifier(network, recipe=Recipe(**HEADS)).fit(images[some], y[:300][some]).classes_.tolist() == [
        *range(10)
    ]
    with pytest.raises(DataError, match="`y` to be of 10 classes"):
        RepulseClassifier(network).fit(images, np.array(["even", "odd"])[y[:300] % 2])
    with pytest.raises(DataError, match="a table of rows and columns, or a `network`"):
        CLASSIFIER.fit(images, y[:300])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation_fraction": 1.0}, "`validation_fraction` to be at least 0 and below 1"),
        ({"recipe": Recipe(task="regression")}, "`recipe` to be one of a classification"),
        ({"hidden": (0,)}, "to be a positive integer, but got 0"),
        ({"lr": -1.0}, "`lr` to be a positive, finite number"),
    ],
)
def test_bad_options_are_refused_by_fit(options, message, classes):
    with pytest.raises(ValueError, match=message):
        RepulseClassifier(**options).fit(*classes)


def test_the_ensemble_inside_is_saved_and_loaded(classes, tmp_path):
    X, y = classes
    fitted = CLASSIFIER.fit(X, y)
    fitted.ensemble_.save(tmp_path)
    again = repulse.load(tmp_path, fitted.ensemble_.model)
    rows = fitted._inputs(X[:5])
    assert torch.equal(again.predict(rows).probs, fitted.ensemble_.predict(rows).probs)


def test_mapie_makes_sets_and_intervals_of_them(classes, numbers):
    from mapie.classification import SplitConformalClassifier
    from mapie.regression import SplitConformalRegressor

    X, y = classes
    sets = SplitConformalClassifier(CLASSIFIER.fit(X[:100], y[:100]), confidence_level=0.9, prefit=True)
    _, found = sets.conformalize(X[100:], y[100:]).predict_set(X[100:])
    right = found[np.arange(100), (y[100:] == "yes").astype(int), 0]
    assert right.mean() >= 0.9  # on the rows that it was calibrated on, by construction
    X, y = numbers
    intervals = SplitConformalRegressor(REGRESSOR.fit(X[:100], y[:100]), confidence_level=0.8, prefit=True)
    _, ends = intervals.conformalize(X[100:], y[100:]).predict_interval(X[100:])
    inside = (ends[:, 0, 0] <= y[100:]) & (y[100:] <= ends[:, 1, 0])
    assert inside.mean() >= 0.8


def test_cleanlab_finds_labels_that_were_exchanged(classes):
    from cleanlab.classification import CleanLearning

    X, y = classes
    codes = (y == "yes").astype(int)
    codes[:10] = 1 - codes[:10]
    issues = CleanLearning(CLASSIFIER, cv_n_folds=2, seed=0).find_label_issues(X, codes)
    assert issues["is_label_issue"][:10].mean() > 2 * issues["is_label_issue"][10:].mean()


def test_several_numbers_at_once_each_in_its_units():
    X, y = make_regression(200, 5, n_targets=2, noise=5.0, random_state=0)
    y = y * [1.0, 100.0]
    recipe = Recipe(task="regression", epochs=20)
    fitted = RepulseRegressor(hidden=(32,), epochs=100, lr=1e-2, recipe=recipe).fit(X, y)
    mean, std = fitted.predict(X, return_std=True)
    assert mean.shape == std.shape == y.shape
    assert fitted.score(X, y) > 0.9
    assert 20 < np.median(std[:, 1] / std[:, 0]) < 500
    assert 0.8 < np.mean(np.abs(y - mean) < 2 * std) <= 1
    p = fitted.predict_uncertainty(X)
    np.testing.assert_allclose(p.target(1).mean, mean[:, 1], rtol=1e-5)


def test_several_labels_at_once():
    X, _ = make_classification(200, 6, n_informative=4, random_state=0)
    y = (X[:, :3] > 0).astype(int)
    fitted = RepulseClassifier(hidden=(16,), epochs=60, lr=3e-2, recipe=Recipe(task="multilabel", epochs=20)).fit(X, y)
    probs = fitted.predict_proba(X)
    assert probs.shape == y.shape
    np.testing.assert_array_equal(fitted.predict(X), probs > 0.5)
    assert np.mean(fitted.predict(X) == y) > 0.9
    assert np.median(fitted.epistemic(X + 100)) > np.median(fitted.epistemic(X))
    with pytest.raises(DataError, match="a multilabel"):
        RepulseClassifier(**SMALL, recipe=Recipe(task="regression")).fit(X, y)
