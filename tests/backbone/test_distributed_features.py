"""Two processes compute the features of one, started by `torchrun`, which runs this file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from repulse import DataError, Heads, Recipe, RepulseError, fit_heads, load, retrofit
from repulse.backbone import Features, compute_features, split
from repulse.particles.tasks import Classification
from repulse.repulsion import Mixture, Shell, SyntheticImages, UniformBox

QUICK = Recipe(epochs=2, heads=4, repulsion_samples=20)
PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
SIZES = (7, 7, 7, 7, 4)
"""An odd number of batches, the last of them short."""


def batches(*shape: int, sizes: tuple[int, ...] = SIZES) -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(sum(sizes), *shape, generator=torch.Generator().manual_seed(1))
    return list(zip(x.split(sizes), (torch.arange(len(x)) % 3).split(sizes), strict=True))


def perceptron() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def convolutions() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3, stride=2)
        return nn.Sequential(
            first, nn.ReLU(), second, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
        )


def flat(source: Any = None, data: Any = None, **settings: Any) -> Features:
    data = batches(4) if data is None else data
    settings = {"samples": 80, **settings}  # more than there are rows
    return compute_features(split(perceptron(), batches(4)[0][0]), data, source, progress=False, **settings)


class Unsized:
    """Batches that do not know how many they are."""

    def __init__(self, data: list[Any]) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)


class Interrupted(list):
    """Batches that end in an error, the first time."""

    once = True

    def __iter__(self) -> Iterator[Any]:
        for i, batch in enumerate(super().__iter__()):
            if i == 3 and self.once:
                self.once = False
                raise OSError("gone")
            yield batch


def taken_up(folder: Path) -> Features:
    data = Interrupted(batches(4))
    try:
        flat(UniformBox(-1, 1), data, cache=folder, samples=12)
        raise AssertionError
    except OSError:
        return flat(UniformBox(-1, 1), data, cache=folder, samples=12)


def images() -> Features:
    data = batches(3, 12, 12)
    backbone = split(convolutions(), data[0][0], layers="auto")
    return compute_features(backbone, data, SyntheticImages(), samples=80, progress=False)


def retrofitted() -> Tensor:
    ensemble = retrofit(convolutions(), batches(3, 12, 12), recipe=QUICK, progress=False)
    return ensemble.predict(batches(3, 12, 12)[0]).log_probs


def fitted_differently(rank: int) -> Tensor:
    """Heads of processes whose fits do not agree."""

    def fit(*given: Any, **named: Any) -> Heads:
        heads = fit_heads(*given, **named)
        heads.weight.data += rank
        heads.history = heads.history[rank:]
        return heads

    with mock.patch("repulse.kept.fit_heads", fit):
        ensemble = retrofit(convolutions(), batches(3, 12, 12), recipe=QUICK, progress=False)
    return torch.cat([ensemble.heads.weight.flatten(), torch.tensor([len(ensemble.history)])])


def failing_fit(rank: int) -> None:
    with mock.patch(
        "repulse.kept.fit_heads",
        side_effect=DataError("no") if rank else None,
        return_value=Heads(2, 6, Classification(3)),
    ):
        retrofit(convolutions(), batches(3, 12, 12), recipe=QUICK, progress=False)


ELSEWHERE = [torch.ones(3, 4), torch.randn(5, 4, generator=torch.Generator().manual_seed(2)), torch.zeros(4, 4)]
CASES: dict[str, Callable[[Path], Any]] = {
    "nowhere": lambda folder: flat(),
    "a source": lambda folder: flat(UniformBox(-1, 1)),
    "few samples of a source": lambda folder: flat(UniformBox(-1, 1), samples=9),
    "a source in feature space": lambda folder: flat(Mixture([UniformBox(-1, 1), Shell()]), samples=50),
    "a source and data of unknown length": lambda folder: flat(UniformBox(-1, 1), Unsized(batches(4))),
    "a loader": lambda folder: flat(ELSEWHERE),
    "few samples of a loader": lambda folder: flat(ELSEWHERE, samples=6),
    "ready features": lambda folder: flat(torch.ones(6, 8)),
    "one batch": lambda folder: flat(data=batches(4, sizes=(6,))),
    "batches of any size": lambda folder: flat(UniformBox(-1, 1), batches(4, sizes=(1, 9, 2, 3, 5, 1))),
    "several passes": lambda folder: flat(augmentations=3),
    "beyond memory": lambda folder: flat(memory_limit=100),
    "images and taps": lambda folder: images(),
    "a folder": lambda folder: flat(UniformBox(-1, 1), cache=folder / "a"),
    "a folder again": lambda folder: flat(UniformBox(-1, 1), cache=folder / "a"),
    "a folder and a loader": lambda folder: flat(ELSEWHERE, cache=folder / "b"),
    "a folder of halves": lambda folder: flat(cache=folder / "c", cache_dtype=torch.float16),
    "a folder of something else": lambda folder: flat(data=batches(4, sizes=(5, 5)), cache=folder / "a"),
    "a build that was cut short": lambda folder: taken_up(folder / "d"),
    "a retrofit": lambda folder: retrofitted(),
}


def broken(rank: int) -> list[tuple[Tensor, Tensor]]:
    data = batches(4)
    data[1] = (data[1][0] * torch.nan, data[1][1])
    return data


REFUSED: dict[str, Callable[[int, Path], Any]] = {
    "shards": lambda rank, folder: flat(data=[(x + rank, y) for x, y in batches(4)]),
    "lengths": lambda rank, folder: flat(data=batches(4)[: 3 + rank]),
    "a failure": lambda rank, folder: flat(data=broken(rank)),
    "a bad folder": lambda rank, folder: flat(cache=Path(__file__) / "under a file"),
    "a fit that fails": lambda rank, folder: failing_fit(rank),
    "a folder of one's own": lambda rank, folder: flat(cache=folder / f"own{rank}"),
}


def tensors(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    return [part.clone() for part in (found.train, found.targets, found.repulsion) if part is not None]


def run_page(folder: Path) -> None:
    """The script of the page for readers, between processes that have met already."""
    (code,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    sys.modules["yours"] = SimpleNamespace(model=convolutions(), train_loader=batches(3, 12, 12))  # pyright: ignore
    with (
        mock.patch("torch.distributed.init_process_group"),
        mock.patch("torch.distributed.destroy_process_group"),
        mock.patch("repulse.particles.loop.MIN_STEPS", 20),
    ):
        exec(code.replace("/shared", str(folder)), {})


def main(folder: Path) -> None:
    """What each process does: all cases, and a file of what came of them."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    found = {name: tensors(case(folder)) for name, case in CASES.items()}
    found["fitted differently"] = [fitted_differently(rank)]
    said = {}
    for name, case in REFUSED.items():
        try:
            case(rank, folder)
        except RepulseError as error:
            said[name] = str(error)
    passes: list[int] = []
    model = perceptron()
    backbone = split(model, batches(4)[0][0])
    model.register_forward_hook(lambda module, inputs, output: passes.append(len(output)))
    compute_features(backbone, batches(4), None, progress=False)
    run_page(folder)
    torch.save(found, folder / f"rank{rank}.pt")
    (folder / f"rank{rank}.json").write_text(json.dumps({"said": said, "passes": passes}))
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    ended = subprocess.run(
        [*command, __file__, str(folder)], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folder


@pytest.mark.parametrize("name", CASES)
def test_two_processes_hold_what_one_computes(folder, tmp_path, name):
    if name == "a folder again":
        CASES["a folder"](tmp_path)
    right = tensors(CASES[name](tmp_path))
    for rank in range(2):
        found = torch.load(folder / f"rank{rank}.pt", weights_only=True)[name]
        assert len(found) == len(right)
        for a, b in zip(found, right, strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_all_processes_end_with_the_heads_of_the_first(folder):
    ((first,), (second,)) = (
        torch.load(folder / f"rank{rank}.pt", weights_only=True)["fitted differently"] for rank in range(2)
    )
    assert torch.equal(first, second)
    assert torch.equal(first, fitted_differently(0))
    assert not torch.allclose(first, fitted_differently(1))


def test_a_fit_that_fails_in_one_process_ends_all(folder):
    other, own = said(folder, "a fit that fails")
    assert own == "no"
    assert other == "Expected process 1 to be done with its work, but got an error, which it reports."


def test_the_script_for_readers_runs(folder):
    ensemble = load(folder / "heads", convolutions())
    assert ensemble.predict(batches(3, 12, 12)[0]).log_probs.shape == (ensemble.heads.count, 7, 3)


def said(folder: Path, name: str) -> list[str]:
    return [json.loads((folder / f"rank{rank}.json").read_text())["said"][name] for rank in range(2)]


@pytest.mark.parametrize("name", ["shards", "lengths"])
def test_data_that_was_shared_out_already_is_refused(folder, name):
    for words in said(folder, name):
        assert words.startswith("Expected `data` to be the same batches in all 2 processes")
        assert "DistributedSampler" in words


def test_an_error_in_one_process_ends_all(folder):
    other, own = said(folder, "a failure")
    assert own.startswith("Expected batch 1 of `data` to be finite")
    assert other == "Expected process 1 to be done with its work, but got an error, which it reports."


def test_a_folder_that_cannot_be_used_ends_all(folder):
    own, other = said(folder, "a bad folder")
    assert "a folder that can be written to" in own
    assert other.startswith("Expected process 0")


def test_a_folder_that_is_not_shared_is_refused(folder):
    first, second = said(folder, "a folder of one's own")
    assert first.startswith("Expected process 1 to be done")
    assert second.startswith("Expected `cache` to be a folder that all 2 processes share")


def test_each_process_runs_the_network_on_its_share(folder):
    passes = [json.loads((folder / f"rank{rank}.json").read_text())["passes"] for rank in range(2)]
    assert passes == [[7, 7, 4], [7, 7]]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
