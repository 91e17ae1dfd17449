"""Peak memory of fresh processes: against the number of samples and of classes, and relative to laplace-torch.

A process that only imports is subtracted, except where one fit is compared with a larger one, which is about all of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from repulse_lab.speed.laplace_torch import NEEDS_LAPLACE, has_laplace
from repulse_lab.speed.measurement import Benchmark, BenchSetting, Curve, Measurement, Ratio, quartiles
from repulse_lab.speed.processes import ProcessError, start

MEGABYTE = 2**20
OURS, THEIRS = "fs-RLL-E", "laplace-torch"


@dataclass(frozen=True)
class Sizes:
    """How large the fits are.

    Attributes:
        features: of the fits against samples.
        samples: of those that are compared; too many to be held in memory, and as many as fill the pool in its place.
        more: others, for the curve.
        many_features: of the fits against classes.
        many_samples: likewise.
        classes: how many.
        repeats: of the fits with a goal.
    """

    features: int = 512
    samples: int = 196_000
    more: tuple[int, ...] = (20_000, 50_000)
    many_features: int = 256
    many_samples: int = 2_000
    classes: tuple[int, ...] = (10, 100, 1000)
    repeats: int = 3


QUICK = Sizes(64, 5_000, (), 64, 5_000, (10,), 1)


def ratios(quick: bool) -> list[Ratio]:
    sizes = QUICK if quick else Sizes()
    n, d = sizes.samples, sizes.features
    many = f"{sizes.many_samples:,} x {sizes.many_features}"
    return [
        Ratio("peak memory of a fit from a folder, 10 N", "N", f"N {n:,}, d {d}", None if quick else 1.1),
        Ratio("memory of a fit from a folder, 10 N", "N", f"N {n:,}, d {d}"),
        Ratio("memory of a fit from a folder", "in memory", f"{n:,} x {d}"),
        Ratio("memory of a fit in memory", f"{THEIRS} kron fit", f"{n:,} x {d}"),
        *(Ratio("memory of a fit in memory", f"{THEIRS} kron fit", f"{many}, K {k:,}") for k in sizes.classes),
    ]


@dataclass
class Peaks:
    """Megabytes that processes held beyond those of one that only imports; None where one failed."""

    scratch: Path
    peak: Callable[..., float]
    reasons: dict[str, str] = field(default_factory=dict)
    seen: dict[tuple[str, int, int, int, bool], float] = field(default_factory=dict)

    def beyond(self, kind: str, samples: int, d: int, classes: int, mapped: bool = False) -> float | None:
        imports = "import laplace" if kind == "laplace" else "import"
        if kind == "laplace" and not has_laplace():
            self.reasons[kind] = NEEDS_LAPLACE
            return None
        try:
            whole, base = self.known(kind, samples, d, classes, mapped), self.known(imports, 0, 0, 0)
            return max(whole - base, 0.1)
        except ProcessError as reason:
            self.reasons[kind] = f"{THEIRS if kind == 'laplace' else OURS}: {reason}"
            return None

    def row(self, about: Ratio, ours: float | None, theirs: float | None) -> Measurement:
        """Return what fits took relative to what others did, or why that is not known."""
        if ours is None or theirs is None:
            return Measurement.missing(about, self.reasons["fit" if ours is None else "laplace"])
        return Measurement.of(about, [ours / theirs], ours, "MB")

    def known(self, kind: str, samples: int, d: int, classes: int, mapped: bool = False) -> float:
        """Return all megabytes of a process like this, which is started unless there was one."""
        key = kind, samples, d, classes, mapped
        return self.seen[key] if key in self.seen else self.fresh(*key)

    def fresh(self, kind: str, samples: int, d: int, classes: int, mapped: bool = False) -> float:
        """Measure all megabytes of a new process."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            most = self.peak(kind, samples, d, classes, *([folder] if mapped else []))
        self.seen[kind, samples, d, classes, mapped] = most
        return most


def measure(setting: BenchSetting) -> Iterator[Measurement | Curve]:
    sizes = QUICK if setting.quick else Sizes()
    setting.out.mkdir(parents=True, exist_ok=True)
    peaks = Peaks(setting.out, peak_of)  # next to the results: a folder in memory would count as memory
    goal, beyond, folder, rival, *many = ratios(setting.quick)
    n, d = sizes.samples, sizes.features

    try:
        pairs = [[peaks.fresh("fit", size, d, 10, mapped=True) for size in (10 * n, n)] for _ in range(sizes.repeats)]
        base = peaks.known("import", 0, 0, 0)
        for about, less in ((goal, 0.0), (beyond, base)):
            found = [(large - less) / max(small - less, 0.1) for large, small in pairs]
            yield Measurement.of(about, found, quartiles([large - less for large, _ in pairs])[1], "MB")
    except ProcessError as reason:
        yield from (Measurement.missing(about, f"{OURS}: {reason}") for about in (goal, beyond))

    several = sorted({n, *sizes.more})
    lines: dict[str, dict[int, float | None]] = {
        "in memory": {size: peaks.beyond("fit", size, d, 10) for size in several},
        "from a folder": {size: peaks.beyond("fit", size, d, 10, mapped=True) for size in (*several, 10 * n)},
        f"{THEIRS} kron": {size: peaks.beyond("laplace", size, d, 10) for size in several},
    }
    inside, mapped, theirs = (line[n] for line in lines.values())
    yield peaks.row(folder, mapped, inside)
    yield peaks.row(rival, inside, theirs)
    yield from _curves("memory N", lines)

    lines = {OURS: {}, f"{THEIRS} kron": {}}
    for about, classes in zip(many, sizes.classes, strict=True):
        where = sizes.many_samples, sizes.many_features, classes
        ours, theirs = peaks.beyond("fit", *where), peaks.beyond("laplace", *where)
        lines[OURS][classes], lines[f"{THEIRS} kron"][classes] = ours, theirs
        yield peaks.row(about, ours, theirs)
    yield from _curves("memory K", lines)


def _curves(panel: str, lines: dict[str, dict[int, float | None]]) -> Iterator[Curve]:
    for name, line in lines.items():
        found = [(float(x), y) for x, y in line.items() if y is not None]
        yield Curve(panel, name, [x for x, _ in found], [y for _, y in found])


def peak_of(kind: str, *sizes: int | str) -> float:
    """Measure the megabytes of a process; see `repulse_lab.speed.measured`. One thread, for each takes memory."""
    return int(start("-m", "repulse_lab.speed.measured", kind, *map(str, sizes), OMP_NUM_THREADS="1")) / MEGABYTE


BENCHMARK = Benchmark(
    "memory", "peak memory against samples and classes, relative to laplace-torch", ratios, measure, curves=5
)
