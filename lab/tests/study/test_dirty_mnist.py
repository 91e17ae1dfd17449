"""Ambiguous digits: the pieces of the recipe, the cache, the published files, and a small build from real MNIST."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from repulse.errors import CacheError, CacheWarning, DataError, RecipeError
from repulse.prediction import entropy
from repulse_lab.data import load
from repulse_lab.study import ambiguous, dirty_mnist
from repulse_lab.study.ambiguous import Effort, Maker, barycentric, mixtures, shares, stratified
from repulse_lab.study.dirty_mnist import Ambiguous, ambiguous_mnist, build, built, published

TINY = Effort(images=12, candidates=60, epochs=1, lenets=2, lenet_epochs=1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_digits(count: int, seed: int = 0) -> Ambiguous:
    generator = seeded(seed)
    images = torch.randint(256, (count, 1, 28, 28), generator=generator, dtype=torch.uint8)
    probs = torch.rand(count, 10, generator=generator).softmax(dim=1)
    return Ambiguous(images, torch.multinomial(probs, 10, replacement=True, generator=generator), probs)


def write_idx(path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Pictures of ten classes in the layout of MNIST, and a filter that lets everything through that has a bin."""
    random = np.random.default_rng(0)
    for start, count in (("train", 200), ("t10k", 60)):
        images = random.integers(256, size=(count, 28, 28))
        write_idx(tmp_path / f"MNIST/raw/{start}-images-idx3-ubyte", images)
        write_idx(tmp_path / f"MNIST/raw/{start}-labels-idx1-ubyte", np.arange(count) % 10)
    monkeypatch.setattr(ambiguous, "STRATA", torch.linspace(0.0, 2.5, 51))
    monkeypatch.setattr(ambiguous, "DISAGREEMENT", 10.0)
    return tmp_path


@pytest.mark.parametrize("corners", [2, 3, 4])
def test_weights_are_uniform_over_the_simplex(corners):
    weights = barycentric(20_000, torch.full((20_000,), corners), seeded())
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(20_000))
    assert bool((weights >= 0).all())
    assert not bool(weights[:, corners:].any())
    inside = weights[:, :corners].double()
    # A uniform point of the simplex is Dirichlet(1, ..., 1): mean 1/n, variance (n-1)/(n^2 (n+1)), and a piece is
    # longer than t with probability (1-t)^(n-1).
    torch.testing.assert_close(inside.mean(0), torch.full((corners,), 1 / corners).double(), atol=0.01, rtol=0)
    variance = (corners - 1) / (corners**2 * (corners + 1))
    torch.testing.assert_close(inside.var(0), torch.full((corners,), variance).double(), atol=0.004, rtol=0)
    for t in (0.2, 0.5, 0.8):
        longer = (inside > t).double().mean(0)
        torch.testing.assert_close(longer, torch.full((corners,), (1 - t) ** (corners - 1)).double(), atol=0.02, rtol=0)


def test_mixtures_are_of_two_to_four_codes_of_different_classes():
    labels = torch.randint(10, (300,), generator=seeded())
    codes = torch.eye(300)  # so that a mixture is its own list of weights
    mixed = mixtures(codes, labels, 3000, seeded(1))
    torch.testing.assert_close(mixed.sum(dim=1), torch.ones(3000))
    used = mixed > 0
    parts = used.sum(dim=1)
    assert parts.unique().tolist() == [2, 3, 4]
    torch.testing.assert_close(parts.bincount()[2:] / 3000, torch.full((3,), 1 / 3), atol=0.04, rtol=0)
    for row in used:
        assert len(labels[row].unique()) == int(row.sum())
    assert bool(used.any(dim=0).all())  # every digit has its turn
    with pytest.raises(DataError, match="Expected the digits to be of all 10 classes, but got none of class 3"):
        mixtures(codes, torch.where(labels == 3, 4, labels), 10, seeded())


