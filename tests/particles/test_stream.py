"""Features larger than memory: what is walked, what is drawn, and how much of it is held at a time."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from repulse import FS_RLL_E, CacheError, DataError, Recipe, _mapped, fit_heads
from repulse._mapped import map_file, read_blocks, release_pages, row_chunks
from repulse.particles import fit, pool
from repulse.particles.fit_data import identity
from repulse.particles.pool import Pool, batches

D = 4
pytestmark = pytest.mark.filterwarnings("ignore::repulse.errors.FitWarning")


@pytest.fixture
def small(monkeypatch):
    """Blocks of 10 rows, and pools of 12 blocks, for features of D columns."""
    monkeypatch.setattr(pool, "BLOCK_ELEMENTS", 10 * D + 1)
    monkeypatch.setattr(pool, "POOL_ELEMENTS", 120 * D)
    monkeypatch.setattr(_mapped, "MAX_ELEMENTS", 30 * D)
    monkeypatch.setattr(pool, "MAX_PRESCALED", 0)
    monkeypatch.setattr(fit, "MAX_PRESCALED", 0)


def numbered(rows: int) -> tuple[Tensor, Tensor]:
    return torch.arange(rows).unsqueeze(1).expand(rows, D).float(), torch.arange(rows)


def drawn(pool: Pool, count: int, seed: int = 0) -> list[Tensor]:
    """What the rows of some batches say which ones they are."""
    found = []
    for indices, _ in zip(pool.batches(torch.Generator().manual_seed(seed)), range(count), strict=False):
        assert torch.equal(pool.x[indices], -pool.y[indices].unsqueeze(1).expand(-1, D).float())
        found.append(pool.y[indices].clone())
    return found


@pytest.mark.parametrize(("rows", "batch"), [(1000, 8), (1003, 7), (457, 100), (600, 250), (131, 10)])
def test_every_row_comes_once_an_epoch(small, rows, batch):
    pool = Pool(*numbered(rows), torch.neg, batch)
    assert len(pool.x) <= 120 + batch
    steps = rows // batch
    found = drawn(pool, 3 * steps)
    assert {len(part) for part in found} == {batch}
    epochs = [torch.cat(found[i * steps : (i + 1) * steps]) for i in range(3)]
    for epoch in epochs:
        assert len(epoch.unique()) == steps * batch
    assert not torch.equal(epochs[0], epochs[1])
    assert torch.equal(epochs[0], torch.cat(drawn(pool, steps)))
    assert not torch.equal(epochs[0], torch.cat(drawn(pool, steps, seed=1)))


def test_batches_mix_rows_of_far_blocks(small):
    """Of rows sorted by class, every batch has most classes; of the rows of a block, hardly two meet."""
    found = drawn(Pool(*numbered(1200), torch.neg, 24), 50)
    classes = torch.stack([(part // 120).unique().numel() * torch.ones(()) for part in found])
    assert classes.mean() > 6  # in a pool of 12 random blocks there are 7 of 10 on average
    assert min((part // 10).unique().numel() for part in found) >= 7
    assert torch.cat(found[:25]).double().mean() == pytest.approx(600, abs=250)


def test_what_fits_is_drawn_as_from_memory(small):
    found = drawn(Pool(*numbered(120), torch.neg, 7), 40)
    plain = batches(120, 7, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert all(torch.equal(part, next(plain)) for part in found)
    x, y = numbered(120)
    assert Pool(x, y, identity, 7).x is x


def mapped(values: Tensor, folder: Path) -> Tensor:
    path = folder / "values"
    path.write_bytes(values.numpy().tobytes())
    return map_file(path, len(values), values.shape[1:], values.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64])
def test_files_are_walked_like_memory(small, tmp_path, dtype):
    values = torch.randn(257, D, generator=torch.Generator().manual_seed(0)).mul(9).to(dtype)
    file = mapped(values, tmp_path)
    assert file.dtype == dtype
    parts = [part.clone() for part in row_chunks(file)]
    assert torch.equal(torch.cat(parts), values)
    assert {len(part) for part in parts} == {30, 17}
    assert torch.equal(torch.cat([part.clone() for part in row_chunks(values)]), values)
    assert [len(part) for part in row_chunks(values[:, 0], 100)] == [100, 100, 57]


def test_what_was_written_to_a_mapped_file_is_kept_and_the_file_is_as_it_was(tmp_path):
    values = numbered(3000)[0]
    file = mapped(values, tmp_path)
    release_pages(file)
    assert torch.equal(file, values)
    file[7] = -1.0
    release_pages(file.detach()[5:])
    assert file[7, 0] == -1.0
    assert (tmp_path / "values").read_bytes() == values.numpy().tobytes()
    release_pages(values)
    assert torch.equal(values, numbered(3000)[0])


def test_the_right_rows_are_found_not_to_be_finite(small, tmp_path):
    features = torch.ones(200, D)
    features[131, 2], features[131, 3], features[199, 0] = torch.nan, torch.inf, -torch.inf
    for values in (features, mapped(features, tmp_path)):
        with pytest.raises(DataError, match="in 2 rows, the first being row 131"):
            fit_heads(values, torch.arange(200) % 2, progress=False)
    with pytest.raises(DataError, match="values from -1 to 5"):
        fit_heads(torch.ones(200, D), (torch.arange(200) == 150) * 6 - 1, classes=5, progress=False)


def clusters(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Three clusters that overlap, sorted by class, and samples far away."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3).repeat_interleave(rows // 3)
    features = 1.5 * torch.randn(3, D, generator=generator)[labels] + torch.randn(rows, D, generator=generator)
    return features, labels, 5 * torch.randn(100, D, generator=generator)


@pytest.mark.parametrize(
    ("recipe", "near"), [(Recipe(prior_std=0.05), 0.03), (FS_RLL_E, 0.03), (Recipe(hidden=(8,)), 0.1)]
)
def test_a_fit_through_the_pool_is_as_good(recipe, near, request, tmp_path):
    """Heads with hidden layers end in another minimum whenever their batches are others."""
    recipe = recipe.replace(heads=4, epochs=15, batch_size=30, repulsion_batch_size=30, lr=2e-2)
    features, labels, far = clusters(600)
    whole = fit_heads(features, labels, far, recipe, progress=False)
    request.getfixturevalue("small")
    pooled = fit_heads(mapped(features, tmp_path), labels, far, recipe, progress=False)
    assert not torch.equal(whole.vectors(), pooled.vectors())
    assert pooled.history[-1].nll == pytest.approx(whole.history[-1].nll, rel=near)
    assert pooled.history[-1].repulsion == pytest.approx(whole.history[-1].repulsion, rel=0.1)
    right = [float((h(features).softmax(-1).mean(0).argmax(1) == labels).float().mean()) for h in (whole, pooled)]
    assert right[1] == pytest.approx(right[0], abs=0.01)
    assert float(pooled.vectors().norm()) == pytest.approx(float(whole.vectors().norm()), rel=0.05)


def test_regression_through_the_pool_is_as_good(request):
    features, _, far = clusters(600)
    targets = features[:, 0] + 0.1 * torch.randn(600, generator=torch.Generator().manual_seed(1))
    recipe = Recipe(task="regression", heads=4, epochs=15, batch_size=30)
    whole = fit_heads(features, targets, far, recipe, progress=False)
    request.getfixturevalue("small")
    pooled = fit_heads(features, targets, far, recipe, progress=False)
    assert pooled.history[-1].nll == pytest.approx(whole.history[-1].nll, abs=0.02)
    means = [heads(features)[..., 0].mean(dim=0) for heads in (whole, pooled)]
    assert (means[1] - means[0]).abs().max() < 0.05


def test_features_made_in_inference_mode_are_fitted_like_others():
    x, far = torch.randn(300, D), 3 * torch.randn(50, D)
    with torch.inference_mode():
        made = x.clone(), (x[:, 0] > 0).long(), far.clone()
    plain = x, (x[:, 0] > 0).long(), far
    recipe = Recipe(heads=3, epochs=1)
    found = [fit_heads(*data, recipe, progress=False) for data in (made, plain)]
    assert torch.equal(found[0].weight, found[1].weight)


def test_threads_that_read_one_file_get_the_rows_they_asked_for(tmp_path):
    rows = torch.arange(4000.0).unsqueeze(1).expand(-1, D)
    (tmp_path / "rows").write_bytes(rows.contiguous().numpy().tobytes())
    mapped = map_file(tmp_path / "rows", 4000, (D,), torch.float32)

    def read(first):
        begins = list(range(first, 4000, 70))
        return [torch.equal(read_blocks(mapped, begins, 7), read_blocks(rows, begins, 7)) for _ in range(200)]

    with ThreadPoolExecutor(4) as pool:
        assert all(all(found) for found in pool.map(read, range(8)))


def test_a_file_that_has_become_shorter_is_an_error(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(bytes(4 * D * 100))
    mapped = map_file(path, 100, (D,), torch.float32)
    with path.open("r+b") as file:
        file.truncate(4 * D * 50)
    with pytest.raises(CacheError, match="has become shorter since its features were mapped"):
        read_blocks(mapped, [40], 20)


CHILD = """
import sys
from pathlib import Path
import torch
from repulse import Recipe, fit_heads
from repulse.backbone.store import CachedStore
from repulse import _mapped
from repulse.particles import fit, pool

