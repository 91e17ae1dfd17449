"""Claims about DirtyMNIST: uncertainty that is split into two kinds, networks, repulsion sets, active learning."""

from __future__ import annotations

from repulse_lab.paper.claims.relations import Claim, Side, better, cases, no_worse, same
from repulse_lab.paper.printed import marked

DE = "DE-*"
METRICS = ("accuracy", "nll", "ece", "clean ambiguous", "clean mean", "ambiguous mean")
DOUBT = ("clean mean", "ambiguous mean")
LETTERS, TRAINING = "fs-RLL-E + letters", "fs-RLL-E + training data"
PATCHES = tuple(f"fs-RLL-E + {count} patches" for count in (16, 8, 4))
SETS = ("letters", "KMNIST", "FashionMNIST", "Omniglot")
RESIDUAL = {"network": "ResNet-18"}
PLAIN = ("LeNet", "VGG-11", "VGG-16")
BY_SET = [f"ambiguous {name}" for name in SETS]
ON_SETS = [f"fs-RLL-E + {name}" for name in SETS]
MAPPED = (DE, "LL-E", "fs-RLL-E + 8 patches")
PRINTED_DIGIT = 0.05
"""Equal as printed with one digit."""


def bold(table: str) -> list[tuple[Side, Side]]:
    """Pair every row that a table prints bold with every one that it does not."""
    found = []
    for metric, rows in marked(table, "bold").items():
        others = [row for mark in ("underlined", "plain") for row in marked(table, mark)[metric]]
        pairs = [(ours.replace("DE-5", DE), theirs.replace("DE-5", DE)) for ours in rows for theirs in others]
        found += [(Side(ours, metric), Side(theirs, metric)) for ours, theirs in pairs]
    return found


DECOMPOSITION = (
    Claim(
        "ll-e-over-map",
        "An ensemble of last layers without repulsion is better than the network it sits on in every metric.",
        "Section VIII-B, Table 1",
        ("dirty-mnist",),
        better(cases("LL-E", "MAP", METRICS)),
    ),
    Claim(
        "letters-help-digits",
        "Repulsion in function space on letters tells unseen sets from digits, and from ambiguous digits, better than "
        "LL-E does.",
        "Section VIII-B, Table 1",
        ("dirty-mnist",),
        better(cases(LETTERS, "LL-E", DOUBT)),
    ),
    Claim(
        "patches-help-digits",
        "Repulsion on shuffled patches of the training images, which needs no other data, is better than LL-E, too.",
        "Section VIII-B, Table 1",
        ("dirty-mnist",),
        better(cases(PATCHES, "LL-E", DOUBT)),
    ),
    Claim(
        "training-data-hurts-digits",
        "Repulsion on the training data is worse than no repulsion.",
        "Section VIII-B, Table 1",
        ("dirty-mnist",),
        better(cases("LL-E", TRAINING, METRICS), need="most"),
    ),
    Claim(
        "bold-table-1",
        "The rows that Table 1 prints in bold are the best of their columns.",
        "Table 1",
        ("dirty-mnist",),
        no_worse(bold("1"), PRINTED_DIGIT),
    ),
    Claim(
        "ddu-ambiguous-easier",
        "DDU tells ambiguous digits from other sets more easily than clean digits.",
        "Section VIII-B",
        ("dirty-mnist", "inductive-bias"),
        better([(Side("DDU", "ambiguous mean", RESIDUAL), Side("DDU", "clean mean", RESIDUAL))]),
    ),
    Claim(
        "disagreement-ambiguous-harder",
        "Methods that score by disagreement find ambiguous digits harder to tell from other sets than clean ones.",
        "Section VIII-B",
        ("dirty-mnist", "inductive-bias"),
        better([(Side(row, "clean mean"), Side(row, "ambiguous mean")) for row in (DE, "LL-Laplace", "LL-E")]),
    ),
    Claim(
        "competes-with-ddu",
        "fs-RLL-E on letters or patches is within two points of DDU in telling ambiguous digits from other sets.",
        "Section VIII-B",
        ("dirty-mnist",),
        no_worse(cases((LETTERS, *PATCHES), "DDU", "ambiguous mean"), 2.0),
    ),
    Claim(
        "ll-e-best-calibrated",
        "LL-E has the lowest ECE of all methods on every network.",
        "Table B.2",
        ("inductive-bias",),
        better(cases("LL-E", ("MAP", "SNGP", "LL-Laplace", DE, LETTERS), "ece")),
    ),
    Claim(
        "no-deep-ensemble-needed",
        "fs-RLL-E on letters or patches tells ambiguous digits from other sets better than a deep ensemble.",
        "Section VIII-B",
        ("dirty-mnist",),
        better(cases((LETTERS, *PATCHES), DE, "ambiguous mean")),
    ),
)

