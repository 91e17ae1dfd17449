"""What a process does that is measured from outside: `repulse_lab.speed.measured KIND SAMPLES FEATURES CLASSES FOLDER`.

Prints the most memory it ever held, in bytes. Kinds are "import" and "import laplace", which do nothing more, "fit",
which retrofits a network of one small layer and keeps features in FOLDER if there is one, and "laplace". The kind
"extract" computes features of SAMPLES images by a ResNet-20, with all processes that `torchrun` has started, and prints
how many microseconds that took.
"""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

import repulse

INPUTS, BATCH = 16, 1000


class Stream:
    """Batches that are made when they are asked for, so that only features take room."""

    def __init__(self, samples: int, classes: int) -> None:
        self.samples, self.classes = samples, classes

    def __len__(self) -> int:
        return math.ceil(self.samples / BATCH)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        for first in range(0, self.samples, BATCH):
            size = min(BATCH, self.samples - first)
            yield torch.randn(size, INPUTS, generator=generator), torch.arange(size) % self.classes


def fit(samples: int, d: int, classes: int, cache: str | None) -> None:
    """Compute features and fit heads for an epoch; more of them need no more memory."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(INPUTS, d), nn.ReLU(), nn.Linear(d, classes))
    away = [3 * torch.randn(BATCH, INPUTS, generator=torch.Generator().manual_seed(1))]
    recipe = repulse.FS_RLL_E.replace(epochs=1)
    data = Stream(samples, classes)
    repulse.retrofit(network, data, repulsion=away, recipe=recipe, cache=cache, progress=False)


def laplace(samples: int, d: int, classes: int) -> None:
    from repulse_lab.speed.laplace_torch import fit_laplace, sliced, synthetic

    problem = synthetic(samples, d, classes)
    fit_laplace(problem, sliced(problem))


def extract(samples: int) -> int:
    """Measure the microseconds for the features of some images; the first process tells."""
    from repulse.backbone import compute_features, split
    from repulse_lab.networks import build

    if "WORLD_SIZE" in os.environ:
        distributed.init_process_group("gloo")
    images = torch.randn(128, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    batches = [(images + i, torch.arange(128) % 10) for i in range(samples // 128)]
    backbone = split(build("resnet20").eval(), images[:4], layers="last")
    backbone(images)  # the first pass allocates
    begun = time.perf_counter()
    compute_features(backbone, batches, None, progress=False)
    seconds = time.perf_counter() - begun
    if "WORLD_SIZE" in os.environ:
        distributed.destroy_process_group()
    return round(1e6 * seconds)


def peak() -> int:
    """Return the peak memory of this process, in bytes.

    The kernel's figure for this program alone where there is one: what `getrusage` tells begins with the memory of the
    process that started this one.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main(kind: str, samples: str, d: str, classes: str, folder: str = "") -> None:
    sizes = int(samples), int(d), int(classes)
    warnings.simplefilter("ignore")
    if kind == "extract":
        found = extract(sizes[0])
        print(found if os.environ.get("RANK", "0") == "0" else "", end="")
        return
    if kind == "fit":
        fit(*sizes, folder or None)
    elif kind == "laplace":
        laplace(*sizes)
    elif kind == "import laplace":
        from repulse._operators import define_missing

        define_missing()
        import laplace as _  # noqa: F401
    print(peak())


if __name__ == "__main__":
    main(*sys.argv[1:])
