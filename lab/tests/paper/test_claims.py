"""Claims on made-up findings: each verdict, what flips it, what is missing, one seed, and the paper's own numbers."""

from __future__ import annotations

import json
import math

import pytest
from scipy import stats

from repulse import CheckpointError, DataError
from repulse.errors import RecipeError
from repulse_lab.paper import printed as paper
from repulse_lab.paper.claims import CLAIMS, Results, judge, orderings, table, write_claims
from repulse_lab.paper.claims.reading import FILE, claim_of, read_claims, read_settings
from repulse_lab.paper.claims.verdict import Part, decide, interval, kind
from repulse_lab.study.claims import VERDICTS, read_judged
from repulse_lab.study.experiment import Outcome
from repulse_lab.study.output import Findings, write

NOISE = (-0.01, 0.0, 0.013, 0.004, -0.007)
BY_ID = {claim.id: claim for claim in CLAIMS}


def cell(method, seed, repulsion=None, network="LeNet", layers="last", **figures):
    labels = {"network": network, "method": method, "repulsion": repulsion, "layers": layers, "seed": seed}
    return Outcome(labels, f"{method}-{repulsion}-{network}-{seed}", {"figures": figures.pop("figures", figures)})


def findings(outcomes, name="dirty-mnist", missing=()):
    return Findings(
        name, "A title", "Table 1", "cpu", "repulse-lab reproduce", "today", 1.0, [], list(missing), outcomes=outcomes
    )


def results(outcomes, name="dirty-mnist", missing=()):
    return Results([findings(outcomes, name, missing)])


def claim(holds, *experiments, **more):
    about = {"text": "text", "source": "source", "experiments": experiments or ("dirty-mnist",), "holds": holds}
    return claim_of("id", {**about, **more}, {})


def verdict(holds, outcomes, name="dirty-mnist", **more):
    return claim(holds, name, **more).test(results(outcomes, name))


def runs(method, values, metric="accuracy", **about):
    return [cell(method, seed, figures={metric: value}, **about) for seed, value in enumerate(values)]


BETTER = "LL-E : accuracy > MAP"


@pytest.mark.parametrize("values", [[4.2, 3.9, 4.5], [0.1, -0.3, 0.2, 0.15], [1.0, 1.0]])
@pytest.mark.parametrize("level", [0.9, 0.95, 0.999])
def test_intervals_are_those_of_scipy(values, level):
    found = interval(values, level)
    half = stats.t.ppf(0.5 + level / 2, len(values) - 1) * stats.sem(values)
    middle = sum(values) / len(values)
    assert found == pytest.approx((middle - half, middle + half))


def test_one_value_has_no_interval():
    assert interval([1.0]) is None
    assert interval([]) is None


def test_a_clear_difference_confirms_and_its_mirror_contradicts():
    ours, theirs = runs("LL-E", [80.1, 81.0, 80.6]), runs("MAP", [77.0, 78.1, 77.4])
    found = verdict(BETTER, ours + theirs)
    assert found.word == "confirmed"
    assert found.effect == pytest.approx((3.1 + 2.9 + 3.2) / 3)
    assert found.interval == pytest.approx(stats.t.interval(0.95, 2, found.effect, stats.sem([3.1, 2.9, 3.2])))
    assert found.unit == "points"
    assert found.evidence == "LL-E 80.57 against MAP 77.50 (accuracy, LeNet)."
    assert found.confidence == "3 of 3 seeds; mean difference +3.07, 95 % interval +2.69 to +3.45"
    flipped = verdict("MAP : accuracy > LL-E", ours + theirs)
    assert (flipped.word, flipped.effect) == ("contradicted", -found.effect)
    assert flipped.confidence.startswith("0 of 3 seeds")


def test_differences_are_paired_by_seed():
    """Networks differ by ten points and the methods by one, on every network: only pairs show it."""
    ours, theirs = [71.0, 81.1, 90.9], [70.0, 80.0, 90.0]
    assert verdict(BETTER, runs("LL-E", ours) + runs("MAP", theirs)).word == "confirmed"
    assert verdict(BETTER, runs("LL-E", ours) + runs("MAP", theirs[::-1])).word == "undecided"  # a hundred do not do
    unpaired = runs("LL-E", [*ours, 0.0]) + runs("MAP", theirs)
    assert verdict(BETTER, unpaired).word == "confirmed"  # the fourth seed has no other side


