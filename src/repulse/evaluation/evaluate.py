"""Evaluate a method: one pass over in-distribution data and over each out-of-distribution set, and all metrics.

Whatever predicts and scores can be evaluated: an `Ensemble` on inputs, `Heads` or a baseline on features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from repulse._files import explaining_writes, read_regular, sealed, unsealed, with_nan, without_nan, write_whole
from repulse._html import table
from repulse._progress import progress_bar
from repulse.backbone.batches import input_batches, labelled_batches, limit_batch_size
from repulse.backbone.places import Places
from repulse.baselines.contract import Predictor
from repulse.ensemble import Ensemble
from repulse.errors import CheckpointError, DataError, RecipeError, check_positive_integer, expected
from repulse.evaluation import summary
from repulse.evaluation.overlap import Index
from repulse.evaluation.passes import Pass, pass_over
from repulse.metrics.resampling import Interval
from repulse.prediction import ClassPrediction, MultilabelPrediction, MultiregressionPrediction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from repulse.evaluation.table import Table

FORMAT = 1
"""Version of the JSON format."""


@dataclass(frozen=True, repr=False)
class Evaluation:
    """All measurements of one method. Rates lie in [0, 1]; NaN where a metric has no value.

    Attributes:
        name: name of the method.
        task: "classification", "multilabel", "regression", or "positions" for classes at every position.
        counts: number of samples of each set; "id" is the in-distribution set.
        id: metrics on in-distribution data: accuracy, nll, brier, ece, adaptive_ece, aurc, coverage_at_5,
            misclassification_auroc and, with human labels, human_correlation; for several labels nll, ece,
            adaptive_ece, auroc, average_precision and f1, means over labels, and of each label under `"ece[0]"`; for
            regression rmse, nll, coverage_95, those of several targets under `"rmse[0]"`; at every position accuracy,
            mean_iou (and `"iou[0]"`), nll, ece and misclassification_auroc over all positions that are not ignored.
            Predictions are ranked by their total uncertainty.
        ood: for each out-of-distribution set auroc, aupr_out, aupr_in and fpr95 of the method's score.
        oracle: share of repulsion samples in each out-of-distribution set that contains any: not a fair test.
        leaks: share of samples of one set that another one contains, under "id in repulsion" and "<set> in id".
        milliseconds: time of 1000 in-distribution predictions.
        intervals: for each set, confidence intervals of its metrics.
        reliability: columns of the reliability diagram: confidence, accuracy and share of each bin that is not empty;
            for regression level and coverage.
        risk_coverage: columns coverage and risk of the curve.
        histograms: "edges" of the bins of scores, and for each set the share of its scores in each.
    """

    name: str
    task: str
    counts: dict[str, int]
    id: dict[str, float]
    ood: dict[str, dict[str, float]] = field(default_factory=dict)
    oracle: dict[str, float] = field(default_factory=dict)
    leaks: dict[str, float] = field(default_factory=dict)
    milliseconds: float = math.nan
    intervals: dict[str, dict[str, Interval]] = field(default_factory=dict)
    reliability: dict[str, list[float]] = field(default_factory=dict)
    risk_coverage: dict[str, list[float]] = field(default_factory=dict)
    histograms: dict[str, list[float]] = field(default_factory=dict)

    def table(self) -> Table:
        """Return the main metrics as a table of one row; `evaluation.compare.compare` puts methods side by side."""
        from repulse.evaluation.compare import one_row

        return one_row(self)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot reliability, risk against coverage, and the scores of each out-of-distribution set.

        Args:
            path: where to write the figure, in the format of the suffix.
        """
        from repulse.evaluation.plots import evaluation_panels, save_picture

        figure = evaluation_panels(self)
        if path is not None:
            save_picture(figure, path)
        return figure

    def to_json(self, path: str | Path | None = None) -> str:
        """Return everything as JSON, with null for NaN and a digest, and write it to a file if there is a path."""
        text = sealed({"format": FORMAT, **without_nan(asdict(self))}, sort=False)
        if path is not None:
            with explaining_writes(path):
                write_whole(path, text)
        return text

    @staticmethod
    def from_json(source: str | Path) -> Evaluation:
        """Read an evaluation from a JSON text or, given a `Path`, from a file."""
        try:
            kept = unsealed(read_regular(source) if isinstance(source, Path) else source)
            if kept.pop("format") != FORMAT:
                raise CheckpointError(expected("source", f"an evaluation of format {FORMAT}", "another format"))
            kept = with_nan({f.name: kept[f.name] for f in fields(Evaluation)})
            intervals = {s: {k: Interval(*v) for k, v in found.items()} for s, found in kept.pop("intervals").items()}
            return Evaluation(**kept, intervals=intervals)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as reason:
            if isinstance(reason, CheckpointError):
                raise
            why = f"something else ({type(reason).__name__}: {reason})"
            raise CheckpointError(expected("source", "the JSON of an evaluation", why)) from reason

    def _repr_html_(self) -> str:
        """Return all metrics as two tables, as in `repr`."""
        inside = table(list(self.id), [[f"{value:.4g}" for value in self.id.values()]])
        head = f"<p>{escape(self.name)}: {self.counts['id']:,} samples</p>"
        if not self.ood:
            return head + inside
        columns = list(next(iter(self.ood.values())))
        rows = [
            [key + " †" * (key in self.oracle), *(f"{v:.4g}" for v in found.values())]
            for key, found in self.ood.items()
        ]
        marks = [f"† {100 * share:.3g} % of {key} are repulsion samples" for key, share in self.oracle.items()]
        notes = [*marks, *(f"! {100 * share:.3g} % of {key}" for key, share in self.leaks.items())]
        return head + inside + table(["out of distribution", *columns], rows, "; ".join(notes))

    def __repr__(self) -> str:
        lines = [f"Evaluation of {self.name}: {self.counts['id']:,} samples, {self.milliseconds:.3g} ms per 1000"]
        shown = {key: value for key, value in self.id.items() if self.task == "regression" or "[" not in key}
        lines += [f"  {key.replace('_', ' '):<24}{value:8.4f}" for key, value in shown.items()]
        if self.ood:
            width = max(24, 2 + max(map(len, self.ood)))
            columns = list(next(iter(self.ood.values())))
            lines.append(f"  {'out of distribution':<{width}}" + "".join(f"{column:>10}" for column in columns))
            for key, values in self.ood.items():
                mark = key + " †" * (key in self.oracle)
                lines.append(f"  {mark:<{width}}" + "".join(f"{value:10.4f}" for value in values.values()))
        lines += [f"  † {100 * share:.3g} % of {key} are repulsion samples" for key, share in self.oracle.items()]
        return "\n".join([*lines, *(f"  ! {100 * share:.3g} % of {key}" for key, share in self.leaks.items())])


