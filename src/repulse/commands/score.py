"""`repulse score`: what an ensemble makes of new data, on one processor or many machines."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from repulse.commands import options
from repulse.commands.language import next_steps, shows_progress, warnings_as_lines
from repulse.scale import score as score_files


def score(
    heads: options.Heads,
    data: Annotated[
        Path,
        typer.Argument(
            help="A CSV, TSV, Parquet, .npz or .tar file, a folder of such files, or a folder of images.",
            metavar="DATA",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="A .parquet or .csv for one file or folder of images; otherwise a folder.")
    ] = Path("scores.parquet"),
    engine: Annotated[options.Engine, typer.Option(help="Who runs the workers.")] = options.Engine.processes,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of workers. [default: one per processor]")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each. [default: processors / workers]")] = None,
    probs: Annotated[bool, typer.Option("--probs", help="Also write the probability of every class.")] = False,
    text: options.Text = None,
    path: options.PathColumn = None,
    key: options.Key = None,
    batch_size: options.BatchSize = None,
    model: options.Model = None,
    checkpoint: options.Checkpoint = None,
) -> None:
    """Predict with uncertainty for each sample of DATA, and write it beside the sample's key.

    Each file in becomes one file out, complete or not there: after an interruption the same command goes on with the
    files that are left. All engines write the same bytes.
    """
    with warnings_as_lines():
        done = score_files(
            data,
            out,
            heads,
            engine=engine.value,
            workers=workers,
            threads=threads,
            batch_size=batch_size,
            columns=options.columns_of(text, path, None, key),
            probs=probs,
            model=model,
            checkpoint=checkpoint,
            progress=shows_progress(),
        )
    typer.echo(f"{out}: {done}")
    where = shlex.quote(str(heads))
    next_steps(
        ("sort by `epistemic`, largest first", "what the network has seen nothing like; look at those first"),
        (f"repulse why {where} DATA --out why.html", "why it doubts them"),
        (f"repulse report {where} --test DATA --ood NAME=DATA", "how far these numbers can be trusted"),
    )
