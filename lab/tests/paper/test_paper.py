"""The paper's numbers, spot-checked by hand against the paper."""

from __future__ import annotations

import statistics

import pytest

from repulse import RecipeError
from repulse_lab.paper.printed import marked, printed

SPOTS = {
    ("B.2", "LeNet", "MAP", None, "accuracy"): 77.94,
    ("B.2", "VGG-11", "DE-5", None, "ece"): 4.85,
    ("B.2", "VGG-16", "DDU", None, "clean ambiguous"): 73.31,
    ("B.2", "ResNet-18", "SNGP", None, "ambiguous mean"): 69.61,
    ("B.2", "ResNet-18", "fs-RLL-E", "letters", "ambiguous mean"): 99.55,
    ("B.3", "LeNet", "fs-RLL-E", "KMNIST", "ambiguous letters"): 88.17,
    ("B.3", "VGG-11", "fs-RLL-E", "Omniglot", "ambiguous FashionMNIST"): 91.65,
    ("B.3", "VGG-16", "fs-RLL-E", "training data", "ambiguous Omniglot"): 94.33,
    ("B.3", "ResNet-18", "LL-E", None, "ambiguous KMNIST"): 93.32,
    ("B.4", "ResNet-18", "SNGP", None, "textures auroc"): 98.18,
    ("B.4", "ResNet-18 (SN 3)", "fs-RLL-E", "CIFAR-100", "ece"): 2.02,
    ("B.4", "ResNet-18 (SN 7)", "DE-5", None, "noise auroc"): 98.94,
    ("B.5", "WRN-28-10", "LL-E", None, "ece"): 0.97,
    ("B.5", "ResNet-50", "LL-Laplace", None, "SVHN auroc"): 90.88,
    ("B.5", "ResNet-101", "fs-RLL-E", "Tiny ImageNet", "CIFAR-100 auroc"): 89.73,
    ("B.6", "ResNet-101", "fs-RLL-E", "Tiny ImageNet", "CIFAR-100 auroc"): 89.82,
    ("B.6", "WRN-28-10", "fs-RLL-E", "textures", "SVHN auroc"): 95.55,
    ("B.6", "ResNet-50", "fs-RLL-E", "SVHN", "Places365 auroc"): 82.73,
    ("B.6", "ResNet-18", "fs-RLL-E", "noise", "noise auroc"): 100.0,
}
"""A number of every table and of most columns."""

NONE = [
    ("B.2", "ResNet-18", "LL-Laplace", None, "clean mean"),  # printed as nan
    ("B.5", "ResNet-101", "LL-Laplace", None, "accuracy"),  # no such row
    ("B.2", "LeNet", "fs-RLL-E", "KMNIST", "accuracy"),
    ("B.2", "LeNet", "fs-RLL-E", None, "accuracy"),
    ("B.2", "LeNet", "accuracy", None, "accuracy"),
    ("B.5", "ResNet-20", "MAP", None, "accuracy"),
    ("1", "ResNet-18", "MAP", None, "accuracy"),
]
CIFAR = [f"{name} auroc" for name in ("CIFAR-100", "Tiny ImageNet", "Places365", "textures", "SVHN", "noise")]


@pytest.mark.parametrize("spot", SPOTS, ids=str)
def test_a_number_is_the_one_in_the_paper(spot):
    assert printed(*spot) == SPOTS[spot]


@pytest.mark.parametrize("spot", NONE, ids=str)
def test_what_the_paper_does_not_print_is_none(spot):
    assert printed(*spot) is None


def test_emnist_and_its_stand_in_are_one():
    for repulsion, metric in (("EMNIST", "ambiguous EMNIST"), ("letters", "ambiguous letters")):
        assert printed("B.3", "VGG-16", "fs-RLL-E", repulsion, metric) == 96.23


@pytest.mark.parametrize(
    ("row", "mean"),
    [
        (("B.5", "WRN-28-10", "MAP", None), 91.448),
        (("B.5", "ResNet-101", "DDU", None), 91.960),
        (("B.5", "ResNet-50", "DE-5", None), 92.932),
        (("B.6", "ResNet-18", "fs-RLL-E", "CIFAR-100"), 93.907),
        (("B.4", "ResNet-18 (SN 7)", "SNGP", None), 89.120),
    ],
)
def test_means_over_sets_added_up_by_hand(row, mean):
    assert statistics.fmean(printed(*row, metric) for metric in CIFAR) == pytest.approx(mean, abs=6e-4)


def test_tables_agree_where_they_print_the_same_networks():
    for metric in CIFAR:
        for network in ("ResNet-18", "WRN-28-10", "ResNet-50", "ResNet-101"):
            for method in ("MAP", "DDU", "LL-E"):
                assert printed("B.5", network, method, None, metric) == printed("B.6", network, method, None, metric)
        assert printed("B.4", "ResNet-18 (SN 3)", "MAP", None, metric) == printed(
            "B.5", "ResNet-18", "MAP", None, metric
        )


def test_margins_are_three_times_the_gaps_between_two_prints():
    """The rule for a lone run (claims/verdict.py) quotes these gaps."""
    pairs = [
        [printed("B.4", "ResNet-18 (SN 3)", "DE-5", None, m), printed("B.5", "ResNet-18", "DE-5", None, m)]
        for m in (*CIFAR, "ece", "accuracy")
    ]
    *auroc, ece, accuracy = (abs(one - other) for one, other in pairs)
    assert (max(auroc), ece, accuracy) == pytest.approx((0.32, 0.07, 0.06))


def test_marks_of_the_main_tables():
    assert marked("1", "bold") == {
        "accuracy": ["LL-E", "RLL-E"],
        "nll": ["LL-E", "RLL-E"],
        "ece": ["LL-E", "RLL-E"],
        "clean ambiguous": ["LL-E", "RLL-E"],
        "clean mean": ["DDU"],
        "ambiguous mean": ["DDU"],
    }
    assert marked("1", "underlined")["ambiguous mean"] == ["fs-RLL-E + letters"]
    assert marked("2", "bold")["ece"] == ["fs-RLL-E + 16 patches"]
    assert marked("2", "underlined")["accuracy"] == ["MAP", "DDU"]
    assert marked("3", "bold")["noise auroc"] == ["fs-RLL-E + 32 patches", "fs-RLL-E + 16 patches"]
    assert len(marked("3", "plain")["Places365 auroc"]) == 10
    assert "CIFAR-100 auroc" not in marked("3", "bold")


def test_unknown_tables_are_refused():
    with pytest.raises(RecipeError, match=r"Expected `table` to be one of .*'B\.6', but got 'B\.7'"):
        printed("B.7", "LeNet", "MAP", None, "ece")
    with pytest.raises(RecipeError, match=r"Expected `table` to be one of '1', '2', '3', but got 'B\.2'"):
        marked("B.2", "bold")
    with pytest.raises(RecipeError, match="Expected `mark` to be one of 'bold', 'underlined', 'plain', but got 'red'"):
        marked("1", "red")
