"""The command `repulse-lab defaults`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import typer

from repulse.errors import check_choice
from repulse_lab.data.registry import data_root
from repulse_lab.defaults import report
from repulse_lab.defaults.methods import METHODS
from repulse_lab.defaults.registry import PROBLEMS, chosen
from repulse_lab.defaults.run import Results, run


def measure_defaults(
    names: Sequence[str],
    seeds: int,
    methods: str,
    data: Path | None,
    out: Path,
    label: str,
    against: str | None,
    only_list: bool,
) -> None:
    """Measure what is missing and write the tables; see the command."""
    if only_list:
        for problem in chosen(names):
            typer.echo(f"{problem.name:20}{problem.role:11}{problem.task:15}{problem.title}")
        return
    wanted = list(METHODS) if methods == "all" else [name.strip() for name in methods.split(";")]
    for name in wanted:
        check_choice("method", name, METHODS)
    problems, results = chosen(names), Results(out, label)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # seconds are those of one core
    try:
        rows = run(
            *(problems, range(seeds), [METHODS[name] for name in wanted]),
            *(data_root(data), results, lambda line: typer.echo(line, err=True)),
        )
        for row in rows:
            typer.echo(f"{row.problem}, seed {row.seed}: {row.method} ({row.values['seconds']:.1f} s)", err=True)
    finally:
        torch.set_num_threads(threads)
    path = report.write(list(PROBLEMS.values()), results, Results(out, against) if against else None)
    typer.echo(path.read_text(encoding="utf-8"))
