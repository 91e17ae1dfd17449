"""`repulse why`: the reasons for doubt about samples of a file, as lines, as JSON or as a page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from repulse._files import write_whole
from repulse.commands import options
from repulse.commands.language import next_steps, warnings_as_lines
from repulse.commands.pictures import picture_of, training_samples
from repulse.decide.reason import Reason, Reasons
from repulse.ensemble import Ensemble
from repulse.errors import DataError, expected
from repulse.evaluation.page import Page, Section
from repulse.evaluation.plots import to_svg
from repulse.files.batches import Batches, Prepare
from repulse.files.opening import Opening, open_heads
from repulse.files.samples import Samples, need, read_samples

MOST = 10
"""Samples that are explained if none are named."""


def why(
    heads: options.Heads,
    data: Annotated[Path, typer.Argument(help="The samples in question.", metavar="DATA")],
    rows: Annotated[
        str | None,
        typer.Option(help=f"Which of them, from 0, such as 3,7,10-19. [default: the {MOST} that it doubts most]"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A page (.html), or all that is known (.json).", metavar="FILE")
    ] = None,
    model: options.Model = None,
    checkpoint: options.Checkpoint = None,
) -> None:
    """Say why the heads doubt samples: who disagrees, because of which features, and what training data is near.

    Prints a line for each sample; after `repulse gate` it begins with what the gate decides.
    """
    if out is not None and out.suffix.lower() not in (".html", ".json"):
        raise DataError(expected("--out", "a file that ends in .html or .json", out))
    if out is not None and out.suffix.lower() == ".html":
        need("matplotlib", "a page of reasons", "plots")
    ensemble, prepare, opening = open_heads(heads, model, checkpoint)
    samples = read_samples(data, opening.columns, opening.kind)
    with warnings_as_lines():
        chosen = _most_doubted(ensemble, samples, prepare, opening) if rows is None else rows_in(rows, len(samples))
        told = list(_explained(ensemble, samples.some(chosen), prepare, opening))
    for one in told:
        typer.echo(one.line)
    if ensemble.kept is None:
        said = "no training inputs are named, because their features were not kept; `repulse fit` keeps them"
        typer.echo(f"repulse: {said}", err=True)
    if out is not None and out.suffix.lower() == ".html":
        _page(told, ensemble, opening).write(out)
    elif out is not None:
        write_whole(out, json.dumps([one.record() for one in told], indent=1, ensure_ascii=False) + "\n")
    where, source = shlex.quote(str(heads)), shlex.quote(str(data))
    if out is None:
        next_steps((f"repulse why {where} {source} --out why.html", "the same as a page, with pictures"))
    else:
        typer.echo(f"{out}: the reasons for doubt about {len(told):,} samples")


def rows_in(text: str, count: int) -> list[int]:
    """Return the numbers that a text such as "3,7,10-19" names, each from 0 and below `count`.

    Examples:
        >>> rows_in("3,7,10-12", 20)
        [3, 7, 10, 11, 12]
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            found += range(int(first), int(last if dash else first) + 1)
        except ValueError as reason:
            raise DataError(expected("--rows", "numbers and ranges, such as 3,7,10-19", repr(text))) from reason
    if not found or max(found) >= count:
        raise DataError(expected("--rows", f"from 0 to {count - 1}, at least one", repr(text)))
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class _Told:
    """A sample, and why it is doubted."""

    key: Any
    value: Any
    reason: Reason

    @property
    def line(self) -> str:
        return f"{self.key}: {self.reason.text}"

    def record(self) -> dict[str, Any]:
        key = self.key if isinstance(self.key, int | str) else str(self.key)
        return {"key": key, **self.reason.record()}


def _most_doubted(ensemble: Ensemble, samples: Samples, prepare: Prepare, opening: Opening) -> list[int]:
    batches = Batches(samples, prepare, size=opening.batch_size)
    doubt = torch.cat([ensemble.predict(batch).epistemic.cpu() for batch in batches])
    return doubt.argsort(descending=True, stable=True)[:MOST].tolist()


def _explained(ensemble: Ensemble, samples: Samples, prepare: Prepare, opening: Opening) -> Iterator[_Told]:
    begin = 0
    for batch in Batches(samples, prepare, size=opening.batch_size):
        reasons = ensemble.why(batch, maps=opening.kind == "images")
        assert isinstance(reasons, Reasons)
        for i, reason in enumerate(reasons, start=begin):
            yield _Told(samples.keys[i], samples.values[i], reason)
        begin += len(reasons)


def _page(told: Sequence[_Told], ensemble: Ensemble, opening: Opening) -> Page:
    """Show each sample, the reasons, and the training samples that are nearest, if they are still where they were."""
    training = training_samples(opening, 0 if ensemble.kept is None else len(ensemble.kept.train))
    pictures = training is not None and opening.kind == "images"
    sections = []
    for one in told:
        image = picture_of(one.value) if opening.kind == "images" else None
        figure = one.reason.plot(image, _Pictures(training) if pictures and training is not None else None)
        text = [one.reason.text]
        if opening.kind == "texts":
            text.insert(0, f"“{one.value}”")
            near = [] if training is None else [(training.values[n.index], n) for n in one.reason.nearest]
            text += [f"near it: “{value}” ({n.target}, {n.distance:.1f} times the usual distance)" for value, n in near]
        title = f"{one.key}" + ("" if one.reason.action is None else f": {one.reason.action}")
        sections.append(Section(title, text, figure=to_svg(figure), figure_alt=one.reason.text))
    lead = (
        "Votes: which classes the heads prefer. Shares: how much of their disagreement comes from which features, "
        "exactly. Distances: to the nearest training inputs, in whitened features; 1 is usual."
    )
    return Page("Why it doubts", lead, sections, "Made by `repulse why`.")


class _Pictures:
    """Training images by their index."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return picture_of(self.samples.values[index])
