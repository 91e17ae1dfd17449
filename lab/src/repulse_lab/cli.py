"""The command line of the laboratory: `repulse-lab evaluate`, `reproduce`, `report`, `bench`."""

from __future__ import annotations

import importlib.util
import os
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repulse._version import __version__
from repulse.errors import DataError, RepulseError

if TYPE_CHECKING:
    from repulse_lab.study.experiment import Cell
    from repulse_lab.study.reproduce import Reproduction


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


app = typer.Typer(
    name="repulse-lab",
    help="Compares methods, reproduces the paper, and measures what `repulse` costs.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"repulse-lab {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


DATA = Annotated[Path | None, typer.Option(help="Folder of the data sets; else that in REPULSE_DATA.")]
OUT = Annotated[Path, typer.Option(help="Folder for results, and for what can be used again.")]
WORKERS = Annotated[int, typer.Option(min=0, help="Processes; 0 does one job after another.")]


@app.command()
def evaluate(
    network: Annotated[str, typer.Option(help="resnet20 or resnet32 on CIFAR-10, lenet on DirtyMNIST.")] = "resnet20",
    methods: Annotated[str, typer.Option(help="Names of methods, separated by commas, or all.")] = "all",
    layers: Annotated[str, typer.Option(help="Features that methods see: last, auto (with taps) or both.")] = "both",
    seeds: Annotated[int | None, typer.Option(min=1, help="Repeats, at most those of the network.")] = None,
    data: DATA = None,
    out: OUT = Path("results"),
    workers: WORKERS = CORES,
) -> None:
    """Compare every method with every other on the same features, in one table.

    Features are computed once and kept; methods are fitted on them, with and without taps of earlier stages, and judged
    by accuracy, calibration, selective prediction and out-of-distribution detection. Cells are those of `repulse-lab
    reproduce`: what one has measured the other does not measure again. Writes one folder with `results.csv` (one line
    per number) and tables of all that is done. All of it takes about an hour on two cores; `--methods MAP,KNN,repulse
    --seeds 1` takes two minutes.
    """
    from repulse_lab.data.registry import data_root
    from repulse_lab.study.evaluate import chosen, evaluation
    from repulse_lab.study.experiment import RunOptions
    from repulse_lab.study.reproduce import Reproduction

    names = [name.strip() for name in methods.split(",")]
    laplace = any(name == "all" or name.startswith("LL-Laplace") for name in names)
    if laplace and importlib.util.find_spec("laplace") is None:
        typer.echo("LL-Laplace needs laplace-torch: `pip install 'repulse[laplace]'`, or name --methods.", err=True)
        raise typer.Exit(2)
    run = Reproduction([evaluation(network)], RunOptions("cpu", data_root(data), seeds), out)
    (plan,) = run.plans.values()
    if not plan.cells:
        raise DataError(plan.missing[0])
    given = f" --seeds {seeds}" if seeds else ""
    command = f"repulse-lab evaluate --network {network} --methods {methods} --layers {layers}{given}"
    _do(run, command, workers, None, lambda cells: chosen(cells, names, layers))


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Experiments, or all, or claims.", show_default=False)
    ] = None,
    preset: Annotated[
        str, typer.Option(help="cpu: the largest honest version for two cores; paper: full size.")
    ] = "cpu",
    seeds: Annotated[int | None, typer.Option(min=1, help="Repeats, at most those of the preset.")] = None,
    data: DATA = None,
    out: OUT = Path("results"),
    workers: WORKERS = CORES,
    scheduler: Annotated[str | None, typer.Option(help="Address of a dask scheduler, for several machines.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the experiments, and end.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, what is missing, how long.")] = False,
) -> None:
    """Reproduce the tables and figures of the paper, and judge its claims by them.

    Networks, features and fits are kept under a digest of all they depend on: stop it whenever you like, the same
    command goes on, and after a change it recomputes what the change concerns. Writes one folder per experiment, with
    `results.csv`, tables in Markdown and LaTeX, and figures. `repulse-lab reproduce claims` prints the verdicts over
    what was run; `repulse-lab report` makes a page of it.
    """
    from repulse_lab.data.registry import data_root
    from repulse_lab.paper import registry
    from repulse_lab.paper.claims import table, write_claims
    from repulse_lab.study.experiment import RunOptions
    from repulse_lab.study.reproduce import Reproduction

    if list_ or not names:
        known = registry.chosen(["all"])
        wide = 2 + max(len(experiment.source) for experiment in known)
        for experiment in known:
            typer.echo(f"{experiment.name:18}{experiment.source:{wide}}{experiment.title}")
        return
    chosen = registry.chosen(names)
    run = Reproduction(chosen, RunOptions(preset, data_root(data) if chosen else Path(), seeds), out)
    if dry_run:
        typer.echo(run.dry_run(workers).text())
        for name, plan in run.plans.items():
            typer.echo("".join(f"\n{name}: {line}" for line in plan.missing), nl=False)
        return
    command = f"repulse-lab reproduce {' '.join(names)} --preset {preset}" + (f" --seeds {seeds}" if seeds else "")
    failed = _do(run, command, workers, scheduler, stop=False) if chosen else 0
    judged = write_claims(run.folder)
    if "all" in names or "claims" in names:
        typer.echo(table(judged))
    if failed:
        raise typer.Exit(1)


