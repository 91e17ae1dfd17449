"""`repulse suggest`: where heads should disagree, compared without labels of what is out of distribution."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from repulse.commands import options
from repulse.commands.language import next_steps, shows_progress, warnings_as_lines
from repulse.commands.training import Training
from repulse.files.networks import open_network
from repulse.recipe import Recipe
from repulse.suggest import Suggestion
from repulse.suggest import suggest as compare_sources

AUTO = "auto"


def suggest(
    model: options.TrainedNetwork,
    data: options.TrainingData,
    validation: Annotated[
        Path | None, typer.Option(help="Data like DATA that the network was not trained on.", metavar="D")
    ] = None,
    repulsion: Annotated[
        list[str] | None,
        typer.Option(help="Data on which heads might disagree, to compare; may be repeated.", metavar="NAME=D"),
    ] = None,
    checkpoint: options.Checkpoint = None,
    task: Annotated[options.Task, typer.Option(help="What the network predicts.")] = options.Task.classification,
    classes: options.Classes = None,
    text: options.Text = None,
    path: options.PathColumn = None,
    label: options.Label = None,
    samples: Annotated[int, typer.Option(min=1, help="Training samples that are used, at most.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the fits.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples that the network sees at once.")] = 64,
) -> None:
    """Compare where heads could disagree, how strongly, and what they should see, before `repulse fit`.

    Every setting is judged on samples of sources that its heads have not met. Nothing is written.
    """
    network = open_network(model, checkpoint)
    columns = options.columns_of(text, path, label, None)
    named = options.named_sources(repulsion, "--repulsion", (AUTO, "nowhere"))
    training = Training.of(network, model, checkpoint, data, columns, classes, task, batch_size)
    with warnings_as_lines():
        found = compare_sources(
            network.model,
            training.batches(),
            candidates={name: training.unlabelled(source, seed) for name, source in named.items()},
            validation=training.validation(validation),
            recipe=Recipe(task=task.value, seed=seed),
            samples=samples,
            progress=shows_progress(),
        )
    if not shows_progress():  # otherwise it was printed
        typer.echo(str(found))
    told = {"checkpoint": checkpoint, "validation": validation, "classes": classes}
    told |= {"text": text, "path": path, "label": label, "task": None if task is options.Task.classification else task}
    named_again = [f"--{name} {shlex.quote(str(value))}" for name, value in told.items() if value is not None]
    next_steps(_next(found, named, " ".join([shlex.quote(model), shlex.quote(str(data)), *named_again])))


def _next(found: Suggestion, named: dict[str, str], what: str) -> tuple[str, str]:
    """Return the command that fits as suggested; for one part of what `auto` makes there is only Python."""
    rest = f"--strength {found.best.strength:.3g} --layers {found.best.layers}"
    if found.repulsion is None:
        return f"repulse fit {what} --repulsion none", "the same fit without repulsion"
    known = {AUTO: AUTO, **{name: shlex.quote(source) for name, source in named.items()}}
    if found.best.source in known:
        return f"repulse fit {what} --repulsion {known[found.best.source]} {rest}", "fit with it"
    return "repulse.retrofit(..., repulsion=repulse.suggest(...).repulsion)", "in Python: one part of `auto` alone"
