"""`repulse watch`: follow a stream of inputs, file by file, and say when it has changed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer

from repulse._files import explaining_writes
from repulse._locks import locked
from repulse.commands import options
from repulse.commands.language import next_steps, warnings_as_lines
from repulse.files.batches import Batches
from repulse.files.opening import open_heads
from repulse.files.samples import read_samples


def watch(
    heads: options.Heads,
    data: Annotated[Path, typer.Argument(help="The next inputs.", metavar="DATA")],
    state: Annotated[
        Path | None, typer.Option(help="File that the watch goes on from. [default: `watch.state` in HEADS]")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="File to which a line of JSON is added.", metavar="FILE")] = None,
    plot: Annotated[Path | None, typer.Option(help="Picture of the whole stream.", metavar="FILE")] = None,
    false_alarm: Annotated[
        float, typer.Option(help="Probability of ever raising an alarm while nothing changes; of a new watch.")
    ] = 0.01,
    in_order: Annotated[
        bool,
        typer.Option("--in-order", help="Take them as they come, which nothing may have sorted. [default: shuffled]"),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 once there is an alarm.")] = False,
    model: options.Model = None,
    checkpoint: options.Checkpoint = None,
) -> None:
    """Follow the next inputs of a stream with the gate of HEADS, and say whether they have changed since calibration.

    Each call goes on where the last one stopped, as if it had not. Needs `repulse gate` first. A file that is sorted,
    as a folder is by name, is a change in itself: what is easy comes first, and what is hard afterwards. So the inputs
    of a call are taken in random order, unless it is said that they are in the order in which they came.
    """
    ensemble, prepare, opening = open_heads(heads, model, checkpoint)
    kept = heads / "watch.state" if state is None else state
    gate = ensemble.gate()
    samples = read_samples(data, opening.columns, opening.kind)
    with warnings_as_lines(), _alone(kept):
        following = gate.resume(kept) if kept.exists() else gate.watch(false_alarm)
        if not in_order:
            made = torch.Generator().manual_seed(following.seen)
            samples = samples.some(torch.randperm(len(samples), generator=made).tolist())
        for batch in Batches(samples, prepare, size=opening.batch_size):
            following.update(batch)
        record = following.record()
        if log is not None:  # first: what is not in the log has not been seen
            with explaining_writes(log, "--log"):
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("a", encoding="utf-8") as file:
                    file.write(record.json() + "\n")
        following.save(kept)
    if plot is not None:
        following.plot(plot)
    typer.echo(str(record))
    if following.alarm:
        next_steps((f"repulse score {shlex.quote(str(heads))} DATA", "which of them are foreign: label those first"))
    if strict and following.alarm:
        raise typer.Exit(1)


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Let one call at a time go on from a state: what another has seen meanwhile would be lost."""
    with ExitStack() as held:
        with explaining_writes(state, "--state"):
            state.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(state.with_name(f".{state.name}.lock"), f"goes on from {state}"))
        yield