fit.MAX_PRESCALED = 0
pool.POOL_ELEMENTS = _mapped.MAX_ELEMENTS = 2**20
folder, batches = Path(sys.argv[1]), int(sys.argv[2])
generator = torch.Generator().manual_seed(0)
x = torch.randn(8192, 64, generator=generator)
y = (x[:, 0] > 0).long()
store = CachedStore(folder, "train", {}, (x, y))
for _ in range(batches):
    store.append("", x, y)
features, targets = store.finish()
recipe = Recipe(heads=2, epochs=1, batch_size=2048, lr=1e-2)
fit_heads(features, targets, 3 * x[:1000], recipe, progress=False)
status = Path("/proc/self/status").read_text()
print([int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")][0])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read as Linux tells it")
def test_ten_times_the_rows_need_no_more_memory(tmp_path):
    """Of 13 MB and 126 MB; `ru_maxrss` would also count what the process was forked from."""
    peaks = []
    for rows in (6, 60):
        folder = tmp_path / str(rows)
        folder.mkdir()
        run = [sys.executable, "-W", "ignore", "-c", CHILD, str(folder), str(rows)]
        peaks.append(int(subprocess.run(run, check=True, capture_output=True, text=True).stdout))
    more = 54 * 8192 * 64 * 4 / 1024  # kilobytes of features; peaks of the same process differ by a fifth of them
    assert peaks[1] - peaks[0] < more / 3