def test_lower_is_better_for_errors():
    ours, theirs = runs("LL-E", [1.0, 1.1, 0.9], "ece"), runs("MAP", [3.0, 3.1, 3.05], "ece")
    assert verdict("LL-E : ece > MAP", ours + theirs).word == "confirmed"
    assert verdict("MAP : ece >= LL-E", ours + theirs, within=1.0).word == "contradicted"
    assert verdict("MAP : ece >= LL-E", ours + theirs, within=3.0).word == "confirmed"


@pytest.mark.parametrize(("shift", "word"), [(0.05, "confirmed"), (0.5, "contradicted"), (0.2, "undecided")])
def test_the_same_is_shown_and_not_only_not_refuted(shift, word):
    base, same = [80.0, 81.0, 82.0], "RLL-E : accuracy ~ LL-E"
    ours = [one + shift + noise for one, noise in zip(base, NOISE, strict=False)]
    assert verdict(same, runs("RLL-E", ours) + runs("LL-E", base)).word == word
    noisy = runs("RLL-E", [79.0, 81.0, 83.0]) + runs("LL-E", base)
    found = verdict(same, noisy)
    assert found.word == "not enough runs"
    needed = int(found.evidence.rpartition(": ")[2].rstrip("."))
    half = [stats.t.ppf(0.975, n - 1) * stats.tstd([-1.0, 0.0, 1.0]) / math.sqrt(n) for n in (needed - 1, needed)]
    assert half[1] < 0.2 <= half[0]  # what "the same" allows of accuracy


def test_a_lone_run_of_something_random_decides_nothing():
    for gap in (3.0, -3.0):
        found = verdict("LL-E : accuracy > DE-*", runs("LL-E", [80.0 + gap, 80.0 + gap]) + runs("DE-3", [80.0]))
        assert (found.word, found.interval) == ("not enough runs", None)
        assert found.evidence.endswith("Runs that it needs: 3.")
        assert found.confidence == f"one side is a single run, so no interval; difference {gap:+.2f}"
    several = runs("LL-E", [83.0, 83.1]) + runs("DE-3", [80.0, 80.1])
    assert verdict("LL-E : accuracy > DE-*", several).word == "confirmed"
    count = runs("LL-E", [10.0, 10.0], "parameters") + runs("DE-3", [50.0], "parameters")
    assert verdict("LL-E : parameters > DE-*", count).word == "confirmed"  # what is counted is not random


def test_what_is_not_random_decides_beyond_a_margin():
    for gap, word in ((3.0, "confirmed"), (0.1, "undecided"), (-0.1, "undecided"), (-3.0, "contradicted")):
        found = verdict("DDU : accuracy > MAP", runs("DDU", [80.0 + gap]) + runs("MAP", [80.0]))
        assert (found.word, found.interval) == (word, None)
        assert found.confidence == f"nothing is random here, so no interval; difference {gap:+.2f}"
    published = runs("LL-E", [80.0, 80.1], network="ResNet-20") + runs("DE-2", [75.0], network="ResNet-20")
    assert (
        verdict("LL-E : accuracy > DE-*", published).word == "confirmed"
    )  # two published networks are always the same


def test_orderings_of_the_tables_come_out_again_or_not():
    ddu = [cell("DDU", s, figures={"ambiguous letters": 84.0 + n}) for s, n in enumerate(NOISE)]
    map_ = [cell("MAP", s, figures={"ambiguous letters": 60.0 - n}) for s, n in enumerate(NOISE)]
    better_than_ddu = [cell("LL-E", s, figures={"ambiguous letters": 90.0 + n}) for s, n in enumerate(NOISE)]
    wild = [cell("fs-RLL-E", s, "training data", figures={"ambiguous letters": 60 + 40 * (s % 2)}) for s in range(5)]
    every = ddu + map_ + better_than_ddu + wild
    found = orderings.find(results(every, "feature-collapse"))
    words = {(one.ahead, one.behind): one.word for one in found}
    training = "fs-RLL-E + training data"
    assert words == {  # LL-E and training data are 0.05 apart in the paper, which is no ordering
        ("DDU", "MAP"): "reproduced",
        ("DDU", "LL-E"): "reversed",
        ("DDU", training): "open",
        ("LL-E", "MAP"): "reproduced",
        (training, "MAP"): "open",
    }
    page = orderings.markdown(found)
    assert "| B.3, LeNet | 2 | 2 | 1 |" in page
    assert (
        "## Reversed (1)\n\n- Table B.3: DDU 84.00 against LL-E 90.00 (ambiguous letters, LeNet); ahead by 5.77" in page
    )
    assert "None could be judged" in orderings.markdown([])


