"""Claims about CIFAR-10 and CIFAR-100: calibration, detection of other sets, repulsion sets, corruptions."""

from __future__ import annotations

from repulse_lab.paper.claims.digits import DE, PRINTED_DIGIT, bold
from repulse_lab.paper.claims.relations import Claim, Side, better, cases, no_worse, same

NEAR, FAR = ("CIFAR-100", "Tiny ImageNet"), ("Places365", "textures", "SVHN", "noise")
SETS = (*NEAR, *FAR)
TRAINING, NATURAL, SIMILAR = (f"fs-RLL-E + {name}" for name in ("training data", "Tiny ImageNet", "CIFAR-100"))
PATCHES = ("fs-RLL-E + 16 patches", "fs-RLL-E + 32 patches")
ONE_BY_ONE = ("ece * 1", "ece * 3", "ece * 5")


def auroc(*sets: str) -> list[str]:
    return [f"{name} auroc" for name in sets]


INSIDE = (
    Claim(
        "heads-calibrate-cifar10",
        "Retraining the last layer as an ensemble improves the NLL and ECE of the network on CIFAR-10.",
        "Section VIII-D, Table 2",
        ("cifar10",),
        better(cases("LL-E", "MAP", ("nll", "ece"))),
    ),
    Claim(
        "heads-calibrate-cifar100",
        "Retraining the last layer as an ensemble improves the NLL and ECE of the network on CIFAR-100.",
        "Section VIII-D, Table 3",
        ("cifar100",),
        better(cases("LL-E", "MAP", ("nll", "ece"))),
    ),
    Claim(
        "accuracy-as-before",
        "Retraining the last layer does not change the accuracy.",
        "Section VIII-D, Table 2",
        ("cifar10", "cifar100"),
        same(cases("LL-E", "MAP", "accuracy")),
    ),
    Claim(
        "patches-calibrate",
        "Repulsion on shuffled patches lowers the ECE further.",
        "Section VIII-D, Table 2",
        ("cifar10",),
        better(cases(PATCHES, "LL-E", "ece")),
    ),
    Claim(
        "deep-ensemble-best-inside",
        "Deep ensembles have the best accuracy and NLL.",
        "Section VIII-D, Table 2",
        ("cifar10",),
        better(cases(DE, ("MAP", "SNGP", "LL-Laplace", "LL-E", NATURAL, *PATCHES), ("accuracy", "nll"))),
    ),
)

OUTSIDE = (
    Claim(
        "heads-detect-objects",
        "LL-E detects every other set better than the entropy of the network does.",
        "Section VIII-D, Table 2",
        ("cifar10", "cifar100"),
        better(cases("LL-E", "MAP", auroc(*SETS))),
    ),
    Claim(
        "natural-images-help",
        "Repulsion on Tiny ImageNet detects Tiny ImageNet, Places365, textures and noise better than LL-E.",
        "Section VIII-D, Tables 2, B.5 and B.6",
        ("cifar10", "repulsion-sets"),
        better(cases(NATURAL, "LL-E", auroc("Tiny ImageNet", "Places365", "textures", "noise"))),
    ),
    Claim(
        "similar-images-help-everywhere",
        "Repulsion on CIFAR-100 detects every set better than LL-E.",
        "Section VIII-D, Table B.6",
        ("cifar10", "repulsion-sets"),
        better(cases(SIMILAR, "LL-E", auroc(*SETS))),
    ),
    Claim(
        "training-data-hurts-objects",
        "Repulsion on the training data worsens calibration and detection.",
        "Section VIII-D, Table 2",
        ("cifar10",),
        better(cases("LL-E", TRAINING, ("ece", *auroc(*SETS))), need="most"),
    ),
    Claim(
        "ddu-far",
        "DDU detects sets far from the training data better than the network does.",
        "Section VIII-D, Table 2",
        ("cifar10", "architectures"),
        better(cases("DDU", "MAP", auroc("textures", "SVHN", "noise"))),
    ),
    Claim(
        "ddu-not-near",
        "DDU is not better than the network, by more than half a point, on sets near the training data.",
        "Section VIII-D, Table 2",
        ("cifar10",),
        no_worse(cases("MAP", "DDU", auroc(*NEAR)), 0.5),
    ),
    Claim(
        "competes-with-deep-ensembles",
        "Repulsion on Tiny ImageNet detects other sets, on average, at most two points worse than deep ensembles.",
        "Abstract, Table 2",
        ("cifar10",),
        no_worse(cases(NATURAL, DE, "mean auroc"), 2.0),
    ),
    Claim(
        "beats-deep-ensembles-cifar100",
        "On CIFAR-100, repulsion on Tiny ImageNet detects most sets better than deep ensembles.",
        "Section VIII-D, Table 3",
        ("cifar100",),
        better(cases(NATURAL, DE, auroc("Tiny ImageNet", *FAR)), need="most"),
    ),
    Claim(
        "bold-table-2",
        "The rows that Table 2 prints in bold are the best of their columns.",
        "Table 2",
        ("cifar10",),
        no_worse(bold("2"), PRINTED_DIGIT),
    ),
    Claim(
        "bold-table-3",
        "The rows that Table 3 prints in bold are the best of their columns.",
        "Table 3",
        ("cifar100",),
        no_worse(bold("3"), PRINTED_DIGIT),
    ),
)