def test_only_what_members_agree_to_be_ambiguous_is_kept():
    def pair(one, two):
        rows = torch.full((2, 10), 1e-9)
        rows[0, :2], rows[1, :2] = torch.tensor(one), torch.tensor(two)
        return rows.log()

    agree, sure, differ = pair([0.5, 0.5], [0.5, 0.5]), pair([1.0, 0.0], [1.0, 0.0]), pair([1.0, 0.0], [0.0, 1.0])
    # Members that say (1/2 + d, 1/2 - d) and the reverse have mutual information log 2 - H(1/2 + d).
    near, far = pair([0.65, 0.35], [0.35, 0.65]), pair([0.67, 0.33], [0.33, 0.67])
    assert math.log(2) + 0.65 * math.log(0.65) + 0.35 * math.log(0.35) < 0.05
    assert math.log(2) + 0.67 * math.log(0.67) + 0.33 * math.log(0.33) > 0.05
    kept = ambiguous.ambiguous(torch.stack([agree, sure, differ, near, far], dim=1))
    assert kept.tolist() == [True, False, False, True, False]


def test_shares_follow_the_fifth_root_and_never_ask_for_more_than_there_is():
    sizes = torch.tensor([100_000, 3125, 32, 1, 0])  # fifth roots 10, 5, 2, 1, 0
    assert shares(sizes, 18).tolist() == [10, 5, 2, 1, 0]
    assert shares(sizes, 1800).tolist() == [1178, 589, 32, 1, 0]  # 33 that are not there are made up for, 2 to 1
    assert shares(sizes, int(sizes.sum())).tolist() == sizes.tolist()
    for count in (1, 2, 7, 100, 5000):
        assert int(shares(sizes, count).sum()) == count
    with pytest.raises(DataError, match="candidates to be enough for at least 6 ambiguous images, but got 5 of them"):
        shares(torch.tensor([2, 3]), 6)


def test_sampling_is_stratified_without_replacement():
    values = torch.cat([torch.linspace(0.051, 0.08, 3200), torch.full((100,), 1.0), torch.tensor([0.01, 1.7])])
    chosen = stratified(values, 150, seeded())
    assert len(chosen.unique()) == 150
    picked = values[chosen]
    assert float(picked.min()) >= 0.05
    assert float(picked.max()) <= 1.6
    low = int((picked < 0.5).sum())
    assert low == round(150 * 2 / 3)  # (3200 / 100) ** 0.2 = 2
    assert float(picked[:75].mean()) == pytest.approx(float(picked[75:].mean()), abs=0.25)  # shuffled
    assert not torch.equal(chosen, stratified(values, 150, seeded(1)))


def test_labels_come_as_often_as_the_probabilities_say(root, monkeypatch):
    made = (torch.zeros(2000, 1, 28, 28, dtype=torch.uint8), torch.tensor([[0.7, 0.2, 0.1] + [0.0] * 7] * 2000))
    monkeypatch.setattr(Maker, "__init__", lambda *_: None)
    monkeypatch.setattr(Maker, "make", lambda *_: made)
    data = build(root, 0, TINY, 50)
    frequencies = data.labels.flatten().bincount(minlength=10) / data.labels.numel()
    torch.testing.assert_close(frequencies, data.probs[0], atol=0.01, rtol=0)
    first = data.labels[:, 0].bincount(minlength=10) / len(data.labels)  # each of the ten draws is one of its own
    torch.testing.assert_close(first, data.probs[0], atol=0.03, rtol=0)


def test_the_halves_are_made_of_other_digits_and_the_makers_see_neither(root, monkeypatch):
    seen, sources = [], []
    monkeypatch.setattr(Maker, "__init__", lambda self, images, *_: seen.append(images))

    def make(self, images, labels):
        sources.append(images)
        return torch.zeros(2, 1, 28, 28, dtype=torch.uint8), torch.full((2, 10), 0.1)

    monkeypatch.setattr(Maker, "make", make)
    build(root, 0, TINY, 50)
    contents = [{image.numpy().tobytes() for image in images} for images in (*seen, *sources)]
    assert [len(content) for content in contents] == [150, 50, 60]
    assert not contents[0] & contents[1]
    assert not contents[0] & contents[2]
    assert not contents[1] & contents[2]
    with pytest.raises(RecipeError, match="Expected `held_back` to be between 0 and 200, but got 200"):
        build(root, 0, TINY, 200)


