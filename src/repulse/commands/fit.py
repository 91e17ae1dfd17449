"""`repulse fit`: give a trained network heads, from files."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from repulse.commands import options
from repulse.commands.language import next_steps, shows_progress, warnings_as_lines
from repulse.commands.training import Training
from repulse.ensemble import Ensemble
from repulse.errors import FitWarning
from repulse.files.networks import open_network
from repulse.recipe import Recipe
from repulse.retrofit import retrofit

AUTO, NONE = "auto", "none"

MAX_KEPT = 2**30
"""Bytes of features of the training data that are kept with the heads, at most."""


def fit(
    model: options.TrainedNetwork,
    data: options.TrainingData,
    out: Annotated[Path, typer.Option(help="Folder for the heads.")] = Path("heads"),
    validation: Annotated[
        Path | None, typer.Option(help="Data like DATA that the network was not trained on: worth a lot.", metavar="D")
    ] = None,
    repulsion: Annotated[
        str, typer.Option(help="Data on which heads should disagree; `auto` makes it from DATA, `none` for nowhere.")
    ] = AUTO,
    checkpoint: options.Checkpoint = None,
    task: Annotated[options.Task, typer.Option(help="What the network predicts.")] = options.Task.classification,
    classes: options.Classes = None,
    text: options.Text = None,
    path: options.PathColumn = None,
    label: options.Label = None,
    key: options.Key = None,
    heads: Annotated[int, typer.Option(min=1, help="Number of heads.")] = Recipe().heads,
    strength: Annotated[
        float | None,
        typer.Option(min=0, help="How strongly heads repel each other. [default: by the number of classes]"),
    ] = None,
    layers: Annotated[
        list[str] | None, typer.Option(help="What heads see: auto, last, or names of modules; may be repeated.")
    ] = None,
    last_layer: Annotated[str | None, typer.Option(help="Name of the last layer, if it should not be found.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the fit.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples that the network sees at once.")] = 64,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for the features. [default: `features` in the folder for the heads]")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Where to run, such as cuda.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 if the summary has a warning; heads are written.")
    ] = False,
) -> None:
    """Give a trained network heads that know what it does not know.

    Features are computed once and kept, so a run that was interrupted goes on where it was. The folder remembers how
    MODEL and DATA were opened: `repulse score` and the others need only the folder.
    """
    network = open_network(model, checkpoint)
    columns = options.columns_of(text, path, label, key)
    training = Training.of(network, model, checkpoint, data, columns, classes, task, batch_size)
    names = training.opening.classes or network.class_names
    recipe = Recipe(task=task.value, heads=heads, seed=seed, strength="auto" if strength is None else strength)
    given = None if not layers else layers[0] if layers[0] in ("auto", "last") else layers
    with warnings_as_lines(FitWarning):  # the summary has them
        ensemble = retrofit(
            network.model,
            training.batches(),
            validation=training.validation(validation),
            repulsion=_repulsion(repulsion, training, seed),
            layers=given,
            last_layer=last_layer,
            recipe=recipe,
            cache=cache or out / "features",
            class_names=names if task is not options.Task.regression else None,
            device=device,
            progress=shows_progress(),
        )
    _save(ensemble, out)
    sources = training.opening.sources | _sources(validation, repulsion)
    dataclasses.replace(training.opening, sources=sources).save(out)
    _tell(ensemble, out, validation)
    if strict and ensemble.summary().warnings():
        raise typer.Exit(1)


def _save(ensemble: Ensemble, out: Path) -> None:
    """Write the heads, with the features of the training data unless these are many: `why` and `audit` need them."""
    kept = ensemble.kept
    few = kept is not None and kept.train.nbytes <= MAX_KEPT
    ensemble.save(out, features=few)
    if not few:
        typer.echo(f"repulse: {out} has no features of the training data: too many for `why` and `audit`", err=True)


def _tell(ensemble: Ensemble, out: Path, validation: Path | None) -> None:
    typer.echo(str(ensemble.summary()))
    instead = f"{ensemble.heads.count} heads in place of {ensemble.backbone.ending} of {type(ensemble.model).__name__}"
    typer.echo(f"\n{out}: {instead}; repelled {ensemble.repulsion}")
    where = shlex.quote(str(out))
    steps = [
        (f"repulse report {where} --test DATA --ood NAME=DATA", "measure it on data that the fit has not seen"),
        (f"repulse gate {where} DATA --risk 0.02", "accept, abstain or call foreign, with guarantees"),
        (f"repulse score {where} DATA --out scores.parquet", "what it makes of new data"),
        (f"repulse serve {where}", "a page and an HTTP service on this machine"),
    ]
    if validation is None:
        steps.insert(0, ("repulse fit ... --validation DATA", "the same with data that shows how overconfident it is"))
    next_steps(*steps)


def _repulsion(source: str, training: Training, seed: int) -> Any:
    if source in (AUTO, NONE):
        return AUTO if source == AUTO else None
    return training.unlabelled(source, seed)


def _sources(validation: Path | None, repulsion: str) -> dict[str, str]:
    found = {"repulsion": repulsion if repulsion in (AUTO, NONE) else str(Path(repulsion).resolve())}
    return found if validation is None else {**found, "validation": str(validation.resolve())}
