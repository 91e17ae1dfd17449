"""Wrong labels come first, copies are found, and the thresholds are those of their formula."""

import pytest
import torch

import repulse
from models import normal, trained_perceptron
from repulse.active.audit import _probably_wrong
from repulse.errors import DataError

WRONG = [3, 50, 77, 110]


def clusters(count, seed):
    y = torch.arange(count) % 3
    centres = torch.tensor([[4.0, 0, 0, 0], [0, 4.0, 0, 0], [0, 0, 4.0, 0]])
    return centres[y] + normal(count, 4, seed=seed), y


@pytest.fixture(scope="module")
def found():
    x, y = clusters(120, 0)
    network = trained_perceptron(x, y, outputs=3)
    x[119] = x[20]
    y = y.clone()
    y[119] = y[20]
    y[WRONG] = (y[WRONG] + 1) % 3
    recipe = repulse.Recipe(epochs=20, heads=4)
    ensemble = repulse.retrofit(
        network, [(x, y)], validation=[clusters(90, 1)], recipe=recipe, class_names=["a", "b", "c"], progress=False
    )
    return ensemble, repulse.audit(ensemble, progress=False)


def test_wrong_labels_come_first(found):
    _, audit = found
    assert set(audit.order[:4].tolist()) == set(WRONG)
    assert audit.mislabelled[WRONG].all()
    assert audit.counts["mislabelled"] < 15


def test_copies_are_found(found):
    _, audit = found
    assert audit.copy_of[119] == 20
    assert audit.copy_of[20] == 119
    assert audit.counts["copies"] == 2


def test_other_data_is_judged_by_the_training_data(found):
    ensemble, _ = found
    x, y = clusters(30, 2)
    y = y.clone()
    y[5] = (y[5] + 1) % 3
    x[6] += 40
    audit = repulse.audit(ensemble, [(x, y)], progress=False)
    assert int(audit.order[0]) == 5
    assert audit.foreign[6]
    assert (audit.copy_of == -1).all()


def test_thresholds_of_confident_learning():
    probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]])
    targets = torch.tensor([0, 0, 1, 1])
    # Class 0 is usually 0.75 for its own, class 1 0.55: the last input is below both, none is wrong for sure.
    assert _probably_wrong(probs, targets).tolist() == [False, False, False, False]
    probs[3] = torch.tensor([0.8, 0.2])  # class 1 is now 0.5; class 0 is above its 0.75 there
    assert _probably_wrong(probs, targets).tolist() == [False, False, False, True]


def test_as_many_are_called_wrong_as_the_sure_ones_let_expect():
    # Of label 1 two sure inputs in four are of class 0, so that about half of all six with this label are wrong.
    sure, unsure = [0.9, 0.1], [0.6, 0.4]
    probs = torch.tensor([sure] * 4 + [sure, sure, [0.1, 0.9], [0.1, 0.9], unsure, [0.55, 0.45]])
    targets = torch.tensor([0] * 4 + [1] * 6)
    assert _probably_wrong(probs, targets).nonzero().squeeze(1).tolist() == [4, 5, 8]


def test_a_label_that_is_predicted_is_not_called_wrong():
    probs = torch.tensor([[0.9, 0.1], [0.55, 0.45], [0.6, 0.4]])
    targets = torch.tensor([0, 0, 1])
    # Of the second input class 1 reaches its usual 0.4, class 0 stays below its own 0.73; it is predicted all the same.
    assert _probably_wrong(probs, targets).tolist() == [False, False, False]


def test_quality_is_the_probability_of_the_label(found):
    ensemble, audit = found
    probs = ensemble.heads.predict(ensemble.kept.train.float()).probs
    torch.testing.assert_close(audit.quality, probs.gather(1, audit.targets.unsqueeze(1)).squeeze(1))


def test_the_page_and_the_table(found, tmp_path):
    _, audit = found
    assert "mislabelled" in str(audit)
    page = audit.page(tmp_path / "audit.html").read_text()
    assert "<table>" in page
    assert page.count("<tr>") == 121
    assert "copy of 20" in page or "copy of 119" in page


def test_regressions_have_no_labels_to_audit():
    x = normal(40, 4)
    network = trained_perceptron(x, x[:, 0], outputs=1)
    recipe = repulse.Recipe(epochs=1, heads=2, task="regression")
    ensemble = repulse.retrofit(network, [(x, x[:, 0])], recipe=recipe, progress=False)
    with pytest.raises(DataError, match="a classifier"):
        repulse.audit(ensemble)