def test_methods_with_taps_or_other_sets_are_not_mixed_in():
    others = [cell("LL-E", seed, layers="auto", accuracy=0.0) for seed in range(3)]
    others += [cell("LL-E", seed, repulsion="letters", accuracy=0.0) for seed in range(3)]
    outcomes = runs("LL-E", [80.1, 81.0, 80.6]) + runs("MAP", [77.0, 78.1, 77.4])
    assert verdict(BETTER, outcomes + others) == verdict(BETTER, outcomes)
    picked = results(outcomes + others).pick("dirty-mnist", network="LeNet", method="LL-E")
    assert picked.values("accuracy") == {0: 80.1, 1: 81.0, 2: 80.6}


def test_the_set_that_another_stands_in_for_is_preferred():
    outcomes = [
        cell("fs-RLL-E", 0, name, figures={f"ambiguous {name}": value})
        for name, value in (("letters", 1.0), ("EMNIST", 2.0))
    ]
    for given, value in ((outcomes, 2.0), (outcomes[:1], 1.0)):
        picked = results(given).pick("dirty-mnist", method="fs-RLL-E", repulsion="letters")
        assert picked.values("ambiguous letters") == {0: value}


def test_every_network_must_agree_and_the_one_that_fails_is_named():
    outcomes = []
    for network, gain in (("LeNet", 3.0), ("VGG-11", 2.0), ("ResNet-18", -2.0)):
        outcomes += runs("MAP", [80.0, 81.0, 82.0], network=network)
        outcomes += runs("LL-E", [80 + i + gain + NOISE[i] for i in range(3)], network=network)
    found = verdict(BETTER, outcomes)
    assert found.word == "contradicted"
    assert found.evidence == "Holds in 2 of 3 parts; fails for LL-E 79.00 against MAP 81.00 (accuracy, ResNet-18)."
    assert verdict(BETTER, outcomes, need="most").word == "confirmed"
    assert verdict("MAP : accuracy > LL-E", outcomes, need="most").word == "contradicted"
    assert verdict("MAP : accuracy > LL-E", outcomes, need="some").word == "confirmed"
    assert (
        verdict("LL-E : accuracy @ LeNet > MAP", outcomes).evidence == "LL-E 84.00 against MAP 81.00 (accuracy, LeNet)."
    )
    between = "MAP : accuracy @ VGG-11 > LL-E @ LeNet"
    assert verdict(between, outcomes).evidence == "MAP, VGG-11 81.00 against LL-E, LeNet 84.00 (accuracy)."


def test_the_lowest_over_networks_is_compared():
    outcomes = []
    for network, ours, theirs in (("LeNet", 90.0, 80.0), ("VGG-11", 95.0, 99.0)):
        outcomes += runs("LL-E", [ours + noise for noise in NOISE[:3]], network=network)
        outcomes += runs("DDU", [theirs + noise for noise in NOISE[1:4]], network=network)
    lowest = "LL-E : accuracy @ lowest > DDU"
    found = verdict(lowest, outcomes)
    assert (found.word, found.effect) == ("confirmed", pytest.approx(10.0, abs=0.05))
    assert verdict(lowest, outcomes[:3]).word == "not testable here"


def test_both_verdicts_have_one_level_however_many_parts_there_are():
    good, bad, wide = (
        Part("part", differences, 0.0, math.inf, kind("accuracy"))
        for differences in ((1.0, 1.01, 0.99), (-0.1, -0.2, -0.13), (-0.1, 0.3, 0.1))
    )
    assert [part.state for part in (good, bad, wide)] == ["holds", "fails", "open"]
    assert decide([good] * 9).word == "confirmed"
    assert decide([bad]).word == decide([good] * 9 + [bad]).word == "contradicted"
    assert decide([good] * 9 + [wide]).word == "not enough runs"
    assert decide([wide, bad]).word == "contradicted"


