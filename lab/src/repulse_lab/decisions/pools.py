"""Pools of predictions on real data, from which calibration data, test data and streams are drawn.

cifar10: the published ResNet-20, retrofitted on 10,000 training images with 2,000 test images for validation; the pool
is the other 8,000 test images; elsewhere are SVHN crops, Tiny ImageNet, and 1,000 of the pool's images under each
corruption at severity 3. clinc150: MiniLM with a linear layer trained on 4,000 queries, 1,000 more for validation; the
pool is the published validation and test queries, elsewhere are out-of-scope queries. power-plant: an MLP trained on
2,000 rows, 500 more for validation; the pool is the other 7,068 rows, elsewhere are rows with one column out of its
range. No fit and no choice saw a pool.

What is kept of a prediction is what a gate keeps of it, for each kind of set.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from repulse import Ensemble, FitWarning, Promise, Recipe, retrofit
from repulse._files import write_whole
from repulse.decide.calibration import Calibration, rows_of
from repulse.prediction import Prediction
from repulse_lab import data
from repulse_lab.data.corruptions import KINDS, corrupt
from repulse_lab.defaults.images import WEIGHTS, bytes_of, labelled, normalise, svhn_crops
from repulse_lab.defaults.problem import Samples
from repulse_lab.defaults.run import code_digest
from repulse_lab.defaults.tables import one_column_outside, standardised
from repulse_lab.defaults.texts import _classifier, _texts, tokens
from repulse_lab.defaults.training import Schedule, trained_network
from repulse_lab.networks.mlp import MLP
from repulse_lab.networks.resnet_cifar import MEAN, STD, load_published

SEVERITY, CORRUPTED = 3, 1000
"""Of corruptions, and how many images of the pool each is applied to."""

Rows = dict[str, Tensor]
Pools = dict[str, Rows]
Kept = Callable[[str, Callable[[], Rows]], Rows]


def drawn(samples: Samples, seed: int, *counts: int) -> list[Samples]:
    """Cut samples at random into parts of these sizes, and the rest."""
    order = torch.randperm(samples.count, generator=torch.Generator().manual_seed(seed))
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    return [samples.some(part.sort().values) for part in order.tensor_split(ends)]


def cifar10(root: Path, folder: Path, kept: Kept) -> Pools:
    """Predict CIFAR-10 and what is not CIFAR-10."""
    prepare = partial(normalise, mean=MEAN, std=STD)
    train = Samples(*labelled("cifar10", "train", root), prepare).at_most(10_000)
    validation, pool = drawn(Samples(*labelled("cifar10", "test", root), prepare), 0, 2000)
    outside = {"SVHN crops": svhn_crops(root), "Tiny ImageNet": bytes_of("tiny-imagenet", "evaluation", root)}
    few = pool.some(slice(0, CORRUPTED))
    assert isinstance(few.inputs, Tensor)
    sets: dict[str, Callable[[], Samples]] = {"pool": lambda: pool}
    sets |= {name: partial(Samples, images, None, prepare) for name, images in outside.items()}
    sets |= {kind: partial(_corrupted, few, kind) for kind in KINDS}
    return _pools(load_published(root / WEIGHTS[20], 20), train, validation, sets, kept)


def _corrupted(samples: Samples, kind: str) -> Samples:
    assert isinstance(samples.inputs, Tensor)
    return replace(samples, inputs=corrupt(samples.inputs, kind, SEVERITY))


def clinc150(root: Path, folder: Path, kept: Kept) -> Pools:
    """Predict intents, and queries that have none."""
    texts, labels = _texts("clinc150", "train", root)
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))
    train, validation = (tokens([texts[i] for i in part], labels[part]) for part in (order[:4000], order[4000:5000]))
    parts = [_texts("clinc150", part, root) for part in ("val", "test")]
    pool = tokens(parts[0][0] + parts[1][0], torch.cat([parts[0][1], parts[1][1]]))
    sets = {"pool": lambda: pool, "out of scope": lambda: tokens(_texts("clinc150", "oos", root)[0])}
    return _pools(_classifier(train, 150, 2000, 0, folder / "clinc150"), train, validation, sets, kept)


def power_plant(root: Path, folder: Path, kept: Kept) -> Pools:
    """Predict the output of a power plant."""
    parts = [data.load("uci-power-plant", f"{part}-0", root) for part in ("train", "test")]
    inputs, targets = (torch.cat([torch.as_tensor(getattr(p, name)) for p in parts]) for name in ("inputs", "targets"))
    whole = Samples(inputs, targets)
    cut = drawn(whole, 0, 2000, 500)
    x = standardised(*(torch.as_tensor(part.inputs) for part in cut))
    y = standardised(*(torch.as_tensor(part.targets) for part in cut))
    train, validation, pool = (Samples(a, b) for a, b in zip(x, y, strict=True))
    network = trained_network(
        partial(MLP, x[0].shape[1], 1, 64, 2), train, Schedule(3000, 64, 3e-3), 0, folder / "power-plant.safetensors"
    )
    outside = Samples(one_column_outside(x[0], x[2], torch.Generator().manual_seed(0)))
    return _pools(network, train, validation, {"pool": lambda: pool, "one column outside": lambda: outside}, kept)


PROBLEMS = {"power-plant": power_plant, "clinc150": clinc150, "cifar10": cifar10}
TITLES = {"cifar10": "CIFAR-10, ResNet-20", "clinc150": "CLINC150, MiniLM", "power-plant": "UCI power plant, MLP"}


def _pools(
    model: Any, train: Samples, validation: Samples, sets: Mapping[str, Callable[[], Samples]], kept: Kept
) -> Pools:
    """Retrofit a network, unless everything is kept, and return what its gate would keep of each set."""
    assert train.targets is not None
    task = "regression" if train.targets.is_floating_point() else "classification"
    made: list[Ensemble] = []

    def ensemble() -> Ensemble:
        if not made:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FitWarning)
                made.append(retrofit(model, train, validation=validation, recipe=Recipe(task=task), progress=False))
        return made[0]

    return {
        name: kept(name, lambda samples=samples: predicted_rows(ensemble(), samples()))
        for name, samples in sets.items()
    }


def predicted_rows(ensemble: Ensemble, samples: Samples) -> Rows:
    """Predict samples, and return what gates keep of it; without targets, as if the predictions were right."""
    found: list[Rows] = []
    for batch in samples:
        prediction = ensemble.predict(batch[0] if samples.targets is not None else batch).cpu()
        first = getattr(prediction, "labels", None)
        first = prediction.mean if first is None else first  # pyright: ignore[reportAttributeAccessIssue]
        found.append(_columns(prediction, batch[1] if samples.targets is not None else first))
    return {name: torch.cat([part[name] for part in found]) for name in found[0]}


def _columns(prediction: Prediction, targets: Tensor) -> Rows:
    kinds = ("lac", "aps", "raps") if hasattr(prediction, "labels") else ("normalised", "cqr")
    rows = {kind: rows_of(prediction, targets, Promise(sets=kind)) for kind in kinds}
    columns = dict(vars(next(iter(rows.values()))))
    del columns["set_score"]
    return {**columns, **{kind: each.set_score for kind, each in rows.items()}}


def as_calibration(rows: Rows, kind: str) -> Calibration:
    """Return the rows with the scores of one kind of set."""
    return Calibration(*(rows[name] for name in ("score", "total", "doubt", "error", "predicted", kind)))


def pools_of(problem: str, root: Path, folder: Path) -> Pools:
    """Return the pools of a problem, each from its file or, if this version of the library has none, predicted."""

    def kept(name: str, compute: Callable[[], Rows]) -> Rows:
        path = folder / "pools" / code_digest() / f"{problem}-{name.replace(' ', '-')}.safetensors"
        if not path.exists():
            write_whole(path, save({key: value.contiguous() for key, value in compute().items()}))
        return load_file(path)

    return PROBLEMS[problem](root, folder, kept)
