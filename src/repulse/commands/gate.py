"""`repulse gate`: decide on inputs with guarantees, kept with the heads."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from repulse.commands import options
from repulse.commands.language import next_steps, shows_progress, warnings_as_lines
from repulse.decide.promise import Promise, Sets
from repulse.decide.report import TEST
from repulse.errors import DataError, expected
from repulse.files.batches import Batches, targets_of
from repulse.files.opening import open_heads
from repulse.files.samples import Samples, read_samples

DEFAULT = Promise()


def gate(
    heads: options.Heads,
    data: Annotated[
        Path, typer.Argument(help="Labelled data that neither network nor heads were fitted to.", metavar="DATA")
    ],
    false_alarms: Annotated[
        float, typer.Option(help="Largest share of inputs like DATA that may be called foreign.")
    ] = DEFAULT.false_alarms,
    risk: Annotated[
        float | None, typer.Option(help="Largest share of wrong predictions among the accepted. [default: accept all]")
    ] = None,
    delta: Annotated[float, typer.Option(help="Probability with which --risk may be exceeded.")] = DEFAULT.delta,
    alpha: Annotated[float, typer.Option(help="Largest share of targets outside their set.")] = DEFAULT.alpha,
    sets: Annotated[
        str | None, typer.Option(help="lac, aps, raps; for a regression normalised, cqr. [default: the first]")
    ] = None,
    by_class: Annotated[bool, typer.Option("--by-class", help="Hold --false-alarms within each class.")] = False,
    tolerance: Annotated[float | None, typer.Option(help="Error from which on a number is wrong.")] = None,
    test: Annotated[
        Path | None, typer.Option(help="Further labelled data, to see whether the promise is held.", metavar="D")
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(help="Data of another kind, with a name for it, for the page; may be repeated.", metavar="NAME=D"),
    ] = None,
    out: Annotated[Path, typer.Option(help="The page, if there is a --test.")] = Path("gate.html"),
    model: options.Model = None,
    checkpoint: options.Checkpoint = None,
) -> None:
    """Make a gate, which accepts predictions, abstains, or calls an input foreign; keep it with HEADS.

    What it promises holds for inputs drawn like DATA. From then on `score` and `serve` say what it decides.
    """
    ensemble, prepare, opening = open_heads(heads, model, checkpoint)

    def batches(source: Path | str, *, labelled: bool) -> Batches:
        samples = read_samples(source, opening.columns, opening.kind)
        targets = targets_of(samples, opening.task, opening.classes) if labelled else None
        return Batches(samples, prepare, targets, opening.batch_size)

    if ood and test is None:
        raise DataError(expected("--ood", "given with --test, for the page on both", "no --test"))
    others = options.named_sources(ood, "--ood", ("test", "id", "edges", TEST))
    with warnings_as_lines():
        made = ensemble.gate(
            batches(data, labelled=True),
            false_alarms=false_alarms,
            risk=risk,
            delta=delta,
            alpha=alpha,
            sets=cast(Sets | None, sets),
            by_class=by_class,
            tolerance=tolerance,
            progress=shows_progress(),
        )
        ensemble.save(heads)
        typer.echo("\n".join(made.lines()))
        if test is not None:
            further = batches(test, labelled=True)
            foreign = {name: batches(source, labelled=False) for name, source in others.items()}
            names = {name: _names(one.samples) for name, one in {TEST: further, **foreign}.items()}
            found = made.report(further, foreign, names=names, path=out)
            typer.echo(f"{out}: {found.page.lead}")
    where = shlex.quote(str(heads))
    next_steps(
        (f"repulse score {where} DATA --out scores.parquet", "what it decides on new data"),
        (f"repulse watch {where} DATA", "whether new data are still like these"),
    )


def _names(samples: Samples) -> Sequence[Any]:
    """Return what stands beside examples: the text of texts, what identifies all others."""
    return samples.values if samples.kind == "texts" else [str(key) for key in samples.keys]
