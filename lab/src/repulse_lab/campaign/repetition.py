"""The same bits in threads, again and again, and in new processes; and no random state of the caller changed."""

from __future__ import annotations

import copy
import hashlib
import random
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from repulse import retrofit
from repulse_lab.campaign.finding import QUICK, Finding, ensemble, inputs, network

THREADS = 8


def threads(times: int, seed: int) -> Iterator[Finding]:
    """Predict in eight threads, and retrofit in three."""
    made, x = ensemble(), inputs(50, seed)
    right = made.predict(x).log_probs  # pyright: ignore[reportAttributeAccessIssue]
    found = Finding("in eight threads at once:", "`predict`")
    for number in range(times):
        with found.trial(number):
            parts = _in_threads(lambda: made.predict(x).log_probs, THREADS)  # pyright: ignore
            assert all(torch.equal(part, right) for part in parts), "other bits"
    yield found
    found = Finding("in three threads at once:", "`retrofit` on a shuffling loader")

    drawn = network()  # once and before the threads: to draw weights is to change the random state that all share

    def run() -> Tensor:
        loader = DataLoader(TensorDataset(inputs(), torch.arange(60) % 3), batch_size=6, shuffle=True)
        return retrofit(copy.deepcopy(drawn), loader, repulsion=loader, recipe=QUICK, progress=False).heads.vectors()

    first = run()
    for number in range(max(times // 10, 1)):
        with found.trial(number):
            before = _states()
            assert all(torch.equal(part, first) for part in _in_threads(run, 3)), "other bits"
            assert _states() == before, "a random state was changed"
    yield found


def _states() -> tuple[object, ...]:
    numbers = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), random.getstate(), numbers[1].tolist(), numbers[2]  # pyright: ignore


def _in_threads(run, count: int) -> list[Tensor]:
    found: list[Tensor] = []
    workers = [threading.Thread(target=lambda: found.append(run())) for _ in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == count, "a thread failed"
    return found


def restarts(times: int, seed: int) -> Iterator[Finding]:
    """Fit a convolutional network's heads over 40 batches in new processes, and compare digests."""
    right = digest()
    found = Finding("in a new process:", "`retrofit` of a convolutional network over 40 batches")
    for number in range(times):
        with found.trial(number):
            command = [sys.executable, "-W", "ignore", "-m", "repulse_lab.campaign.repetition"]
            ended = subprocess.run(command, capture_output=True, text=True, check=True)
            assert ended.stdout.strip() == right, "other bits"
    yield found


def digest() -> str:
    """Return a digest of heads and predictions."""
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU(), nn.Flatten()]
        model = nn.Sequential(*layers, nn.Linear(64, 3))
    x = torch.randn(240, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    data = list(zip(x.split(6), (torch.arange(240) % 3).split(6), strict=True))
    made = retrofit(model, data, recipe=QUICK, progress=False)
    numbers = torch.cat([made.heads.vectors().flatten(), made.score(x)])
    return hashlib.sha256(numbers.numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    print(digest())