def _do(
    run: Reproduction,
    command: str,
    workers: int,
    scheduler: str | None,
    choose: Callable[[Sequence[Cell]], Sequence[Cell]] = lambda cells: cells,
    stop: bool = True,
) -> int:
    """Run experiments, write and print what they found; return the number of jobs that failed."""
    try:
        tally = run.run(workers, scheduler, sys.stderr.isatty(), choose)
    except KeyboardInterrupt:
        run.write(command)
        typer.echo("Stopped. What was finished is kept and written; the same command goes on from there.", err=True)
        raise typer.Exit(130) from None
    for findings in run.write(command):
        typer.echo(f"\n{findings.title} ({findings.source})")
        for made in findings.tables:
            typer.echo(f"\n{made.title}\n{made.text()}")
        for line in findings.missing:
            typer.echo(f"Not run: {line}")
    for job, reason in tally.failed:
        typer.echo(f"Failed: {dict(job.about)}: {reason}", err=True)
    typer.echo(f"\n{tally.done} jobs, {tally.seconds / 60:.0f} minutes of one core. Written to {run.folder}.")
    failed = len(tally.failed) + len(tally.skipped)
    if failed and stop:
        raise typer.Exit(1)
    return failed


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="What `repulse-lab reproduce` wrote, such as results/cpu.")],
    out: Annotated[Path | None, typer.Option(help="The page; FOLDER/report.html if not given.")] = None,
    browse: Annotated[bool, typer.Option("--browse", help="Open the page in a browser at the end.")] = False,
) -> None:
    """Make one page of what was reproduced: tables beside the paper's numbers, figures to point at, claims.

    The page holds everything it shows and needs no network.
    """
    from repulse_lab.report.reproduction import write_report

    page = write_report(folder, out)
    typer.echo(f"The page: {page}")
    if browse:
        webbrowser.open(page.resolve().as_uri())


@app.command()
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Groups, or all.", show_default=False)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few repeats, small sizes: a first look.")] = False,
    data: DATA = None,
    out: OUT = Path("bench"),
    list_: Annotated[bool, typer.Option("--list", help="Show what is measured, and the goals.")] = False,
) -> None:
    """Measure what a step, a fit, a prediction and an import cost, as ratios to what they cannot do without.

    Whatever is compared takes turns in one process, so that both share the noise of the machine; a ratio is the median
    over rounds, printed with its quartiles and, where there is one, the goal. Steps and fits have one thread and are
    counted in processor seconds; predictions have all threads and are counted on the wall. Writes `speed.json` and the
    plot `speed.png` (and `.svg`); groups that are not named keep what was measured before. Without the data, synthetic
    features stand in for those of CIFAR-10; without laplace-torch, rows beside it say so. Close other programs before.

    `repulse-lab bench --quick` gives a first look, `repulse-lab bench step fit` measures two groups.
    """
    from repulse_lab.speed import report as reports
    from repulse_lab.speed.measurement import BenchSetting
    from repulse_lab.speed.run import chosen, merged, run

    groups = chosen(names or ())
    if list_:
        for group in groups:
            typer.echo(f"{group.name:10}{group.title}")
            for ratio in group.ratios(quick):
                typer.echo(f"{'':12}{ratio.name}" + ("" if ratio.goal is None else f": at most {ratio.goal:g}"))
        return
    named = data or os.environ.get("REPULSE_DATA")
    out = out / "quick" if quick else out  # which must not take the place of what took longer
    setting = BenchSetting(out, quick, Path(named) if named else None, sys.stderr.isatty())
    findings = reports.read(out) if (out / reports.FILE).exists() else []
    for found in run(groups, setting):
        findings = merged(findings, [found])
        reports.write(findings, out)
    shown = [found for found in findings if found.group in {group.name for group in groups}]
    if any(found.rows for found in shown):
        typer.echo(f"{reports.table_of(shown).text()}\n")
    typer.echo(f"{reports.machine_of(shown)}\nWritten to {out}.")


@app.command()
def openood(data: DATA = None, out: OUT = Path("results")) -> None:
    """Run the postprocessor for OpenOOD on CIFAR-10, in its protocol, and print its table.

    The published ResNet-20, next to other postprocessors that OpenOOD has; near is Tiny ImageNet, far are
    MNIST, SVHN crops and textures. A quarter of an hour on two cores. Writes `OUT/openood.md`.
    """
    from repulse._files import write_whole
    from repulse_lab.data.registry import data_root
    from repulse_lab.openood import run

    table = run(data_root(data))
    typer.echo(f"{table}\nWritten to {write_whole(out / 'openood.md', table)}.")


@app.command()
def defaults(
    names: Annotated[list[str] | None, typer.Argument(help="Problems, or all.", show_default=False)] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repeats with another split, network and fit.")] = 3,
    methods: Annotated[str, typer.Option(help="Names of methods, separated by semicolons, or all.")] = "all",
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets; else that in REPULSE_DATA.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for rows, tables and trained networks.")] = Path("defaults"),
    label: Annotated[str, typer.Option(help="Names the state of the library: its rows are kept apart.")] = "now",
    against: Annotated[str | None, typer.Option(help="An earlier label, to be shown next to this one.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the problems, and end.")] = False,
) -> None:
    """Measure the default on many problems, and check what it promises: never worse than the network.

    Each row (problem, seed, method) is kept as soon as it is known: the same command goes on where it was stopped.
    Networks are trained once and kept. Writes `OUT/LABEL/table.md` and one table per problem.
    """
    from repulse_lab.defaults.command import measure_defaults

    measure_defaults(names or [], seeds, methods, data, out, label, against, list_)


def main() -> None:
    """Run the command; errors of the library become one sentence and exit code 2."""
    try:
        app()
    except RepulseError as error:
        typer.echo(f"repulse-lab: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