def test_what_is_missing_is_named():
    outcomes = runs("LL-E", [80.0, 81.0]) + runs("MAP", [70.0, 70.5])
    for holds, lacking in (
        ("LL-E : accuracy > SNGP", "SNGP"),
        ("fs-RLL-E + CIFAR-100 : accuracy > MAP", "fs-RLL-E"),
        ("LL-E + CIFAR-100 : accuracy > MAP", "LL-E repelled on CIFAR-100"),
        ("LL-E : Places365 auroc > MAP", "Places365 auroc"),
        ("LL-E : accuracy @ VGG-16 > MAP", "VGG-16"),
        ("LL-E : accuracy > DE-*", "a deep ensemble"),
    ):
        found = verdict(holds, outcomes)
        assert (found.word, found.evidence, found.effect) == ("not testable here", f"Not here: {lacking}.", None)
    both = verdict("LL-E : accuracy | SVHN crops auroc > MAP", outcomes + runs("LL-E", [80.4, 81.2]))
    assert "(accuracy, LeNet). Not here: SVHN crops auroc." in both.evidence
    elsewhere = runs("LL-E", [80.0, 81.0]) + runs("MAP", [70.0, 70.5], network="VGG-11")
    assert verdict(BETTER, elsewhere).evidence == "Not here: LL-E and MAP with the same network and seed."


def test_experiments_say_themselves_what_they_lacked():
    claim_ = BY_ID["heads-lower-nll-cifar100"]
    found = claim_.test(results([], "cifar100", ["All of it: cifar100 is not in the data folder."]))
    assert found.word == "not testable here"
    assert found.evidence == "Not here: results of cifar100 (All of it: cifar100 is not in the data folder)."
    assert claim_.test(Results([])).evidence == "Not here: results of cifar100."


def test_values_that_are_not_finite_do_not_count():
    outcomes = runs("LL-E", [80.1, math.nan, 80.6, 81.0]) + runs("MAP", [77.0, 78.1, 77.4, math.inf])
    assert verdict(BETTER, outcomes).effect == pytest.approx(3.15)


def labelled(labels, seeds=3, **figures):
    """Outcomes of some seeds, with any labels."""
    shifted = [{name: value + NOISE[i] for name, value in figures.items()} for i in range(seeds)]
    return [Outcome({**labels, "seed": i}, f"{labels}-{i}", {"figures": one}) for i, one in enumerate(shifted)]


def test_toys_are_judged_task_by_task():
    outcomes = []
    for task, far in (("sine", 2.0), ("two-moons", 0.4)):
        outcomes += labelled(
            {"network": "MLP", "task": task, "method": "fs-RLL-E"}, **{"std near": 0.1, "std far": far}
        )
        outcomes += labelled({"network": "MLP", "task": task, "method": "deep ensemble"}, **{"std far": 1.0})
    assert BY_ID["toy-doubt-grows"].test(results(outcomes, "toy")).evidence.startswith("Holds in both parts")
    found = BY_ID["toy-ensembles-confident"].test(results(outcomes, "toy"))
    assert (
        found.word,
        "fails for fs-RLL-E 0.401 against deep ensemble 1.001 (std far, MLP, two-moons)" in found.evidence,
    ) == (
        "contradicted",
        True,
    )


def test_corruptions_are_judged_one_by_one_and_by_collection():
    base = {"network": "ResNet-20", "collection": "CIFAR-10-C"}
    one_by_one = {"ece fog 1": 2.0, "ece shot noise 3": 4.0, "ece snow 5": 3.0}
    worse = {name: value + (-1 if "snow" in name else 2) for name, value in one_by_one.items()}
    outcomes = labelled({**base, "method": "LL-E"}, **one_by_one, **{"ece severity 3": 9.0, "ece mean": 3.0})
    outcomes += labelled({**base, "method": "MAP"}, **worse, **{"ece severity 3": 1.0})
    found = BY_ID["every-corruption"].test(results(outcomes, "corruption"))
    assert (found.word, found.evidence[:22]) == ("confirmed", "Holds in 2 of 3 parts;")
    repelled = labelled({**base, "method": "fs-RLL-E", "repulsion": "Tiny ImageNet"}, **{"ece mean": 2.0})
    found = BY_ID["corrupted-better-than-ll-e"].test(results(outcomes + repelled, "corruption"))
    assert found.word == "confirmed"
    found = BY_ID["no-gain-corrupted-cifar100"].test(results(outcomes + repelled, "corruption"))
    assert found.evidence == "Not here: CIFAR-100-C."