def evaluate(
    method: Predictor,
    id: Any,
    ood: Mapping[str, Any] | None = None,
    repulsion: Any = None,
    *,
    name: str | None = None,
    human: Tensor | None = None,
    bootstrap: int = 0,
    batch_size: int = 512,
    progress: bool = True,
) -> Evaluation:
    """Measure a method on data it was not fitted on.

    Args:
        method: an `Ensemble`, `Heads`, a baseline, or any other `Predictor`.
        id: in-distribution data that the fit has not seen: `(inputs, targets)`, or a loader of labelled batches.
        ood: inputs of each out-of-distribution set, or a loader of them, by its name.
        repulsion: the samples that the method was repelled on, in the form of the other inputs (a tensor, a loader, or
            a mapping of names to such). Used only to mark out-of-distribution sets that contain some of them, compared
            by content, as oracle.
        name: name of the method in tables; if None its `name`, or that of its class.
        human: number or share of people who chose each class, for each in-distribution sample, `(N, K)`.
        bootstrap: number of resamples for intervals of 95 %; 0 for none.
        batch_size: maximum number of samples that the method sees at once.
        progress: show a bar over a set that takes more than two seconds.
    """
    if not isinstance(method, Predictor):
        wanted = "something with `predict`, `score` and `predict_and_score`"
        raise DataError(expected("method", wanted, type(method).__name__))
    if isinstance(bootstrap, bool) or not isinstance(bootstrap, int) or bootstrap < 0:
        raise RecipeError(expected("bootstrap", "a number of resamples, or 0", repr(bootstrap)))
    check_positive_integer("batch_size", batch_size)
    ood = _named(ood)
    several, places = None, Places()
    if isinstance(method, Ensemble):
        several, places = method.backbone.several, method.backbone.places
    repelled, own = Index(), Index()
    for batch in () if repulsion is None else input_batches(repulsion, "repulsion", several):
        repelled.add(batch)

    def run(label: str, batches: Iterator[tuple[Any, Tensor | None]], known: dict[str, Index]) -> Pass:
        bar = progress_bar(limit_batch_size(batches, batch_size), f"evaluating {label}", unit="batch", show=progress)
        return pass_over(method, label, iter(bar), known, own)

    inside = run("id", labelled_batches(places.labelled(id), "id"), {"repulsion": repelled})
    outside = {}
    for key, samples in ood.items():
        loader = places.unlabelled(samples)
        loader = [loader] if isinstance(loader, Mapping) else loader  # the names of inputs, not of sets
        batches = ((inputs, None) for inputs in input_batches(loader, f"ood[{key!r}]", several))
        outside[key] = run(key, batches, {"repulsion": repelled, "id": own})
    name = name or str(getattr(method, "name", type(method).__name__))
    return _evaluation(name, inside, outside, human, bootstrap)


