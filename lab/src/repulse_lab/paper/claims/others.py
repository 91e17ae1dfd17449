"""Claims about toy problems, about what heads cost, and those that hold for digits and objects alike."""

from __future__ import annotations

from repulse_lab.paper.claims import digits, objects
from repulse_lab.paper.claims.relations import Claim, Side, better, cases, no_worse, same

REPULSION_SETS = ("letters", "KMNIST", "FashionMNIST", "Omniglot", "CIFAR-100", "Tiny ImageNet", "textures")
PATCHES = (*digits.PATCHES, objects.PATCHES[1])
REPELLED = (*PATCHES, *(f"fs-RLL-E + {name}" for name in REPULSION_SETS))

CLAIMS = (
    Claim(
        "toy-doubt-grows",
        "On toy problems, predictions of fs-RLL-E spread more far from the training data than near it.",
        "Section VIII-A, Figure 3",
        ("toy",),
        better([(Side("fs-RLL-E + *", "std far"), Side("fs-RLL-E + *", "std near"))]),
    ),
    Claim(
        "toy-ensembles-confident",
        "On toy problems, far from the data, deep ensembles are more confident than fs-RLL-E.",
        "Section VIII-A, Figure 3",
        ("toy",),
        better(cases("fs-RLL-E + *", "deep ensemble", "std far")),
    ),
    Claim(
        "fewer-parameters",
        "Last-layer ensembles have fewer parameters than deep ensembles.",
        "Abstract, Section VI",
        ("dirty-mnist", "cifar10"),
        better(cases("LL-E", "DE-*", "parameters")),
    ),
    Claim(
        "parameter-repulsion",
        "Repulsion between the parameters of the last layers (RLL-E) adds nothing to LL-E.",
        "Sections IV-A and VIII-B, Tables 1 and 2",
        ("dirty-mnist", "cifar10"),
        same(cases("RLL-E", "LL-E", (*digits.METRICS, *objects.auroc(*objects.SETS)))),
    ),
    Claim(
        "accuracy-unharmed",
        "Repulsion on anything but the training data costs no accuracy: fs-RLL-E is within 0.1 points of LL-E.",
        "Section IX, Appendix B.3, Tables B.2 to B.5",
        ("dirty-mnist", "inductive-bias", "feature-collapse", "cifar10", "spectral-norm", "architectures"),
        no_worse(cases(REPELLED, "LL-E", "accuracy"), 0.1),
    ),
    Claim(
        "heads-calibrate-every-network",
        "LL-E and fs-RLL-E have a lower ECE than the network they sit on, whichever that is.",
        "Sections VIII-B and VIII-D, Appendix B.5, Tables B.2, B.4 and B.5",
        ("dirty-mnist", "inductive-bias", "cifar10", "spectral-norm", "architectures"),
        better(cases(("LL-E", digits.LETTERS, *digits.PATCHES, objects.NATURAL), "MAP", "ece")),
    ),
)