def test_a_build_is_seeded_kept_and_read_back(root, tmp_path, monkeypatch):
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first = built(root, tmp_path / "a", 5, TINY, 50, False)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.images.shape == (24, 1, 28, 28)
    assert first.labels.shape == first.probs.shape == (24, 10)
    torch.testing.assert_close(first.probs.sum(dim=1), torch.ones(24))
    content = (tmp_path / "a/built-5.safetensors").read_bytes()
    built(root, tmp_path / "b", 5, TINY, 50, False)
    built(root, tmp_path / "b", 6, TINY, 50, False)
    assert (tmp_path / "b/built-5.safetensors").read_bytes() == content
    assert (tmp_path / "b/built-6.safetensors").read_bytes() != content
    assert sorted(path.name for path in (tmp_path / "b").iterdir() if path.name != "lock") == [
        "built-5.safetensors",
        "built-6.safetensors",
    ]
    monkeypatch.setattr(dirty_mnist, "build", None)  # from here on, nothing can be built
    again = built(root, tmp_path / "a", 5, TINY, 50, False)
    for name in ("images", "labels", "probs"):
        assert torch.equal(getattr(again, name), getattr(first, name))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda content: content[:-100], "damaged"),
        (lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:], "damaged"),
        (lambda content: b"", "damaged"),
        (lambda content: content.replace(b'\\"seed\\": 0', b'\\"seed\\": 7'), "of other settings"),
    ],
)
def test_what_is_not_whole_or_not_ours_is_built_again_and_said(root, change, why, monkeypatch):
    monkeypatch.setattr(dirty_mnist, "build", lambda *_: random_digits(4))
    folder = root / "kept"
    path = folder / "built-0.safetensors"
    built(root, folder, 0, TINY, 50, False)
    content = path.read_bytes()
    assert change(content) != content
    path.write_bytes(change(content))
    (folder / ".built-0.safetensors.abc").write_bytes(b"of a writer that was killed")
    with pytest.warns(CacheWarning, match=f"built again: the file is {why}"):
        built(root, folder, 0, TINY, 50, False)
    assert path.read_bytes() == content
    assert sorted(entry.name for entry in folder.iterdir() if entry.name != "lock") == [path.name]


def test_of_two_that_build_at_once_one_waits_and_reads(root, monkeypatch):
    builds, begun = [], threading.Event()

    def slow(*_):
        builds.append(1)
        begun.set()
        threading.Event().wait(0.5)
        return random_digits(4)

    monkeypatch.setattr(dirty_mnist, "build", slow)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(built(root, root / "kept", 0, TINY, 50, False)))
        for _ in range(2)
    ]
    threads[0].start()
    begun.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert torch.equal(results[0].images, results[1].images)


def test_a_folder_that_cannot_be_written_to_is_refused(root):
    (root / "file").write_text("")
    with pytest.raises(CacheError, match="Expected `cache` to be a folder that can be written to"):
        built(root, root / "file" / "kept", 0, TINY, 50, False)


def publish(folder, samples, labels) -> None:
    folder.mkdir(exist_ok=True)
    torch.save(samples, folder / "amnist_samples.pt")
    torch.save(labels, folder / "amnist_labels.pt")


def test_published_files_are_read(tmp_path):
    data = random_digits(6)
    publish(tmp_path / "AmbiguousMNIST", data.images.float() / 255, data.labels)
    train, test = (ambiguous_mnist(tmp_path, split) for split in ("train", "test"))
    assert len(train) == len(test) == 3
    assert torch.equal(torch.cat([train.images, test.images]), data.images)
    assert torch.equal(torch.cat([train.labels, test.labels]), data.labels)
    for row, probs in zip(data.labels, torch.cat([train.probs, test.probs]), strict=True):
        torch.testing.assert_close(probs, row.bincount(minlength=10) / 10)


