"""Acquisition: closed forms of joint information, what a labelling team may hand in, and a loop that can be resumed."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from repulse import CheckpointError, ClassPrediction, DataError, RecipeError, RegressionPrediction
from repulse.active.acquire import ActiveLearning, acquire
from repulse.active.batchbald import batchbald
from repulse.prediction import mutual_information


class Stored:
    """Predicts what is stored for each index; inputs are indices."""

    def __init__(self, log_probs):
        self.log_probs, self.seen = log_probs, []

    def predict(self, x):
        self.seen.append(len(x))
        return ClassPrediction(self.log_probs[:, x.long()])


class Numbers:
    def __init__(self, means, variances):
        self.means, self.variances = means, variances

    def predict(self, x):
        return RegressionPrediction(self.means[:, x.long()], self.variances[:, x.long()])


def random_log_probs(members=5, samples=12, classes=3, spread=2.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(members, samples, classes, generator=generator, dtype=torch.float64)
    return logits.log_softmax(dim=-1)


def joint_information(log_probs, chosen):
    """By the definition: the entropy of all configurations of labels less that which every member alone has."""
    probs, members = log_probs.exp(), len(log_probs)
    total = 0.0
    for labels in itertools.product(range(probs.shape[2]), repeat=len(chosen)):
        each = [math.prod(float(probs[i, j, y]) for j, y in zip(chosen, labels, strict=True)) for i in range(members)]
        mean = sum(each) / members
        total += sum(p * math.log(p) for p in each) / members - mean * math.log(mean)
    return total


POOL = torch.arange(12)


def test_one_sample_of_batchbald_is_the_mutual_information():
    log_probs = random_log_probs()
    information = mutual_information(log_probs)
    chosen, gains = batchbald(log_probs, 1)
    assert int(chosen) == int(information.argmax())
    assert float(gains) == pytest.approx(float(information.max()), abs=1e-12)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_joint_information_is_that_of_all_configurations(k):
    log_probs = random_log_probs()
    chosen, gains = batchbald(log_probs, k)
    for m in range(1, k + 1):
        assert float(gains[:m].sum()) == pytest.approx(joint_information(log_probs, chosen[:m].tolist()), abs=1e-9)


def test_every_step_is_the_best_there_is():
    log_probs = random_log_probs(seed=3)
    chosen = batchbald(log_probs, 3)[0].tolist()
    for m in (1, 2):
        value = {j: joint_information(log_probs, [*chosen[:m], j]) for j in range(12) if j not in chosen[:m]}
        assert chosen[m] == max(value, key=value.__getitem__)


def test_small_chunks_choose_the_same(monkeypatch):
    log_probs = random_log_probs(samples=60, seed=4)
    whole = batchbald(log_probs, 6)
    monkeypatch.setitem(batchbald.__globals__, "CHUNK", 1)  # one candidate at a time: the lazy search stops early
    parts = batchbald(log_probs, 6)
    assert whole[0].tolist() == parts[0].tolist()
    torch.testing.assert_close(whole[1], parts[1])


def test_a_random_sample_of_configurations_estimates_the_same():
    log_probs = random_log_probs(members=8, samples=6, classes=4, spread=1.0)
    exact_order, exact = batchbald(log_probs, 6, configurations=4**6)
    estimates = []
    for seed in range(20):
        order, gains = batchbald(log_probs, 6, configurations=200, seed=seed)
        assert sorted(order.tolist()) == list(range(6))
        assert order[:3].tolist() == exact_order[:3].tolist()  # 4 ** 3 configurations are not sampled yet
        estimates.append(gains.sum())
    found = torch.stack(estimates)
    error = float(found.std()) / math.sqrt(len(found))
    assert 0 < error < 0.02
    assert abs(float(found.mean() - exact.sum())) < 4 * error  # all six, so that the order does not matter
    finer = torch.stack([batchbald(log_probs, 6, configurations=3200, seed=seed)[1].sum() for seed in range(20)])
    assert float(finer.std()) < 0.5 * float(found.std())  # a quarter, but for luck
    assert torch.equal(batchbald(log_probs, 6, configurations=200, seed=7)[1].sum(), found[7])


@pytest.mark.parametrize("spread", [0.3, 2.0, 30.0])
def test_joint_information_grows_up_to_what_members_can_tell(spread):
    chosen, gains = batchbald(random_log_probs(members=6, samples=40, spread=spread), 30, configurations=300)
    assert len(set(chosen.tolist())) == 30
    assert bool((gains >= 0).all())
    assert float(gains.sum()) <= math.log(6) + 1e-12
    if spread > 1:
        assert float(gains.sum()) > 0.99 * math.log(6)


def test_copies_of_one_good_sample_are_not_bought_together():
    sure = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]).double().unsqueeze(-1)  # (4, 4, 1)
    log_probs = torch.cat([0.98 * sure + 0.01, 0.99 - 0.98 * sure], dim=-1).log()
    stored, pool = Stored(log_probs), torch.arange(4)
    assert set(acquire(stored, pool, 2).indices.tolist()) < {0, 1, 2}
    both = acquire(stored, pool, 2, "batchbald").indices.tolist()
    assert both[0] in {0, 1, 2}
    assert both[1] == 3


def test_extreme_and_impossible_labels_stay_finite():
    log_probs = random_log_probs(spread=1e4)
    log_probs[:, :3] = torch.tensor([0.0, -math.inf, -math.inf], dtype=torch.float64)
    chosen, gains = batchbald(log_probs, 12, configurations=50)
    assert bool(gains.isfinite().all())
    assert sorted(chosen.tolist()) == list(range(12))


def test_members_that_agree_tell_nothing_and_the_first_come_first():
    chosen, gains = batchbald(torch.zeros(4, 5, 2).log_softmax(dim=-1), 5)
    assert chosen.tolist() == [0, 1, 2, 3, 4]
    assert gains.tolist() == [0.0] * 5


@pytest.mark.parametrize("score", ["epistemic", "total"])
def test_the_best_come_first_with_their_scores(score):
    log_probs = random_log_probs()
    found = acquire(Stored(log_probs), POOL, 5, score, batch_size=5)
    wanted = getattr(ClassPrediction(log_probs), score).sort(descending=True)
    assert found.indices.tolist() == wanted.indices[:5].tolist()
    torch.testing.assert_close(found.scores, wanted.values[:5])


@pytest.mark.parametrize("score", ["epistemic", "total"])
def test_regression_ranks_by_variances(score):
    means, variances = torch.tensor([[0.0, 0.0, 3.0], [2.0, 0.0, 4.0]]), torch.tensor([[1.0, 9.0, 0.5]]).expand(2, 3)
    found = acquire(Numbers(means, variances), torch.arange(3), 2, score)
    wanted = {"epistemic": ([0, 2], [1.0, 0.25]), "total": ([1, 0], [9.0, 2.0])}[score]
    assert (found.indices.tolist(), found.scores.tolist()) == wanted


def test_a_methods_own_score_and_chance():
    class Distance(Stored):
        def score(self, x):
            return -(x.float() - 4).abs()

    method = Distance(random_log_probs(members=1))
    assert acquire(method, POOL, 3, "own").indices[0] == 4
    drawn = [acquire(method, POOL, 4, "random", seed=seed).indices.tolist() for seed in range(6)]
    assert len({tuple(indices) for indices in drawn}) > 1
    assert drawn[2] == acquire(method, POOL, 4, "random", seed=2).indices.tolist()


def test_equal_scores_are_drawn_and_the_draw_repeats():
    stored = Stored(torch.zeros(3, 50, 2).log_softmax(dim=-1))
    one, same, other = (acquire(stored, torch.arange(50), 10, seed=seed).indices.tolist() for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert one != list(range(10))


@pytest.mark.parametrize("score", ["epistemic", "batchbald"])
def test_every_form_of_a_pool_gives_the_same(score):
    stored = Stored(random_log_probs())
    wanted = acquire(stored, POOL, 4, score).indices.tolist()
    loader = DataLoader(TensorDataset(POOL, POOL % 2), batch_size=5)
    for pool in (loader, TensorDataset(POOL), list(POOL.split(3)), (POOL, POOL % 2 == 0)):
        assert acquire(stored, pool, 4, score).indices.tolist() == wanted
    stored.seen.clear()
    assert acquire(stored, POOL, 4, score, batch_size=2).indices.tolist() == wanted
    assert set(stored.seen) == {2}


@pytest.mark.parametrize("score", ["epistemic", "batchbald", "random"])
@pytest.mark.parametrize("form", [list, torch.tensor, set])
def test_what_is_labelled_is_not_asked_again(score, form):
    stored = Stored(random_log_probs())
    first = acquire(stored, POOL, 5, score).indices.tolist()
    rest = acquire(stored, POOL, 7, score, exclude=form(first), batch_size=4).indices.tolist()
    assert sorted(first + rest) == POOL.tolist()


def test_batchbald_looks_at_candidates_of_the_largest_disagreement():
    log_probs = random_log_probs(samples=40)
    top = mutual_information(log_probs).topk(6).indices.tolist()
    found = acquire(Stored(log_probs), torch.arange(40), 4, "batchbald", candidates=6, batch_size=3)
    assert set(found.indices.tolist()) <= set(top)
    alone, gains = batchbald(log_probs[:, top], 4)
    assert found.indices.tolist() == [top[i] for i in alone]
    torch.testing.assert_close(found.scores, gains)
    assert len(acquire(Stored(log_probs), torch.arange(40), 9, "batchbald", candidates=6).indices) == 9


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"score": "epistemik"}, RecipeError, "Did you mean 'epistemic'?"),
        ({"k": 0}, RecipeError, "Expected `k` to be a positive integer, but got 0."),
        ({"k": 13}, DataError, "Expected `k` to be at most 12, as many as are left in the pool, but got 13."),
        ({"k": 11, "exclude": [3, 4, 4]}, DataError, "at most 10, as many as are left"),
        (
            {"exclude": [3, 12]},
            DataError,
            "Expected `exclude` to be indices below 12, the size of the pool, but got 12",
        ),
        ({"exclude": [-1]}, DataError, "indices into the pool, from 0, but got negative ones"),
        ({"exclude": [0.5]}, DataError, "but got torch.float32"),
        ({"exclude": ["a"]}, DataError, "a tensor or a list of numbers"),
        ({"exclude": torch.zeros(2, 2).long()}, DataError, "of one dimension, but got shape (2, 2)"),
        ({"ensemble": 3}, DataError, "Expected `ensemble` to be something with `predict`, but got int."),
        ({"ensemble": Stored(random_log_probs(members=1))}, DataError, "take score='total' or 'own'"),
        ({"score": "own"}, DataError, "something with `score` for score='own', but got Stored"),
        ({"pool": torch.zeros(0)}, DataError, "Expected `pool` to be at least one sample, but got none."),
        ({"pool": DataLoader(TensorDataset(POOL), shuffle=True)}, DataError, "a fixed order"),
        ({"ensemble": Numbers(torch.zeros(2, 12), torch.ones(2, 12)), "score": "batchbald"}, DataError, "ClassPred"),
        ({"ensemble": Numbers(torch.full((2, 12), math.nan), torch.ones(2, 12))}, DataError, "finite, but got 12"),
        ({"candidates": 0, "score": "batchbald"}, RecipeError, "`candidates`"),
    ],
)
def test_unusable_input_is_refused_in_a_sentence(change, error, message):
    arguments = {"ensemble": Stored(random_log_probs()), "pool": POOL, "k": 3, **change}
    with pytest.raises(error) as caught:
        acquire(**arguments)
    assert message in str(caught.value)


def test_batchbald_refuses_logits_and_too_many():
    with pytest.raises(DataError, match="log-probabilities"):
        batchbald(torch.ones(2, 3, 4), 1)
    with pytest.raises(DataError, match="at most 12, the number of samples"):
        batchbald(random_log_probs(), 13)


class Nearest:
    """Three members that know the labels of their neighbours: the nearer a label, the surer; exact and fast."""

    def __init__(self, points, indices, labels):
        self.near, self.labels = points[indices], labels

    def predict(self, x):
        distances = (x.unsqueeze(1) - self.near).abs()
        each = []
        for scale in (0.5, 1.0, 2.0):
            weight = torch.exp(-distances * scale)
            ones = (weight * self.labels).sum(dim=1) / weight.sum(dim=1)
            each.append(torch.stack([1 - ones, ones], dim=1).clamp(0.01, 0.99))
        return ClassPrediction(torch.stack(each).log())


POINTS = torch.linspace(-3, 3, 40)
TRUTH = (POINTS > 0.4).long()


def learning(score="epistemic", trained=None):
    def train(indices, labels):
        if trained is not None:
            trained.append(len(indices))
        return Nearest(POINTS, indices, labels)

    made = ActiveLearning(POINTS, train, score, progress=False)
    made.tell([0, 39], [0, 1])
    return made


@pytest.mark.parametrize("score", ["epistemic", "batchbald", "random"])
def test_the_loop_buys_what_is_new_and_learns(score):
    trained = []
    loop = learning(score, trained)
    sizes = []
    for bought in loop.run(lambda indices: TRUTH[indices], k=3, steps=5):
        sizes.append(len(loop.indices))
        assert loop.indices[-3:].tolist() == bought.indices.tolist()
        loop.predictor.predict(POINTS)  # trained once a step, whoever asks first
    assert sizes == [5, 8, 11, 14, 17]
    assert trained == [2, *sizes]
    assert len(set(loop.indices.tolist())) == 17
    assert loop.labels.tolist() == TRUTH[loop.indices].tolist()
    assert float((loop.predictor.predict(POINTS).labels == TRUTH).float().mean()) >= 0.9


def test_a_loop_that_is_saved_and_loaded_goes_on_as_if_it_had_not_been(tmp_path):
    whole, half, resumed = (learning("batchbald") for _ in range(3))
    list(whole.run(lambda indices: TRUTH[indices], k=2, steps=4))
    list(half.run(lambda indices: TRUTH[indices], k=2, steps=2))
    half.save(tmp_path / "labels.json")
    resumed.load(tmp_path / "labels.json")
    list(resumed.run(lambda indices: TRUTH[indices], k=2, steps=2))
    assert resumed.known == whole.known
    assert list(resumed.known) == list(whole.known)


def test_labels_by_hand_and_their_correction():
    loop = learning()
    asked = loop.ask(2)
    assert loop.ask(2).indices.tolist() == asked.indices.tolist()
    loop.tell(asked.indices, [0, 1])
    loop.tell(asked.indices[:1], [True])
    assert loop.known[int(asked.indices[0])] == 1
    assert loop.labels.dtype == torch.int64
    assert loop.indices.tolist() == [0, 39, *asked.indices.tolist()]


def test_a_loop_may_start_without_labels():
    given = []
    loop = ActiveLearning(POOL, lambda indices, labels: given.append((indices, labels)) or Stored(random_log_probs()))
    assert len(loop.ask(2).indices) == 2
    assert [part.tolist() for part in given[0]] == [[], []]
    assert given[0][1].dtype == torch.int64


def test_numbers_as_labels_come_back_as_they_were(tmp_path):
    loop = ActiveLearning(POOL, lambda indices, labels: None)
    loop.tell([1, 2], torch.tensor([0.1, -2.5]))
    loop.save(tmp_path / "labels.json")
    again = ActiveLearning(POOL, lambda indices, labels: None)
    again.load(tmp_path / "labels.json")
    assert torch.equal(again.labels, torch.tensor([0.1, -2.5]))


@pytest.mark.parametrize(
    ("indices", "labels", "message"),
    [
        ([1, 2], [0], "Expected `labels` to be 2, one per index, but got shape (1,)."),
        ([1, 1], [0, 1], "Expected `indices` to be different from each other, but got 1 twice."),
        ([40], [0], "Expected `indices` to be below 40, the size of the pool, but got 40."),
        ([1], [math.nan], "Expected `labels` to be finite"),
        ([1], ["cat"], "Expected `labels` to be a tensor or a list of numbers"),
    ],
)
def test_labels_that_do_not_fit_are_refused_and_change_nothing(indices, labels, message):
    loop = learning()
    with pytest.raises(DataError) as caught:
        loop.tell(indices, labels)
    assert message in str(caught.value)
    assert loop.known == {0: 0, 39: 1}


def test_a_mistyped_option_is_refused_before_anything_is_trained():
    with pytest.raises(TypeError, match="sede"):
        ActiveLearning(POOL, lambda indices, labels: None, sede=1)
    with pytest.raises(RecipeError, match="Did you mean 'batchbald'"):
        ActiveLearning(POOL, lambda indices, labels: None, "batchbal")


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1, "indices": [50], "labels": [1]}'])
def test_a_file_that_is_something_else_is_refused_and_nothing_is_lost(text, tmp_path):
    (tmp_path / "labels.json").write_text(text)
    loop = learning()
    with pytest.raises(CheckpointError, match="the JSON of labels"):
        loop.load(tmp_path / "labels.json")
    assert loop.known == {0: 0, 39: 1}


def test_labels_that_came_as_numbers_stay_numbers_and_classes_stay_classes():
    classes, numbers = (ActiveLearning(torch.zeros(9, 2), lambda *_: None) for _ in range(2))
    classes.tell([0], [2])
    classes.tell([1], [1.0])  # as arrays of other libraries hold them
    assert classes.known == {0: 2, 1: 1}
    with pytest.raises(DataError, match=r"class indices, as those before, but got 1\.5; regression takes floats"):
        classes.tell([2], [1.5])
    numbers.tell([0], [0.5])
    numbers.tell([1], [2])
    assert numbers.known == {0: 0.5, 1: 2.0}
    assert numbers.labels.dtype.is_floating_point
    numbers.tell([2], [True])
    assert numbers.known[2] == 1.0
    with pytest.raises(DataError, match="Expected `labels` to be finite"):
        numbers.tell([3], [float("nan")])


@pytest.mark.parametrize(("scores", "words"), [(torch.zeros(3), r"of shape \(5,\)"), ([0.0] * 5, "but got list")])
def test_scores_of_another_form_are_refused(scores, words):
    class Odd:
        def predict(self, x):
            raise NotImplementedError

        def score(self, x):
            return scores

    with pytest.raises(DataError, match=f"Expected scores of the pool to be .*{words}"):
        acquire(Odd(), torch.zeros(5, 2), 1, "own", progress=False)
