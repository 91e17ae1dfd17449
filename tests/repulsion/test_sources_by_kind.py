"""Sources for tables, texts, signals, features and images in any layout: what each of them promises."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from repulse import RecipeError, RepulsionError
from repulse.repulsion import (
    ClassMixture,
    DeadLeaves,
    Difference,
    FeatureSource,
    HalfShuffle,
    Mixture,
    PatchShuffle,
    PhaseScramble,
    ReplacedWords,
    SegmentShuffle,
    Shear,
    Shell,
    SignalPhaseScramble,
    SignalSamples,
    SpanMix,
    Swirl,
    SyntheticImages,
    TableSamples,
    TextSamples,
    UniformBox,
    WideBox,
    WordShuffle,
)
from repulse.repulsion.shell import MOST_AXES, correlation_factor
from repulse.repulsion.source import sample_inputs

CLS, SEP, PAD = 101, 102, 0


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def table(rows=400, columns=6, seed=1):
    """Every value names its row and its column, on scales from 1 to 10^5."""
    number = torch.arange(rows, dtype=torch.float64).unsqueeze(1) + 1
    return number * 10.0 ** torch.arange(columns, dtype=torch.float64)


def texts(rows=64, length=20, seed=2):
    """Texts of 5 to 16 tokens between a first and a last special one, then padding; some have a separator within."""
    ids = torch.randint(200, 5000, (rows, length), generator=generator(seed))
    sizes = torch.randint(5, length - 3, (rows,), generator=generator(seed + 1))
    mask = torch.zeros(rows, length, dtype=torch.int64)
    for row, size in enumerate(sizes.tolist()):
        ids[row, 0], ids[row, size + 1], ids[row, size + 2 :] = CLS, SEP, PAD
        ids[row, 2 + row % 3] = SEP if row % 2 else ids[row, 2 + row % 3]
        mask[row, : size + 2] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


# Tables


def test_half_of_the_columns_come_from_one_other_row():
    batch = table()
    sample = HalfShuffle().sample(batch, generator())
    rows = (sample / 10.0 ** torch.arange(6)).round().long() - 1  # which row each value comes from
    assert torch.equal(sample, torch.stack([batch[rows[:, c], c] for c in range(6)], dim=1))
    own = rows == torch.arange(400).unsqueeze(1)
    assert float(own.double().mean()) == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(own.numel()))
    for row in range(400):
        assert len(rows[row][~own[row]].unique()) <= 1


def test_a_table_in_a_mapping_keeps_its_columns_and_types_and_one_partner_per_row():
    rows = torch.arange(500)
    batch = {"age": rows.double(), "codes": torch.stack([rows, rows], 1), "flag": rows % 2 == 0}
    sample = HalfShuffle().sample(batch, generator())
    assert {key: value.dtype for key, value in sample.items()} == {key: value.dtype for key, value in batch.items()}
    found = torch.stack([sample["age"].long(), *sample["codes"].T], dim=1)
    assert all(len(set(values.tolist()) | {row}) <= 2 for row, values in enumerate(found))
    assert 0.4 < float((found == rows.unsqueeze(1)).double().mean()) < 0.6
    boxed = WideBox().sample(batch, generator())
    assert set(boxed["codes"].flatten().tolist()) <= set(rows.tolist())
    assert float(boxed["age"].min()) < -400
    assert float(boxed["age"].max()) > 900


@pytest.mark.parametrize("margin", [0.5, 1.0, 3.0])
def test_the_wide_box_reaches_beyond_every_column_by_its_margin(margin):
    batch = table(5000)
    sample = WideBox(margin).sample(batch, generator())
    low, extent = batch.amin(dim=0), batch.amax(dim=0) - batch.amin(dim=0)
    unit = ((sample - low) / extent + margin) / (1 + 2 * margin)
    assert bool((unit >= 0).all() and (unit <= 1).all())
    for column in unit.T:  # Kolmogorov, 0.1 %
        assert float((column.sort().values - torch.linspace(0, 1, 5000)).abs().max()) < 1.95 / math.sqrt(5000)


@pytest.mark.parametrize("source", [HalfShuffle(), WideBox(), TableSamples()], ids=repr)
def test_what_is_no_table_is_refused(source):
    with pytest.raises(RepulsionError, match=r"at least two inputs per batch for .*, but got 1"):
        source.sample(torch.ones(1, 3), generator())
    with pytest.raises(RepulsionError, match=r"columns \(rows,\) or \(rows, columns\)"):
        source.sample(torch.ones(4, 3, 8, 8), generator())


# Texts


@pytest.mark.parametrize("source", [WordShuffle(), SpanMix(), TextSamples(), ReplacedWords()], ids=repr)
@pytest.mark.parametrize("form", ["mapping", "tuple", "ids alone"])
def test_special_tokens_and_padding_stay(source, form):
    batch = texts()
    forms = {"mapping": batch, "tuple": (batch["input_ids"], batch["attention_mask"]), "ids alone": batch["input_ids"]}
    sample = sample_inputs(source, forms[form], generator())
    if form == "mapping":
        assert torch.equal(sample["attention_mask"], batch["attention_mask"])
        assert torch.equal(sample["token_type_ids"], batch["token_type_ids"])
    ids = sample["input_ids"] if form == "mapping" else sample[0] if form == "tuple" else sample
    special = (batch["input_ids"] == CLS) | (batch["input_ids"] == SEP) | (batch["input_ids"] == PAD)
    assert ids.dtype == torch.int64
    assert torch.equal(ids[special], batch["input_ids"][special])
    assert bool((ids[~special] >= 200).all())
    assert float((ids != batch["input_ids"])[~special].double().mean()) > 0.3


def test_shuffled_texts_have_the_same_tokens():
    batch = texts()["input_ids"]
    sample = WordShuffle().sample(batch, generator())
    assert torch.equal(sample.sort(dim=1).values, batch.sort(dim=1).values)


def test_tokens_are_shuffled_uniformly():
    batch = torch.tensor([[1, 5, 6, 7, 2]]).expand(6000, 5)
    orders, counts = WordShuffle().sample(batch, generator()).unique(dim=0, return_counts=True)
    assert len(orders) == 6
    assert float(((counts - 1000.0) ** 2 / 1000).sum()) < 20.5  # chi-square, 5 degrees of freedom, 0.1 %


def test_a_span_of_another_text_replaces_one_of_30_to_70_per_cent():
    rows, length = 200, 42
    ids = torch.arange(rows * length).view(rows, length) + 200
    ids[:, 0], ids[:, -1] = CLS, SEP
    sample = SpanMix().sample({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, generator())["input_ids"]
    origin = (sample - 200) // length
    for row in range(rows):
        places = (origin[row, 1:-1] != row).nonzero().flatten()
        assert 12 <= len(places) <= 28
        assert torch.equal(places, torch.arange(int(places[0]), int(places[-1]) + 1))  # one span
        assert len(origin[row, 1:-1][places].unique()) == 1  # of one other text
        steps = sample[row, 1:-1][places].diff()
        assert int((steps != 1).sum()) <= 1  # consecutive there too, but where it starts over


def test_texts_without_content_stay_as_they_are():
    empty = torch.tensor([[CLS, SEP, PAD, PAD], [CLS, 500, SEP, PAD]])
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
    for source in (WordShuffle(), SpanMix()):
        sample = source.sample({"input_ids": empty, "attention_mask": mask}, generator())["input_ids"]
        assert torch.equal(sample, empty)


def test_padding_on_the_left():
    ids = torch.tensor([[PAD, PAD, 7, 8, 9, 10, 11]]).expand(50, 7)
    mask = (ids != PAD).long()
    sample = WordShuffle().sample({"input_ids": ids, "attention_mask": mask}, generator())["input_ids"]
    assert torch.equal(sample[:, [0, 1, 2, 6]], ids[:, [0, 1, 2, 6]])
    assert len(sample.unique(dim=0)) == 6


def test_what_is_no_text_is_refused():
    with pytest.raises(RepulsionError, match=r"token ids of shape .* for WordShuffle, but got torch.float32"):
        WordShuffle().sample(torch.rand(4, 5), generator())


# Signals


@pytest.mark.parametrize("shape", [(40, 3, 64), (40, 64), (40, 2, 61)], ids=str)
def test_segments_move_as_a_whole(shape):
    steps = shape[-1]
    batch = torch.arange(steps, dtype=torch.float32).expand(shape)
    sample = SegmentShuffle(8).sample(batch, generator())
    assert sample.shape == shape
    flat = sample.reshape(40, -1, steps)
    assert torch.equal(flat, flat[:, :1].expand_as(flat))  # channels move together
    assert torch.equal(flat.sort(dim=-1).values, batch.reshape(40, -1, steps))
    jumps = (flat[:, 0].diff(dim=1) != 1).sum(dim=1)
    assert bool(((jumps >= 1) & (jumps <= 7)).all())  # never the identity


@pytest.mark.parametrize("shape", [(6, 3, 64), (6, 61)], ids=str)
def test_scrambled_signals_keep_amplitudes_means_and_cross_spectra(shape):
    batch = torch.randn(shape, generator=generator(3), dtype=torch.float64).cumsum(dim=-1)
    sample = SignalPhaseScramble().sample(batch, generator())
    before, after = torch.fft.rfft(batch), torch.fft.rfft(sample)
    assert_close(after.abs(), before.abs())
    assert_close(sample.mean(dim=-1), batch.mean(dim=-1))
    if batch.ndim == 3:
        assert_close(after[:, 0] * after[:, 1].conj(), before[:, 0] * before[:, 1].conj())
    assert float((sample - batch).abs().mean()) > 0.3 * float(batch.std())


@pytest.mark.parametrize("source", [SegmentShuffle(), SignalPhaseScramble(), SignalSamples()], ids=repr)
def test_what_is_no_signal_is_refused(source):
    with pytest.raises(RepulsionError, match=r"float signals .* but got torch.int64"):
        source.sample(torch.ones(4, 3, 64, dtype=torch.int64), generator())
    with pytest.raises(RepulsionError, match="float signals"):
        source.sample(torch.ones(4, 3, 2), generator())


# Images in any layout and type


@pytest.mark.parametrize("source", [DeadLeaves(), PhaseScramble(), Swirl(), Shear(), PatchShuffle(4)], ids=repr)
def test_channels_last_and_bytes_give_the_same_images(source):
    first = torch.randint(0, 256, (5, 3, 16, 16), generator=generator(4), dtype=torch.uint8)
    plain = source.sample(first.float(), generator())
    last = source.sample(first.float().movedim(1, 3), generator())
    assert_close(last.movedim(3, 1), plain)
    made = source.sample(first, generator())
    assert made.dtype == torch.uint8
    assert torch.equal(made, plain.round().clamp(0, 255).to(torch.uint8))
    assert torch.equal(source.sample(first.movedim(1, 3), generator()).movedim(3, 1), made)
    grey = source.sample(first[:, 0], generator())
    assert torch.equal(grey, source.sample(first[:, :1], generator())[:, 0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(8, 16, 16, 3), (8, 3, 16, 16), (8, 16, 16)], ids=str)
def test_synthetic_images_of_every_type_stay_in_the_range_of_the_images(dtype, shape):
    batch = (200 * torch.rand(shape, generator=generator(5)) + 20).to(dtype)
    sample = sample_inputs(SyntheticImages(), {"pixels": batch, "size": torch.tensor(3)}, generator())["pixels"]
    assert (sample.shape, sample.dtype) == (batch.shape, dtype)
    assert float(sample.min()) >= float(batch.min())
    assert float(sample.max()) <= float(batch.max())
    assert float(sample.float().std()) > 1


# Feature space


@pytest.mark.parametrize(("rows", "width"), [(300, 5), (300, 700), (2500, 40)])
def test_the_factor_of_correlations_is_exact_where_it_is_small(rows, width):
    scaled = torch.randn(rows, width, generator=generator(6))
    factor = correlation_factor(scaled, generator())
    assert_close(factor.T @ factor, scaled.T @ scaled / rows, rtol=1e-4, atol=1e-5)


def test_the_factor_of_wide_features_has_bounded_rank_and_is_right_on_average():
    mixing = torch.randn(6, 1100, generator=generator(7))
    scaled = torch.randn(1500, 6, generator=generator(8)) @ mixing
    factor = correlation_factor(scaled, generator())
    assert factor.shape == (MOST_AXES, 1100)
    exact = scaled.T @ scaled / 1500
    assert float((factor.T @ factor - exact).norm() / exact.norm()) < 4 * math.sqrt(6 / MOST_AXES)


def test_the_shell_has_the_mean_the_correlations_and_the_radius_it_says():
    mixing = torch.tensor([[2.0, 0.0, 0.0], [3.0, 1.0, 0.0], [0.0, 5.0, 100.0]])
    features = torch.randn(4000, 3, generator=generator(9)) @ mixing.T + torch.tensor([5.0, -3.0, 1000.0])
    count = 40_000
    sample = Shell(2.0, 2.0).sample_features(features, count, generator()).double()
    covariance = torch.cov(features.T.double(), correction=0)
    size = covariance.diagonal().sqrt()
    assert_close((sample.mean(0) - features.mean(0)) / (2 * size), torch.zeros(3).double(), rtol=0, atol=0.02)
    correlation = torch.cov(sample.T) / 4 / size / size.unsqueeze(1)
    assert_close(correlation, covariance / size / size.unsqueeze(1), rtol=0, atol=4 * math.sqrt(2 / count))
    scaled = torch.linalg.solve_triangular(
        torch.linalg.cholesky(covariance),
        (Shell().sample_features(features, count, generator()).double() - features.mean(0).double()).T,
        upper=False,
    )
    square = float(scaled.square().mean())  # of log-uniform rho on [a, b] the mean square is (b^2 - a^2) / 2 log(b/a)
    assert square == pytest.approx((36 - 2.25) / (2 * math.log(4)), rel=0.05)


def test_samples_lie_where_the_features_vary_and_nowhere_else():
    features = torch.randn(50, 4, generator=generator(10))
    features[:, 1], features[:, 3] = 7.0, features[:, 0]
    for source in (Shell(), Difference()):
        sample = source.sample_features(features, 1000, generator())
        assert_close(sample[:, 1], torch.full((1000,), 7.0))
        assert_close(sample[:, 3], sample[:, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1e18, 1e-18])
def test_features_of_any_size_keep_it(size):
    features = torch.randn(100, 4, generator=generator(11))
    for source in (Shell(), Difference()):
        plain, scaled = (source.sample_features(x, 500, generator()) for x in (features, size * features))
        assert_close(scaled / size, plain, rtol=1e-4, atol=1e-4)


def test_differences_are_enlarged_differences_of_two_samples():
    features = torch.eye(8)
    sample = Difference(3.0, 3.0).sample_features(features, 200, generator())
    apart = (sample - features.mean(0)) * math.sqrt(2) / 3
    assert_close(apart.sort(dim=1).values, torch.tensor([-1.0, 0, 0, 0, 0, 0, 0, 1]).expand(200, 8), rtol=0, atol=1e-6)


def test_classes_are_mixed_with_other_classes_only():
    targets = torch.tensor([0, 1, 0, 2, 1, 0])
    weights = ClassMixture().sample_features(torch.eye(6), 3000, generator(), targets)
    for row in weights:
        parts = row.nonzero().flatten()
        assert len(parts) == 2
        assert targets[parts[0]] != targets[parts[1]]
    assert_close(weights.sum(dim=1), torch.ones(3000))
    assert bool(((weights == 0) | ((weights >= 0.3 - 1e-6) & (weights <= 0.7 + 1e-6))).all())
    assert len((weights > 0).unique(dim=0)) == 11  # all pairs of samples of different classes


@pytest.mark.parametrize("source", [Shell(), Difference(), Mixture([Shell(), Difference()])], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_features_are_seeded_and_of_at_least_single_precision(source, dtype):
    features, state = torch.randn(30, 5, generator=generator(12)).to(dtype), torch.get_rng_state()
    before = features.clone()
    first, again, other = (source.sample_features(features, 70, generator(seed)) for seed in (1, 1, 2))
    assert first.shape == (70, 5)
    assert first.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(features, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_many_rows_are_not_all_read(monkeypatch):
    monkeypatch.setattr("repulse.repulsion.feature_rows.MOST_ROWS", 500)
    features = torch.randn(20_000, 3, generator=generator(13))
    sample = Shell(1.0, 1.0).sample_features(features, 20_000, generator())
    assert_close(sample.std(dim=0), torch.ones(3), rtol=0, atol=0.15)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Difference().sample_features(torch.ones(1, 2), 3, generator()), "of at least two samples"),
        (lambda: ClassMixture().sample_features(torch.ones(3, 2), 3, generator()), "one class per sample"),
        (
            lambda: ClassMixture().sample_features(torch.ones(3, 2), 3, generator(), torch.zeros(3).long()),
            "of at least two classes",
        ),
        (lambda: Mixture([UniformBox()]).sample_features(torch.ones(3, 2), 3, generator()), "that draws features"),
        (lambda: Mixture([Shell()]).sample(torch.ones(3, 2), generator()), "that draws inputs"),
    ],
)
def test_what_sources_cannot_draw_from_is_refused(call, words):
    with pytest.raises(RepulsionError, match=words):
        call()


@pytest.mark.parametrize("source", [Shell, Difference])
def test_ranges_that_make_no_sense_are_refused(source):
    with pytest.raises(RecipeError, match="`smallest` to be at most `largest`, but got smallest=3, largest=2"):
        source(3, 2)
    with pytest.raises(RecipeError, match="`smallest` to be a positive, finite number"):
        source(0.0)
    with pytest.raises(RecipeError, match="`segments` to be at least 2"):
        SegmentShuffle(1)


# Mixtures of both kinds


class Constant(FeatureSource):
    def __init__(self, value):
        self.value = value

    def sample_features(self, features, count, generator, targets=None):
        return torch.full((count, features.shape[1]), self.value)


def test_a_mixture_knows_its_share_in_feature_space_however_deep():
    inner = Mixture([UniformBox(), Shell()], [1, 3])
    assert inner.feature_share == 0.75
    outer = Mixture([inner, HalfShuffle()], [1, 1])
    assert outer.feature_share == 0.375
    box = Mixture([Mixture([UniformBox(5, 6), Shell()], [1, 3]), UniformBox(0, 1)], [1, 1])
    far = float((box.sample(torch.zeros(4000, 1), generator()) >= 5).double().mean())
    assert far == pytest.approx(0.2, abs=4 * 0.4 / math.sqrt(4000))  # 1/8 against 1/2


def test_features_come_from_each_source_as_often_as_its_weight_says():
    sample = Mixture([Constant(0.0), UniformBox(), Constant(1.0)], [1, 9, 3]).sample_features(
        torch.zeros(5, 2), 4000, generator()
    )
    assert sample.shape == (4000, 2)
    assert float(sample.mean()) == pytest.approx(0.75, abs=4 * math.sqrt(0.75 * 0.25 / 4000))


def test_a_mixture_takes_mappings_apart_by_rows():
    batch = texts()
    sample = Mixture([WordShuffle()]).sample(batch, generator())
    assert torch.equal(sample["input_ids"].sort(dim=1).values, batch["input_ids"].sort(dim=1).values)
    assert torch.equal(sample["attention_mask"], batch["attention_mask"])
