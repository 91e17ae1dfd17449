"""Score one file: the same code, and so the same bytes, on every engine."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from repulse._files import explaining_writes, write_whole
from repulse.decide.decision import Decision
from repulse.ensemble import Ensemble
from repulse.errors import RepulseError, expected, in_one_line
from repulse.files.batches import Batches, Prepare
from repulse.files.columns import Columns
from repulse.files.opening import Opening, open_heads
from repulse.files.samples import Samples, read_samples
from repulse.prediction import ClassPrediction, MultilabelPrediction, Prediction, RegressionPrediction
from repulse.scale.tasks import Settings, Task

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    Attributes:
        out: output file.
        rows: number of samples.
        seconds: that it took.
        error: sentence that says why it failed; empty if it did not.
    """

    out: str
    rows: int = 0
    seconds: float = 0.0
    error: str = ""


def score_file(task: Task, on_batch: Callable[[int, int], None] | None = None) -> Outcome:
    """Score one file and write its output whole; do nothing if that is done.

    Args:
        task: the file.
        on_batch: told the number of samples done, and of all, after each batch.
    """
    started = time.perf_counter()
    if task.is_done():
        return Outcome(task.out)
    try:
        with _threads(task.settings.threads):
            rows = _score(task, on_batch)
    except RepulseError as reason:  # a sentence about this file; others go on
        return Outcome(task.out, error=str(reason))
    except Exception as reason:  # of a network or a transform, which are not ours
        got = f"one on which they fail ({in_one_line(reason)})"
        return Outcome(task.out, error=expected(task.source, "a file that the network and its transform can take", got))
    return Outcome(task.out, rows, time.perf_counter() - started)


def score_all(tasks: list[Task]) -> list[Outcome]:
    """Score several files, one after another."""
    return [score_file(task) for task in tasks]


def columns_for(settings: Settings, opening: Opening) -> Columns:
    """Return the columns of the fit, with those that were told now in their place."""
    told = {name: value for name, value in settings.columns.to_dict().items() if value is not None}
    return Columns.from_dict({**opening.columns.to_dict(), **told})


def table_of(
    samples: Samples, prediction: Prediction, names: tuple[str, ...] | None, probs: bool, decision: Decision | None
) -> pa.Table:
    """Put predictions, and what a gate decided on them, beside the keys of their samples."""
    import pyarrow as pa

    keys = samples.keys if isinstance(samples.keys, pa.Array) else pa.array(list(samples.keys))
    columns: dict[str, Any] = {samples.key_name: keys}
    if isinstance(prediction, ClassPrediction):
        labels = prediction.labels.tolist()
        columns["prediction"] = pa.array([str(i) if names is None else names[i] for i in labels])
        columns["confidence"] = _array(prediction.confidence)
    elif isinstance(prediction, RegressionPrediction):
        columns["mean"] = _array(prediction.mean)
        columns["std"] = _array(prediction.total.sqrt())
    if columns.keys() - {samples.key_name}:
        columns |= {name: _array(getattr(prediction, name)) for name in ("aleatoric", "epistemic", "total")}
    else:  # several labels, or several numbers: a column of each number
        columns |= {name: pa.array(values) for name, values in prediction.columns(names).items()}
        columns["score"] = _array(prediction.score)
    if decision is not None:
        columns["decision"] = pa.array(list(decision.action))
        columns["p_value"] = _array(decision.p_value)
    if probs and isinstance(prediction, ClassPrediction | MultilabelPrediction):
        flat = _array(prediction.probs.flatten())
        columns["probs"] = pa.FixedSizeListArray.from_arrays(flat, prediction.probs.shape[1])
    return pa.table(columns)


def write_table(table: pa.Table, path: Path) -> None:
    """Write a Parquet (or CSV) file aside and rename it when it is complete, so that no half of one is ever there."""
    from pyarrow import csv, parquet

    held = io.BytesIO()
    if path.suffix.lower() == ".csv":
        csv.write_csv(table, held)
    else:
        parquet.write_table(table, held)
    with explaining_writes(path, "--out"):
        write_whole(path, held.getvalue())


@lru_cache(maxsize=1)
def _opened(heads: str, model: str | None, checkpoint: str | None, digest: str) -> tuple[Ensemble, Prepare, Opening]:
    """Open heads once in each worker; the digest tells those that were fitted again."""
    return open_heads(heads, model, checkpoint)


def _score(task: Task, on_batch: Callable[[int, int], None] | None) -> int:
    how = task.settings
    ensemble, prepare, opening = _opened(how.heads, how.model, how.checkpoint, task.metadata["repulse.heads"])
    samples = read_samples(task.source, columns_for(how, opening), opening.kind, task.part)
    batches = Batches(samples, prepare, size=how.batch_size or opening.batch_size)
    parts, done = [], 0
    for part in ensemble.stream(batches, progress=False):
        parts.append(part)
        done += len(part)
        if on_batch is not None:
            on_batch(done, len(samples))
    names = ensemble.class_names or opening.classes
    prediction = Prediction.cat(parts)
    decision = ensemble.gate().decide(prediction) if ensemble.has_gate else None
    table = table_of(samples, prediction, names, how.probs, decision)
    write_table(table.replace_schema_metadata(task.metadata), Path(task.out))
    return len(samples)


def _array(values: torch.Tensor) -> pa.Array:
    import pyarrow as pa

    return pa.array(values.detach().cpu().float().numpy())


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let torch use this many threads inside, which fixes the order of sums, and so their last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