def test_ways_to_acquire_are_found_whatever_they_repel_on():
    accuracy = {"DE-3 MI": 60.0, "DE-3 PE": 50.0, "LL-E MI": 61.0, "LL-E PE": 51.0, "MAP PE": 45.0, "DDU": 50.0}
    outcomes = [one for name, end in accuracy.items() for one in labelled({"method": name}, **{"final accuracy": end})]
    outcomes += labelled({"method": "fs-RLL-E MI", "repulsion": "pool"}, **{"final accuracy": 62.0})
    found = BY_ID["mutual-information-over-entropy"].test(results(outcomes, "active-learning"))
    assert (found.word, found.evidence[:19]) == ("confirmed", "Holds in both parts")
    many = decide([Part("x", (1.0, 1.1), 0.0, math.inf, kind("accuracy"))] * 20)
    assert many.evidence.startswith("Holds in all 20 parts")
    assert found.evidence.endswith("Not here: fs-RLL-E PE.")
    found = BY_ID["acquisition-on-par"].test(results(outcomes, "active-learning"))
    assert "fails for DDU 50.00 against DE MI 60.00 (final accuracy)" in found.evidence


def test_shared_cells_count_once():
    outcomes = runs("LL-E", [80.1, 81.0, 80.6]) + runs("MAP", [77.0, 78.1, 77.4])
    twice = Results([findings(outcomes), findings(outcomes, "inductive-bias")])
    found = claim(BETTER, "dirty-mnist", "inductive-bias").test(twice)
    assert found.evidence == "LL-E 80.57 against MAP 77.50 (accuracy, LeNet)."


TABLES = {
    "inductive-bias": "B.2",
    "feature-collapse": "B.3",
    "spectral-norm": "B.4",
    "architectures": "B.5",
    "repulsion-sets": "B.6",
}


def as_printed(scale=1.0):
    """Findings with the paper's numbers, three seeds of each; a negative scale turns every ordering around."""
    made = []
    for name, number in TABLES.items():
        rows = {}
        for (network, one, other), value in paper._NUMBERS[number].items():
            row, metric = (one, other) if number in ("B.4", "B.5") else (other, one)
            if value != "nan":
                rows.setdefault((network, *row.partition(" + ")[::2]), {})[metric] = scale * float(value)
        outcomes = []
        for (network, method, repulsion), figures in rows.items():
            sets = [value for metric, value in figures.items() if metric.endswith(" auroc")]
            mean = {"mean auroc": sum(sets) / len(sets)} if sets else {}
            for seed in range(3):
                shifted = {m: value + NOISE[(seed + len(m)) % 3] / 10 for m, value in (figures | mean).items()}
                outcomes.append(cell(method, seed, repulsion or None, network, figures=shifted))
        made.append(findings(outcomes, name))
    return Results(made)


@pytest.fixture(scope="module")
def straight():
    printed = as_printed()
    return [one.judged(printed, {}) for one in CLAIMS]


def test_the_papers_own_numbers_confirm_its_claims(straight):
    """Every claim that tables of the appendix can decide is stated so that those tables confirm it."""
    words = {one.id: one.verdict for one in straight}
    assert set(words.values()) == {"confirmed", "not testable here"}
    assert list(words.values()).count("confirmed") >= 20
    assert words["robust-across-networks-ddu"] == words["matching-set-best-objects"] == "confirmed"


def test_the_papers_numbers_turned_around_contradict_its_claims(straight):
    printed = as_printed(-1.0)
    decided = [BY_ID[one.id] for one in straight if one.verdict == "confirmed"]
    turned = {one.id: one.test(printed).word for one in decided}
    still = {name for name, word in turned.items() if word == "confirmed"}
    assert still == {
        "accuracy-unharmed-digits",
        "accuracy-unharmed-objects",
        "noise-no-help-textures",
        "robust-across-networks-ddu",  # the lowest of negative numbers is another network's
        "training-data-does-nothing",
        "spectral-norm-no-matter",
        "single-beats-ensemble",
    }
    assert {word for name, word in turned.items() if name not in still} == {"contradicted"}


