"""`repulse report`: measure an ensemble, beside its network, on data that the fit has not seen."""

from __future__ import annotations

import hashlib
import importlib.util
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from repulse.backbone.features import compute_features
from repulse.commands import options
from repulse.commands.language import next_steps, shows_progress, warnings_as_lines
from repulse.ensemble import Ensemble
from repulse.errors import DataError, expected
from repulse.evaluation import Evaluation, evaluate
from repulse.evaluation.compare import compare
from repulse.evaluation.page import Page, Section
from repulse.files.batches import Batches, Prepare, targets_of
from repulse.files.opening import Opening, open_heads
from repulse.files.samples import Samples, read_samples
from repulse.particles.calibrate import network_outputs
from repulse.prediction import ClassPrediction

ENSEMBLE, NETWORK = "ensemble", "network alone"


def report(
    heads: options.Heads,
    test: Annotated[Path, typer.Option(help="Labelled data that neither network nor heads have seen.", metavar="D")],
    ood: Annotated[
        list[str] | None,
        typer.Option(help="Data of another kind, with a name for it; may be repeated.", metavar="NAME=D"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the page and the numbers.")] = Path("report"),
    text: options.Text = None,
    path: options.PathColumn = None,
    label: options.Label = None,
    model: options.Model = None,
    checkpoint: options.Checkpoint = None,
) -> None:
    """Measure the ensemble, and the network alone, on data that the fit has not seen; write one page.

    The network runs once over each set; its features are kept, so a run that was interrupted goes on where it was.
    """
    others = options.named_sources(ood, "--ood", ("test", "id", "edges"))
    ensemble, prepare, opening = open_heads(heads, model, checkpoint)
    told = {"text": text, "path": path, "label": label}
    columns = opening.columns.from_dict({**opening.columns.to_dict(), **{k: v for k, v in told.items() if v}})
    sets = {"test": read_samples(test, columns, opening.kind)}
    sets |= {name: read_samples(source, columns, opening.kind) for name, source in others.items()}
    with warnings_as_lines():
        evaluations = _measure(ensemble, prepare, opening, sets, heads / "features" / "report")
    tables = compare({name: [evaluation] for name, evaluation in evaluations.items()})
    for table in tables:
        typer.echo(table.text() + "\n")
    repelled = opening.sources.get("repulsion")
    oracles = [name for name, source in others.items() if str(Path(source).resolve()) == repelled]
    for name in oracles:
        typer.echo(f"! {name} is the data that the heads were repelled on: an oracle, no fair test\n")
    page = _page(heads, evaluations, [table.html() for table in tables], oracles).write(out / "index.html")
    evaluations[ENSEMBLE].to_json(out / "report.json")
    typer.echo(f"{page}: the page; {out / 'report.json'}: the numbers")
    next_steps((f"repulse score {shlex.quote(str(heads))} DATA --out scores.parquet", "what it makes of new data"))


@dataclass(frozen=True, eq=False)
class _NetworkAlone:
    """The last layer on features, as a method to measure."""

    last_layer: tuple[Tensor, Tensor]

    def predict(self, x: Tensor) -> ClassPrediction:
        return ClassPrediction(network_outputs(self.last_layer, x).log_softmax(dim=-1).unsqueeze(0))

    def score(self, x: Tensor) -> Tensor:
        return self.predict(x).score

    def predict_and_score(self, x: Tensor) -> tuple[ClassPrediction, Tensor]:
        prediction = self.predict(x)
        return prediction, prediction.score


def _measure(
    ensemble: Ensemble, prepare: Prepare, opening: Opening, sets: Mapping[str, Samples], cache: Path
) -> dict[str, Evaluation]:
    """Compute features of each set once, and evaluate the heads and the network's last layer on them."""
    targets = targets_of(sets["test"], opening.task, opening.classes)
    outputs = ensemble.heads.task.outputs if opening.task == "classification" else None
    if outputs is not None and (int(targets.min()) < 0 or int(targets.max()) >= outputs):
        got = f"values from {int(targets.min())} to {int(targets.max())}"
        raise DataError(expected("the labels of --test", f"between 0 and {outputs - 1}", got))
    features = {}
    for name, samples in sets.items():
        labels = targets if name == "test" else torch.zeros(len(samples), dtype=torch.long)
        batches = Batches(samples, prepare, labels, opening.batch_size)
        folder = cache / hashlib.sha256(f"{name}={samples.name}".encode()).hexdigest()[:16]
        found = compute_features(
            ensemble.backbone, batches, None, cache=folder, progress=shows_progress(), name=samples.name
        )
        features[name] = found.train.float()
    inside, others = features.pop("test"), features
    methods = {ENSEMBLE: ensemble.heads}
    if opening.task == "classification":
        weight, bias = ensemble.backbone.weights
        if len(bias) == 1:  # one logit z is two, -z/2 and z/2
            weight, bias = (torch.cat([-part / 2, part / 2]) for part in (weight, bias))
        methods = {NETWORK: _NetworkAlone((weight, bias)), **methods}
    return {
        name: evaluate(method, (inside, targets), others, name=name, progress=False) for name, method in methods.items()
    }


def _page(heads: Path, evaluations: dict[str, Evaluation], tables: list[str], oracles: list[str]) -> Page:
    ours = evaluations[ENSEMBLE]
    sets = {"the test set" if name == "id" else name: count for name, count in ours.counts.items()}
    counts = ", ".join(f"{count:,} of {name}" for name, count in sets.items())
    notes = [f"{name} is the data that the heads were repelled on: an oracle, no fair test." for name in oracles]
    titles = ("Predictions", "What can be kept", "Telling other data apart", "False alarms at 95 % found")
    sections = [Section(title, table=table) for title, table in zip(titles, tables, strict=False)]
    sections += [Section("Read with care", notes)] if notes else []
    sections += _figures(ours)
    lead = f"Measured on data that the fit has not seen: {counts}."
    return Page(f"What {heads.resolve().name} know, and what they do not", lead, sections, "Made by `repulse report`.")


def _figures(evaluation: Evaluation) -> Iterator[Section]:
    """Draw calibration, what can be kept, and the scores of each set, if there is something to draw with."""
    if importlib.util.find_spec("matplotlib") is None:
        typer.echo("repulse: the page has no figures without matplotlib: pip install 'repulse[plots]'", err=True)
        return
    from repulse.evaluation.plots import to_svg

    alt = "Calibration, risk against coverage, and histograms of the scores of each set."
    yield Section("The ensemble in pictures", figure=to_svg(evaluation.plot()), figure_alt=alt)