MAPS = (
    Claim(
        "map-repulsion-moves",
        "Repulsion on patches turns the uncertainty about FashionMNIST from aleatoric, as deep ensembles and LL-E have "
        "it, into epistemic.",
        "Section VIII-B, Figure 4",
        ("uncertainty-map",),
        better(
            cases(MAPPED[2], MAPPED[:2], "epistemic FashionMNIST mean")
            + cases(MAPPED[:2], MAPPED[2], "aleatoric FashionMNIST mean")
        ),
    ),
    Claim(
        "map-sets-where-they-belong",
        "With repulsion on patches, ambiguous digits have more aleatoric uncertainty than clean ones, and FashionMNIST "
        "more epistemic uncertainty than both.",
        "Section VIII-B, Figure 4",
        ("uncertainty-map",),
        better(
            [
                (Side(MAPPED[2], "aleatoric ambiguous mean"), Side(MAPPED[2], "aleatoric MNIST mean")),
                (Side(MAPPED[2], "epistemic FashionMNIST mean"), Side(MAPPED[2], "epistemic MNIST mean")),
                (Side(MAPPED[2], "epistemic FashionMNIST mean"), Side(MAPPED[2], "epistemic ambiguous mean")),
            ]
        ),
    ),
    Claim(
        "map-confused-without-repulsion",
        "Deep ensembles and LL-E answer FashionMNIST with more aleatoric than epistemic uncertainty.",
        "Section VIII-B, Figure 4",
        ("uncertainty-map",),
        better(
            [(Side(row, "aleatoric FashionMNIST mean"), Side(row, "epistemic FashionMNIST mean")) for row in MAPPED[:2]]
        ),
    ),
)

NETWORKS = (
    Claim(
        "letters-help-every-network",
        "Repulsion on letters tells ambiguous digits from other sets better than LL-E on every network.",
        "Appendix B.2, Table B.2",
        ("inductive-bias",),
        better(cases(LETTERS, "LL-E", "ambiguous mean")),
    ),
    Claim(
        "ll-e-over-map-every-network",
        "LL-E has better accuracy, ECE and aleatoric uncertainty than its network, whichever that is.",
        "Appendix B.2, Table B.2",
        ("inductive-bias",),
        better(cases("LL-E", "MAP", ("accuracy", "ece", "clean ambiguous"))),
    ),
    Claim(
        "network-matters",
        "A residual network separates the two kinds of uncertainty better than LeNet and VGG do.",
        "Appendix B.2 and B.3",
        ("inductive-bias",),
        better(
            [
                (Side(row, "ambiguous mean", RESIDUAL), Side(row, "ambiguous mean", {"network": other}))
                for row in ("DDU", LETTERS)
                for other in PLAIN
            ]
        ),
    ),
    Claim(
        "robust-across-networks",
        "On the network that suits it least, fs-RLL-E still is better than DDU and SNGP are on theirs.",
        "Appendix B.2",
        ("inductive-bias",),
        better(
            [
                (Side(LETTERS, metric, lowest=True), Side(other, metric, lowest=True))
                for other in ("DDU", "SNGP")
                for metric in DOUBT
            ]
        ),
    ),
    Claim(
        "single-beats-ensemble",
        "On some network the entropy of a single model detects other sets better than the epistemic uncertainty of a "
        "deep ensemble.",
        "Section III, Table B.2",
        ("inductive-bias",),
        better(cases("MAP", DE, "clean mean"), need="some"),
    ),
)

REPULSION = (
    Claim(
        "oracle-helps-digits",
        "Repulsion on images of the set to be detected detects that set better than LL-E, on every network.",
        "Appendix B.3, Table B.3",
        ("feature-collapse",),
        better([(Side(f"fs-RLL-E + {name}", f"ambiguous {name}"), Side("LL-E", f"ambiguous {name}")) for name in SETS]),
    ),
    Claim(
        "matching-set-best-digits",
        "No other repulsion set detects a set better than that set itself (letters on LeNet excepted).",
        "Table B.3",
        ("feature-collapse",),
        no_worse(
            [
                (Side(f"fs-RLL-E + {name}", f"ambiguous {name}", at), Side(other, f"ambiguous {name}", at))
                for name in SETS
                for other in ON_SETS
                if not other.endswith(f"+ {name}")
                for at in ({"network": net} for net in (*PLAIN, "ResNet-18") if (name, net) != ("letters", "LeNet"))
            ],
            PRINTED_DIGIT,
        ),
    ),
    Claim(
        "training-data-does-nothing",
        "Repulsion on the training data changes the detection of other sets by at most 0.11 points.",
        "Table B.3",
        ("feature-collapse",),
        same(cases(TRAINING, "LL-E", BY_SET), 0.11),
    ),
)

ACTIVE = (
    Claim(
        "mutual-information-acquires-better",
        "Labels asked for by mutual information make a better network than those asked for by predictive entropy, of "
        "the same method or of a single network.",
        "Section VIII-C, Figure 5",
        ("active-learning",),
        better(
            [
                (Side(f"{row} MI + *", "final accuracy"), Side(other, "final accuracy"))
                for row in (DE, "LL-E", "fs-RLL-E")
                for other in (f"{row} PE + *", "MAP*")
            ]
        ),
    ),
    Claim(
        "acquisition-on-par",
        "Labels asked for by DDU, LL-E or fs-RLL-E end in an accuracy within two points of that with deep ensembles.",
        "Section VIII-C, Figure 5",
        ("active-learning",),
        no_worse(cases(("DDU*", "LL-E MI", "fs-RLL-E MI + *"), f"{DE} MI", "final accuracy"), 2.0),
    ),
    Claim(
        "epistemic-avoids-ambiguous",
        "Epistemic uncertainty asks for fewer ambiguous samples than entropy does.",
        "Section VIII-C",
        ("active-learning",),
        better(cases((f"{DE} MI", "LL-E MI", "fs-RLL-E MI + *", "DDU*"), "MAP*", "ambiguous share")),
    ),
)  # fmt: skip

CLAIMS = (*DECOMPOSITION, *MAPS, *NETWORKS, *REPULSION, *ACTIVE)
