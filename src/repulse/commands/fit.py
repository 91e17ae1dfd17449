"""`repulse fit`: give a trained network heads, from files."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from repulse.commands import options
from repulse.commands.language import next_steps, shows_progress, warnings_as_lines
from repulse.ensemble import Ensemble
from repulse.errors import DataError, FitWarning, expected
from repulse.files.batches import Batches, classes_of, targets_of
from repulse.files.columns import Columns
from repulse.files.networks import Network, open_network
from repulse.files.opening import Opening
from repulse.files.samples import Samples, read_samples
from repulse.recipe import Recipe
from repulse.retrofit import retrofit

AUTO, NONE = "auto", "none"


def fit(
    model: Annotated[
        str,
        typer.Argument(
            help="The trained network: a name of timm, a folder of Hugging Face, package.module:function (or "
            "file.py:function) that returns the network or (network, transform), or `linear` for ready features.",
            metavar="MODEL",
        ),
    ],
    data: Annotated[
        Path,
        typer.Argument(
            help="Its training data: a folder of class folders, a CSV, TSV or Parquet table, an .npz, or a .tar.",
            metavar="DATA",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the heads.")] = Path("heads"),
    validation: Annotated[
        Path | None, typer.Option(help="Data like DATA that the network was not trained on: worth a lot.", metavar="D")
    ] = None,
    repulsion: Annotated[
        str, typer.Option(help="Data on which heads should disagree; `auto` makes it from DATA, `none` for nowhere.")
    ] = AUTO,
    checkpoint: options.Checkpoint = None,
    task: Annotated[options.Task, typer.Option(help="What the network predicts.")] = options.Task.classification,
    classes: Annotated[
        Path | None,
        typer.Option(help="File with the name of a class in each line, in the order of the outputs.", metavar="FILE"),
    ] = None,
    text: options.Text = None,
    path: options.PathColumn = None,
    label: options.Label = None,
    key: options.Key = None,
    heads: Annotated[int, typer.Option(min=1, help="Number of heads.")] = Recipe().heads,
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
    samples = read_samples(data, columns, network.kind)
    columns = dataclasses.replace(samples.columns, label=samples.columns.label or label)
    names = _classes(classes, network, samples, task.value)
    opening = Opening(
        model=_whole_name(model),
        checkpoint=None if checkpoint is None else str(checkpoint.resolve()),
        kind=samples.kind,
        columns=columns,
        classes=names,
        task=task.value,
        batch_size=batch_size,
        sources=_sources(data, validation, repulsion),
    )
    recipe = Recipe(task=task.value, heads=heads, seed=seed)
    given = None if not layers else layers[0] if layers[0] in ("auto", "last") else layers
    with warnings_as_lines(FitWarning):  # the summary has them
        ensemble = retrofit(
            network.model,
            _labelled(samples, network, opening),
            validation=None if validation is None else _validation(validation, columns, network, opening),
            repulsion=_repulsion(repulsion, columns, network, opening, seed),
            layers=given,
            last_layer=last_layer,
            recipe=recipe,
            cache=cache or out / "features",
            class_names=names or network.class_names if task is options.Task.classification else None,
            device=device,
            progress=shows_progress(),
        )
    ensemble.save(out)
    opening.save(out)
    _tell(ensemble, out, validation)
    if strict and ensemble.summary().warnings():
        raise typer.Exit(1)


def _tell(ensemble: Ensemble, out: Path, validation: Path | None) -> None:
    typer.echo(str(ensemble.summary()))
    typer.echo(f"\n{out}: {ensemble}")
    where = shlex.quote(str(out))
    steps = [
        (f"repulse report {where} --test DATA --ood NAME=DATA", "measure it on data that the fit has not seen"),
        (f"repulse score {where} DATA --out scores.parquet", "what it makes of new data"),
        (f"repulse serve {where}", "a page and an HTTP service on this machine"),
    ]
    if validation is None:
        steps.insert(0, ("repulse fit ... --validation DATA", "the same with data that shows how overconfident it is"))
    next_steps(*steps)


def _classes(file: Path | None, network: Network, samples: Samples, task: str) -> tuple[str, ...] | None:
    """Return the names by which labels are understood: told, those of the network, or those in the data, sorted."""
    if file is not None:
        try:
            return tuple(file.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
        except (OSError, UnicodeDecodeError) as reason:
            wanted = "a text file with the name of a class in each line"
            raise DataError(expected("--classes", wanted, file)) from reason
    if samples.labels is None or task != "classification":
        return None
    found, known = classes_of(samples.labels), network.class_names
    if found is None:
        return None
    return known if known is not None and set(found) <= set(known) else tuple(found)


def _labelled(samples: Samples, network: Network, opening: Opening) -> Batches:
    targets = targets_of(samples, opening.task, opening.classes)
    return Batches(samples, network.prepare(opening.kind), targets, opening.batch_size)


def _validation(source: Path, columns: Columns, network: Network, opening: Opening) -> Batches:
    return _labelled(read_samples(source, columns, opening.kind), network, opening)


def _repulsion(source: str, columns: Columns, network: Network, opening: Opening, seed: int) -> Any:
    if source in (AUTO, NONE):
        return AUTO if source == AUTO else None
    samples = read_samples(source, columns, opening.kind)
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))  # the first ones are taken
    return Batches(samples.some(order.tolist()), network.prepare(opening.kind), size=opening.batch_size)


def _whole_name(model: str) -> str:
    """Return a name that means the same in any folder."""
    where, colon, function = model.rpartition(":")
    if colon and where.endswith(".py"):
        return f"{Path(where).resolve()}:{function}"
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def _sources(data: Path, validation: Path | None, repulsion: str) -> dict[str, str]:
    found = {"data": str(data.resolve()), "repulsion": repulsion}
    if repulsion not in (AUTO, NONE):
        found["repulsion"] = str(Path(repulsion).resolve())
    if validation is not None:
        found["validation"] = str(validation.resolve())
    return found