@pytest.mark.parametrize(
    ("samples", "labels", "sentence"),
    [
        (torch.zeros(4, 28, 28), torch.zeros(4, 10), r"an even number of images \(1, 28, 28\), but got \(4, 28, 28\)"),
        (torch.zeros(3, 1, 28, 28), torch.zeros(3, 10), r"an even number of images .*, but got \(3, 1, 28, 28\)"),
        (torch.full((2, 1, 28, 28), math.nan), torch.zeros(2, 10), "floats between 0 and 1"),
        (torch.full((2, 1, 28, 28), 2.0), torch.zeros(2, 10), "floats between 0 and 1"),
        (torch.zeros(2, 1, 28, 28), torch.zeros(2, 9), r"of shape \(2, 10\), but got \(2, 9\)"),
        (torch.zeros(2, 1, 28, 28), torch.full((2, 10), 10), "classes from 0 to 9"),
        (torch.zeros(2, 1, 28, 28), torch.full((2, 10), 0.5), "classes from 0 to 9"),
        ({"samples": 1}, torch.zeros(2, 10), "a tensor saved by PyTorch, but got a dict"),
    ],
)
def test_published_files_that_are_not_as_published_are_refused(samples, labels, sentence, tmp_path):
    publish(tmp_path, samples, labels)
    with pytest.raises(DataError, match=sentence):
        published(tmp_path)


def test_published_files_that_cannot_be_read_are_refused(tmp_path):
    publish(tmp_path, torch.zeros(2, 1, 28, 28), torch.zeros(2, 10))
    content = (tmp_path / "amnist_samples.pt").read_bytes()
    (tmp_path / "amnist_samples.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="a tensor saved by PyTorch"):
        published(tmp_path)
    (tmp_path / "amnist_labels.pt").unlink()
    with pytest.raises(DataError, match=r"both amnist_samples.pt and amnist_labels.pt, but got no amnist_labels.pt"):
        published(tmp_path)


def test_arguments_are_checked_before_anything_is_built(tmp_path):
    with pytest.raises(RecipeError, match=r"Expected `split` to be one of 'train', 'test', but got 'valid'"):
        ambiguous_mnist(tmp_path, "valid")
    with pytest.raises(DataError, match="these are not there: MNIST/raw/train-images"):
        ambiguous_mnist(tmp_path, progress=False)


def test_the_sets_are_combined_in_pairs(root):
    data = random_digits(10)
    publish(root / "AmbiguousMNIST", data.images.float() / 255, data.labels)
    train, test = dirty_mnist.dirty_mnist(root), dirty_mnist.dirty_mnist(root, "test")
    assert (len(train), len(test)) == (200 + 50, 60 + 50)
    assert int(train.ambiguous.sum()) == 50
    assert torch.equal(test.targets[test.ambiguous].view(5, 10), data.labels[5:])
    assert torch.equal(test.images[test.ambiguous][::10], data.images[5:])
    assert bool((test.images[60:70] == data.images[5]).all())  # ten copies in a row


@pytest.mark.data
def test_a_hasty_build_from_real_digits_is_sane(data_root):
    hasty = Effort(images=300, candidates=5000, epochs=1, lenets=3, lenet_epochs=1)
    data = build(data_root, 0, hasty, 48_000)
    assert data.images.shape == (600, 1, 28, 28)
    doubt = entropy(data.probs.log())
    assert float(doubt.min()) >= 0.05
    assert float(doubt.max()) <= 1.6
    for half in (doubt[:300], doubt[300:]):
        assert 0.4 < float(half.mean()) < 1.2  # spread over the strata, in both halves
    assert set(data.labels[:300].flatten().tolist()) == set(range(10))
    assert set(data.labels[300:].flatten().tolist()) == set(range(10))
    assert len({image.numpy().tobytes() for image in data.images}) == 600
    best = (data.probs.argmax(dim=1, keepdim=True) == data.labels).float().mean()
    assert float(best) == pytest.approx(float(data.probs.amax(dim=1).mean()), abs=0.03)  # what can be had, and no more
    assert 0.45 < float(best) < 0.9
    images, labels = load("mnist", "train", data_root).labelled
    other = Maker(images[:12_000], labels[:12_000], replace(hasty, lenets=1), seeded(1))
    hits = (other.judge(data.images)[0].argmax(dim=1, keepdim=True) == data.labels).float().mean()
    assert 0.4 < float(hits) < float(best) + 0.02  # a LeNet that had no part in it does well, but no better than can be
