"""How commands speak: errors in words of the command line, warnings as one line, and what to do next."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from repulse import errors

OURS = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Warning)}
"""Warnings that the library gives."""

WORDS = {
    "model": "MODEL",
    "data": "DATA",
    "x": "DATA",
    "folder": "HEADS",
    "validation": "--validation",
    "repulsion": "--repulsion",
    "cache": "--cache",
    "layers": "--layers",
    "last_layer": "--last-layer",
    "class_names": "--classes",
    "heads": "--heads",
    "seed": "--seed",
    "task": "--task",
    "batch_size": "--batch-size",
    "workers": "--workers",
    "threads": "--threads",
    "engine": "--engine",
    "id": "--test",
    "test": "--test",
    "false_alarms": "--false-alarms",
    "false_alarm": "--false-alarm",
    "risk": "--risk",
    "delta": "--delta",
    "alpha": "--alpha",
    "sets": "--sets",
    "by_class": "--by-class",
    "tolerance": "--tolerance",
    "window": "--window",
    "Recipe(task='regression')": "--task regression",
}
"""What the command line calls the arguments of the library."""


def in_words_of_commands(message: str) -> str:
    """Replace names of arguments by those of options.

    Examples:
        >>> in_words_of_commands("Expected `validation` to be readable, but got 3.")
        'Expected --validation to be readable, but got 3.'
    """

    def word(found: re.Match[str]) -> str:
        name = found[1]
        return name if name.startswith("--") or name in WORDS.values() else WORDS.get(name, found[0])

    return re.sub(r"`([^`]+)`", word, message)


@contextmanager
def warnings_as_lines(*ignored: type[Warning]) -> Iterator[None]:
    """Print each warning of the library as one line on standard error.

    Args:
        ignored: kinds of warnings that the command prints in another way.
    """
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Any, category: type[Warning], *more: Any, **named: Any) -> None:
            if category not in OURS:
                others(message, category, *more, **named)
            elif category not in ignored:
                typer.echo(f"repulse: {in_words_of_commands(str(message))}", err=True)

        for category in OURS:
            warnings.simplefilter("default", category)
        warnings.showwarning = show
        yield


def next_steps(*steps: tuple[str, str]) -> None:
    """Print what to do next: a command, and what it is good for, in each line."""
    width = max(len(command) for command, _ in steps)
    for i, (command, why) in enumerate(steps):
        typer.echo(f"{'next:' if not i else '':<6}{command:<{width}}   {why}")


def shows_progress() -> bool:
    """Tell whether somebody is looking."""
    return sys.stderr.isatty()