def _evaluation(name: str, inside: Pass, outside: dict[str, Pass], human: Tensor | None, repeats: int) -> Evaluation:
    task, found = _metrics(inside, human, repeats)
    ranked = {key: summary.of_scores(inside.scores, run.scores, repeats) for key, run in outside.items()}
    intervals = {"id": found.intervals, **{key: bounds for key, (_, bounds) in ranked.items()}} if repeats else {}
    leaks = {
        "id in repulsion": inside.shared["repulsion"],
        **{f"{k} in id": r.shared["id"] for k, r in outside.items()},
    }
    sets = {"id": inside, **outside}
    return Evaluation(
        name=name,
        task=task,
        counts={key: len(run.scores) for key, run in sets.items()},
        id=found.metrics,
        ood={key: values for key, (values, _) in ranked.items()},
        oracle={key: share for key, run in outside.items() if (share := run.shared["repulsion"])},
        leaks={key: share for key, share in leaks.items() if share},
        milliseconds=1e6 * inside.seconds / len(inside.scores),
        intervals=intervals,
        reliability=found.reliability,
        risk_coverage=found.risk_coverage,
        histograms=summary.histograms({key: run.scores for key, run in sets.items()}),
    )


def _metrics(inside: Pass, human: Tensor | None, repeats: int) -> tuple[str, summary.Summary]:
    """Return the name of the task, and the metrics of its kind of prediction."""
    if inside.positions is not None:
        each = {f"iou[{k}]": value for k, value in enumerate(inside.positions.iou)}
        found = {**inside.positions.compute(), **each}
        return "positions", summary.Summary(found, {}, inside.positions.reliability(), {})
    prediction, targets = inside.prediction, inside.targets
    assert prediction is not None
    assert targets is not None
    if isinstance(prediction, ClassPrediction):
        args = (inside.aleatoric, inside.total, human, repeats)
        return "classification", summary.of_classes(prediction, targets, *args)  # pyright: ignore[reportArgumentType]
    if isinstance(prediction, MultilabelPrediction):
        return "multilabel", summary.of_labels(prediction, targets, repeats)
    if isinstance(prediction, MultiregressionPrediction):
        return "regression", summary.of_targets(prediction, targets, repeats)
    return "regression", summary.of_numbers(prediction, targets, repeats)  # pyright: ignore[reportArgumentType]


def _named(ood: Mapping[str, Any] | None) -> dict[str, Any]:
    if ood is not None and not isinstance(ood, Mapping):
        raise DataError(expected("ood", "a mapping of names to inputs", type(ood).__name__))
    taken = {"id", "edges"} & set(ood or {})
    if taken:
        raise DataError(expected("the names in `ood`", "other than 'id' and 'edges'", repr(taken.pop())))
    return dict(ood or {})
