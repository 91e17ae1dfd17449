"""Active learning: choose the samples of a pool to label next.

`acquire` ranks a pool once; `ActiveLearning` keeps the labels between rounds.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from repulse._files import explaining_writes, read_regular, sealed, unsealed, write_whole
from repulse._progress import progress_bar
from repulse.active.batchbald import batchbald
from repulse.backbone.batches import input_batches, limit_batch_size, size_of
from repulse.backbone.reading import shuffles
from repulse.ensemble import Ensemble
from repulse.errors import CheckpointError, DataError, RepulseError, check_choice, check_positive_integer, expected
from repulse.prediction import ClassPrediction, Prediction

SCORES = ("epistemic", "total", "batchbald", "own", "random")
FORMAT = 2
"""Version of the JSON format of labels."""


@dataclass(frozen=True, eq=False)
class Acquisition:
    """Samples to label next, best first.

    Attributes:
        indices: indices into the pool.
        scores: score of each; for "batchbald" the information, in nats, that its label adds to those before it.
    """

    indices: Int[Tensor, " k"]
    scores: Float[Tensor, " k"]


def acquire(
    ensemble: Any,
    pool: Any,
    k: int,
    score: str = "epistemic",
    *,
    exclude: Iterable[Any] = (),
    candidates: int = 2000,
    seed: int = 0,
    batch_size: int = 512,
    progress: bool = True,
) -> Acquisition:
    """Choose the k samples of a pool that are most worth a label.

    Args:
        ensemble: an `Ensemble`, `Heads` on features, a baseline, or anything else with `predict`.
        pool: inputs (or features): a tensor, a data set, or a loader that does not shuffle; read once, in batches.
        k: number of samples.
        score: "epistemic" (disagreement), "total" (also ambiguity), "batchbald" (joint information; classes only),
            "own" (`ensemble.score`, for methods of one member, such as a distance) or "random", for comparison.
        exclude: indices that are labelled already.
        candidates: number of samples of the largest epistemic uncertainty that "batchbald" considers (at least k).
        seed: for the order of equal scores and the configurations of "batchbald".
        batch_size: maximum number of samples predicted at once.
        progress: show a bar when it takes more than two seconds.
    """
    check_choice("score", score, SCORES)
    for name, value in (("k", k), ("candidates", candidates), ("batch_size", batch_size)):
        check_positive_integer(name, value)
    if not hasattr(ensemble, "predict"):
        raise DataError(expected("ensemble", "something with `predict`", type(ensemble).__name__))
    taken = _indices("exclude", exclude)
    limit = max(candidates, k) if score == "batchbald" else None
    count, kept = 0, []
    bar = progress_bar(_batches(ensemble, pool, batch_size), "acquiring", unit="batch", show=progress)
    for inputs in bar:
        indices = torch.arange(count, count + size_of(inputs))
        count += len(indices)
        free = ~torch.isin(indices, taken)
        scores, prediction = _scores(ensemble, inputs, score)
        kept.append((indices[free], scores[free], None if prediction is None else prediction[free]))
        if limit is not None and sum(len(part[0]) for part in kept) > 2 * limit:
            kept = [_best(kept, limit)]
    if len(taken) and int(taken.max()) >= count:
        raise DataError(expected("exclude", f"indices below {count}, the size of the pool", int(taken.max())))
    left = count - len(taken.unique())
    if k > left:
        raise DataError(expected("k", f"at most {left}, as many as are left in the pool", k))
    indices, scores, prediction = _best(kept, limit, seed)
    if isinstance(prediction, ClassPrediction):
        chosen, scores = batchbald(prediction.log_probs, k, seed=seed)
        return Acquisition(indices[chosen], scores)
    return Acquisition(indices[:k], scores[:k])


class ActiveLearning:
    """Run rounds of training, asking for labels and receiving them, by hand or by a function.

    Args:
        pool: as in `acquire`; read once per question.
        train: given the labelled indices and their labels (both empty if nothing is labelled), returns what predicts.
        score: as in `acquire`.
        options: other options of `acquire`, such as `seed`.

    Attributes:
        known: the label of each index, in the order in which they came.
    """

    def __init__(
        self, pool: Any, train: Callable[[Tensor, Tensor], Any], score: str = "epistemic", **options: Any
    ) -> None:
        check_choice("score", score, SCORES)
        inspect.signature(acquire).bind(None, pool, 1, score, exclude=(), **options)  # a typo is refused here
        self.pool, self.train, self.score, self.options = pool, train, score, options
        self.known: dict[int, int | float] = {}
        self._predictor: Any = None

    @property
    def indices(self) -> Int[Tensor, " L"]:
        """Indices of the labelled samples."""
        return torch.tensor(list(self.known), dtype=torch.int64)

    @property
    def labels(self) -> Tensor:
        """The labels, in the same order."""
        return torch.tensor(list(self.known.values()), dtype=None if self.known else torch.int64)

    @property
    def predictor(self) -> Any:
        """What `train` returns for all labels; trained when first needed, and again after new labels."""
        if self._predictor is None:
            self._predictor = self.train(self.indices, self.labels)
        return self._predictor

    def ask(self, k: int) -> Acquisition:
        """Choose the k samples to label next. Until `tell`, the answer stays the same."""
        return acquire(self.predictor, self.pool, k, self.score, exclude=self.indices, **self.options)

    def tell(self, indices: Iterable[Any], labels: Iterable[Any]) -> None:
        """Record labels: class indices, or numbers for regression. A label given again replaces the old one."""
        at, values = _indices("indices", indices), _tensor("labels", labels)
        if values.shape != at.shape:
            raise DataError(expected("labels", f"{len(at)}, one per index", f"shape {tuple(values.shape)}"))
        if len(at.unique()) < len(at):
            raise DataError(expected("indices", "different from each other", f"{len(at) - len(at.unique())} twice"))
        if not bool(values.isfinite().all()):
            raise DataError(expected("labels", "finite", "NaN or infinite values"))
        if isinstance(self.pool, Tensor) and len(at) and int(at.max()) >= len(self.pool):
            raise DataError(expected("indices", f"below {len(self.pool)}, the size of the pool", int(at.max())))
        values = values.long() if values.dtype == torch.bool else values
        if values.is_floating_point() and any(isinstance(label, int) for label in self.known.values()):
            if not bool((values == values.round()).all()):
                got = f"{float(values[values != values.round()][0]):g}; regression takes floats from the start"
                raise DataError(expected("labels", "class indices, as those before", got))
            values = values.long()
        elif not values.is_floating_point() and any(isinstance(label, float) for label in self.known.values()):
            values = values.double()
        self.known |= dict(zip(at.tolist(), values.tolist(), strict=True))
        self._predictor = None

    def run(self, label: Callable[[Tensor], Iterable[Any]], k: int, steps: int) -> Iterator[Acquisition]:
        """Ask, label by `label(indices)` and tell, several times; yield each acquisition after its labels are known."""
        check_positive_integer("steps", steps)
        for _ in range(steps):
            acquired = self.ask(k)
            self.tell(acquired.indices, label(acquired.indices))
            yield acquired

    def save(self, path: str | Path) -> Path:
        """Write the labels as JSON, whole or not at all."""
        kept = {"format": FORMAT, "indices": list(self.known), "labels": list(self.known.values())}
        with explaining_writes(path):
            return write_whole(path, sealed(kept))

    def load(self, path: str | Path) -> None:
        """Replace all labels by those of a file."""
        before, self.known = self.known, {}
        try:
            text = read_regular(path)
            kept = json.loads(text)
            if kept["format"] != FORMAT and (kept["format"] != 1 or "digest" in kept):  # the first had no digest
                raise DataError(f"format {kept['format']}, not {FORMAT}")
            kept = kept if kept["format"] == 1 else unsealed(text)
            self.tell(kept["indices"], kept["labels"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RepulseError) as reason:
            self.known = before
            why = f"something else ({type(reason).__name__}: {str(reason).rstrip('.')})"
            raise CheckpointError(expected("path", "the JSON of labels of this pool", why)) from reason


def _batches(ensemble: Any, pool: Any, batch_size: int) -> Iterator[Any]:
    """Return the inputs of the pool in its order, in batches of at most `batch_size`."""
    if isinstance(pool, Dataset):
        pool = DataLoader(pool, batch_size=batch_size)
    if shuffles(pool):
        raise DataError(expected("pool", "in a fixed order, so that indices mean something", "a shuffling loader"))
    several = None
    if isinstance(ensemble, Ensemble):
        several, pool = ensemble.backbone.several, ensemble.backbone.places.unlabelled(pool)
    batches = input_batches([pool] if isinstance(pool, Mapping) else pool, "pool", several)  # a mapping is one batch
    return (inputs for inputs, _ in limit_batch_size(((inputs, None) for inputs in batches), batch_size))


def _scores(ensemble: Any, inputs: Any, score: str) -> tuple[Float[Tensor, " B"], Prediction | None]:
    """Compute the scores of a batch and, for "batchbald", its prediction; on the CPU."""
    size, prediction = size_of(inputs), None
    if score == "random":
        return torch.zeros(size, dtype=torch.float64), None
    if score == "own":
        if not hasattr(ensemble, "score"):
            raise DataError(expected("ensemble", "something with `score` for score='own'", type(ensemble).__name__))
        values = ensemble.score(inputs)
    else:
        prediction = ensemble.predict(inputs)
        kind = ClassPrediction if score == "batchbald" else Prediction
        if not isinstance(prediction, kind):
            raise DataError(
                expected("ensemble.predict", f"a {kind.__name__} for this score", type(prediction).__name__)
            )
        if score != "total" and prediction.members < 2:
            got = "one, which has nothing to disagree with; take score='total' or 'own'"
            raise DataError(expected("ensemble", f"of at least two members for score={score!r}", got))
        values = prediction.of_inputs("total" if score == "total" else "epistemic")
    if not isinstance(values, Tensor) or values.shape != (size,):
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise DataError(expected("scores of the pool", f"of shape ({size},) for a batch of {size}", got))
    if not bool(values.isfinite().all()):
        raise DataError(expected("scores of the pool", "finite", f"{int((~values.isfinite()).sum())} that are not"))
    return values.detach().double().cpu(), prediction.cpu() if prediction is not None and score == "batchbald" else None


def _best(kept: list[Any], limit: int | None, seed: int | None = None) -> tuple[Tensor, Tensor, Prediction | None]:
    """Select the largest scores, in descending order; equal ones by their index or, with a seed, at random."""
    indices, scores = torch.cat([part[0] for part in kept]), torch.cat([part[1] for part in kept])
    order = torch.arange(len(scores))
    if seed is not None:
        order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(seed))
    order = order[scores[order].argsort(descending=True, stable=True)][:limit]
    predictions = [part[2] for part in kept if part[2] is not None]
    return indices[order], scores[order], Prediction.cat(predictions)[order] if predictions else None


def _indices(name: str, values: Iterable[Any]) -> Int[Tensor, " L"]:
    found = _tensor(name, values)
    if found.numel() and (found.is_floating_point() or found.dtype == torch.bool or int(found.min()) < 0):
        got = "negative ones" if found.dtype == torch.int64 else str(found.dtype)
        raise DataError(expected(name, "indices into the pool, from 0", got))
    return found.long()


def _tensor(name: str, values: Iterable[Any]) -> Tensor:
    """Return values as a tensor of one dimension."""
    try:
        found = torch.as_tensor(values if isinstance(values, Tensor) else list(values)).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as reason:
        raise DataError(expected(name, "a tensor or a list of numbers", str(reason).rstrip("."))) from reason
    if found.ndim != 1:
        raise DataError(expected(name, "of one dimension", f"shape {tuple(found.shape)}"))
    return found