SETTINGS = (
    Claim(
        "spectral-norm-no-matter",
        "Spectral normalisation moves no AUROC by more than 1.8 points, but for SNGP.",
        "Appendix B.4, Table B.4",
        ("spectral-norm",),
        same(
            [
                (Side(row, metric, {"network": f"ResNet-18 (SN {bound})"}), Side(row, metric, {"network": "ResNet-18"}))
                for row in ("MAP", "DDU", "LL-Laplace", "LL-E", SIMILAR, NATURAL, DE)
                for metric in auroc(*SETS)
                for bound in (3, 7)
            ],
            1.8,
        ),
    ),
    Claim(
        "every-network-detects",
        "Repulsion on Tiny ImageNet improves the detection of other sets on every network.",
        "Appendix B.5, Table B.5",
        ("architectures",),
        better(cases(NATURAL, ("MAP", "LL-E"), "mean auroc")),
    ),
    Claim(
        "matching-set-best-objects",
        "No other repulsion set detects a set better than that set itself (Tiny ImageNet excepted).",
        "Table B.6",
        ("repulsion-sets",),
        no_worse(
            [
                (Side(f"fs-RLL-E + {name}", f"{name} auroc"), Side(f"fs-RLL-E + {other}", f"{name} auroc"))
                for name in ("CIFAR-100", "textures", "SVHN", "noise")
                for other in SETS
                if other not in (name, "Places365")
            ],
            PRINTED_DIGIT,
        ),
    ),
    Claim(
        "matching-set-against-ddu",
        "Repulsion on the set to be detected mostly is at least as good as DDU, to half a point.",
        "Appendix B.5, Table B.6",
        ("repulsion-sets",),
        no_worse(
            [
                (Side(f"fs-RLL-E + {name}", f"{name} auroc"), Side("DDU", f"{name} auroc"))
                for name in SETS
                if name != "Places365"
            ],
            0.5,
            need="most",
        ),
    ),
    Claim(
        "narrow-sets-hurt",
        "Repulsion on narrow sets (SVHN, noise) makes the detection of near sets worse than LL-E.",
        "Table B.6",
        ("repulsion-sets",),
        better(cases("LL-E", ("fs-RLL-E + SVHN", "fs-RLL-E + noise"), auroc(*NEAR))),
    ),
    Claim(
        "textures-generalise",
        "Repulsion on textures helps to detect SVHN and noise.",
        "Appendix B.5, Table B.6",
        ("repulsion-sets",),
        better(cases("fs-RLL-E + textures", "LL-E", auroc("SVHN", "noise"))),
    ),
    Claim(
        "not-vice-versa",
        "Repulsion on SVHN or noise mostly does not help, by more than half a point, to detect textures.",
        "Appendix B.5, Table B.6",
        ("repulsion-sets",),
        no_worse(cases("LL-E", ("fs-RLL-E + SVHN", "fs-RLL-E + noise"), auroc("textures")), 0.5, need="most"),
    ),
)  # fmt: skip

CORRUPTION = (
    Claim(
        "heads-calibrate-corrupted",
        "LL-E has a lower NLL and ECE than the network on corrupted images.",
        "Section VIII-E, Figure 6",
        ("corruption",),
        better(cases("LL-E", "MAP", ("nll mean", "ece mean"))),
    ),
    Claim(
        "every-corruption",
        "LL-E has a lower ECE than the network for most corruptions, one by one.",
        "Appendix B.1",
        ("corruption",),
        better(cases("LL-E", "MAP", ONE_BY_ONE), need="most"),
    ),
    Claim(
        "repulsion-calibrates-corrupted",
        "On corrupted CIFAR-10, fs-RLL-E has a lower ECE than LL-E, LL-Laplace and SNGP.",
        "Section VIII-E, Figure 6",
        ("corruption",),
        better(
            cases(
                (NATURAL, "fs-RLL-E + 16 patches"), ("LL-E", "LL-Laplace", "SNGP"), "ece mean", collection="CIFAR-10-C"
            )
        ),
    ),
    Claim(
        "corrupted-like-deep-ensembles",
        "On corrupted CIFAR-10, the ECE of fs-RLL-E is at most one point above that of deep ensembles.",
        "Section VIII-E, Figure 6",
        ("corruption",),
        no_worse(cases((NATURAL, "fs-RLL-E + 16 patches"), DE, "ece mean", collection="CIFAR-10-C"), 1.0),
    ),
    Claim(
        "no-gain-corrupted-cifar100",
        "On corrupted CIFAR-100, repulsion does not lower the ECE of LL-E by more than a point.",
        "Section VIII-E, Figure 6",
        ("corruption",),
        no_worse(cases("LL-E", NATURAL, "ece mean", collection="CIFAR-100-C"), 1.0),
    ),
)

CLAIMS = (*INSIDE, *OUTSIDE, *SETTINGS, *CORRUPTION)