def test_claims_are_well_formed_and_survive_anything():
    assert len(BY_ID) == len(CLAIMS)
    some = as_printed().outcomes("inductive-bias")[::7]
    odd = [Outcome({}, "key", {}), Outcome({"method": 3, "seed": None}, "key", {"figures": {"ece": math.nan}})]
    for one in CLAIMS:
        assert one.text.endswith(".")
        assert one.source
        assert one.test(results(odd, one.experiments[0])).word == "not testable here"
        assert one.test(results(some, one.experiments[-1])).word in VERDICTS


def test_a_claim_says_most_only_where_its_text_does():
    assert [one.id for one in CLAIMS if (one.need == "most") != (" most" in one.text.replace("at most", ""))] == []
    assert {one.need for one in CLAIMS} == {"all", "most", "some"}


def test_every_experiment_of_a_claim_says_how_it_differs_from_the_paper():
    settings = read_settings()
    assert {name for one in CLAIMS for name in one.experiments} == set(settings)
    ours, theirs = runs("LL-E", [80.1, 81.0, 80.6]), runs("MAP", [77.0, 78.1, 77.4])
    judged = BY_ID["ll-e-over-map-accuracy"].judged(results(ours + theirs), settings)
    assert judged.setting == f"dirty-mnist: {settings['dirty-mnist']}"


def test_claims_that_cannot_be_read_are_refused(tmp_path):
    for holds in ("LL-E : accuracy MAP", ["LL-E : ece > MAP", "LL-E : ece ~ MAP"]):
        with pytest.raises(RecipeError, match="Expected the claim 'id' to be one of the relations"):
            claim(holds)
    (tmp_path / "claims.toml").write_text(FILE.read_text().replace(" > ", " >= "))
    assert {one.relation for one in read_claims(tmp_path / "claims.toml")} == {">=", "~"}


def test_verdicts_are_written_whole(tmp_path):
    outcomes = []
    for seed in range(3):
        good = {"nll": 0.3, "ece": 1.0 + 0.01 * seed, "accuracy": 91.0}
        outcomes += [cell("LL-E", seed, network="ResNet-20", figures=good)]
    outcomes += [cell("MAP", 0, network="ResNet-20", figures={"nll": 0.4, "ece": 3.0, "accuracy": 95.0})]
    write(findings(outcomes, "cifar10"), tmp_path / "cifar10")
    judged = write_claims(tmp_path)
    kept = json.loads((tmp_path / "claims.json").read_text())
    assert kept["format"] == 1
    assert [one.text for one in read_judged(tmp_path)] == [one.text for one in judged]
    by_id = {claim["id"]: claim for claim in kept["claims"]}
    assert by_id["heads-lower-nll-cifar10"]["verdict"] == "confirmed"
    assert by_id["accuracy-as-before"]["verdict"] == "contradicted"
    assert by_id["accuracy-as-before"]["interval"] == pytest.approx([-4.0, -4.0])
    assert by_id["toy-doubt-grows"] == {
        "id": "toy-doubt-grows",
        "text": BY_ID["toy-doubt-grows"].text,
        "source": "Section VIII-A, Figure 3",
        "verdict": "not testable here",
        "evidence": "Not here: results of toy.",
        "effect": None,
        "unit": "",
        "interval": None,
        "confidence": "",
        "experiments": ["toy"],
        "setting": "",
    }
    page = (tmp_path / "claims.md").read_text()
    assert page.index("## Confirmed") < page.index("## Contradicted") < page.index("## Not testable here")
    assert "`accuracy-as-before`" in page


def test_the_table_is_narrow_and_complete(tmp_path, straight):
    judged = judge(tmp_path)
    text = table(judged)
    assert all(len(line) <= 110 for line in text.splitlines())
    assert text.count("not testable here") == len(CLAIMS) + 1
    assert text.endswith(f"{len(CLAIMS)} claims: {len(CLAIMS)} not testable here.")
    mixed = table(straight)
    assert mixed.index("confirmed") < mixed.index("not testable here")
    assert "\u00a0" not in mixed


def test_folders_that_hold_no_results_are_refused(tmp_path):
    with pytest.raises(DataError, match="Expected `folder` to be a folder with the results of experiments"):
        judge(tmp_path / "nowhere")
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "experiment.json").write_text("{}")
    with pytest.raises(CheckpointError, match="what an experiment wrote"):
        judge(tmp_path)
