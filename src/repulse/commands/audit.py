"""`repulse audit`: which labels of data to look at again."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from repulse.active.audit import Audit
from repulse.active.audit import audit as audited
from repulse.commands import options
from repulse.commands.language import next_steps, shows_progress, warnings_as_lines
from repulse.commands.pictures import picture_of
from repulse.errors import DataError, expected
from repulse.evaluation.page import Gallery, Picture
from repulse.evaluation.plots import png_of
from repulse.files.batches import Batches, targets_of
from repulse.files.opening import open_heads
from repulse.files.samples import Samples, read_samples

SHOWN = 24
"""Pictures on the page, of the most suspect samples of which the heads say something else than their label."""


def audit(
    heads: options.Heads,
    data: Annotated[Path, typer.Argument(help="Labelled data: that of the fit, or other.", metavar="DATA")],
    out: Annotated[Path, typer.Option(help="A page (.html), or a table of all samples (.csv).", metavar="FILE")] = Path(
        "audit.html"
    ),
    model: options.Model = None,
    checkpoint: options.Checkpoint = None,
) -> None:
    """Find labels that are probably wrong, and samples that are ambiguous, foreign or copies of each other.

    A label is suspect where the heads give it little probability.
    """
    if out.suffix.lower() not in (".html", ".csv"):
        raise DataError(expected("--out", "a file that ends in .html or .csv", out))
    ensemble, prepare, opening = open_heads(heads, model, checkpoint)
    if ensemble.kept is None:
        wanted = "with the features of its training data, which `repulse fit` keeps"
        raise DataError(expected("HEADS", wanted, "none"))
    samples = read_samples(data, opening.columns, opening.kind)
    own = str(data.resolve()) == opening.sources.get("data") and len(samples) == len(ensemble.kept.train)
    with warnings_as_lines():
        given = None
        if not own:
            given = Batches(samples, prepare, targets_of(samples, opening.task, opening.classes), opening.batch_size)
        found = audited(ensemble, given, progress=shows_progress())
        found = dataclasses.replace(found, keys=[str(key) for key in samples.keys])
    typer.echo(str(found))
    if out.suffix.lower() == ".csv":
        found.csv(out)
    else:
        found.page(out, galleries=_gallery(found, samples) if opening.kind == "images" else ())
    typer.echo(f"{out}: {'a row for each sample' if out.suffix.lower() == '.csv' else 'the page'}, worst first")
    where, source = shlex.quote(str(heads)), shlex.quote(str(data))
    first = int(found.order[0])
    next_steps((f"repulse why {where} {source} --rows {first}", "why it doubts the first of them"))


def _gallery(found: Audit, samples: Samples) -> Sequence[Gallery]:
    pictures = []
    other = found.order[(found.labels != found.targets)[found.order]]
    for i in other[:SHOWN].tolist():
        said = f"{found.name(int(found.targets[i]))}? {found.name(int(found.labels[i]))}"
        pictures.append(Picture(png_of(picture_of(samples.values[i])), said, f"{found.key(i)}: labelled {said}"))
    return [Gallery("Their label? What the heads say", pictures)] if pictures else []
