"""The command line: `repulse demo`, `repulse evaluate`."""

from __future__ import annotations

import importlib.util
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from repulse.errors import RepulseError, check_choice
from repulse.version import __version__

app = typer.Typer(
    name="repulse",
    help="Honest uncertainty for networks that are already trained.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"repulse {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the numbers.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=1, help="How many networks to train; each takes about ten seconds.")] = 3,
    map_to: Annotated[Path | None, typer.Option("--map", help="Also save the uncertainty map as this picture.")] = None,
    browse: Annotated[bool, typer.Option("--browse", help="Open the page in a browser at the end.")] = False,
) -> None:
    """Train a small network on digits, retrofit it, and see what it does not know.

    The network is compared with itself with a plain ensemble of last layers (LL-E), and with ensembles whose heads are
    pushed apart on synthetic images (fs-RLL-E): on clean digits, on ambiguous ones, and on things that are no
    digits at all. Writes one self-contained page. Needs no data beyond scikit-learn's own.
    """
    _needs_lab("repulse demo")
    from repulse.experiments import demo as experiment

    table, page = experiment.run(out, seeds, map_to, progress=sys.stderr.isatty())
    typer.echo(table.text())
    typer.echo(
        f"\n{experiment.over_seeds(seeds)}; * marks the best of a column. accuracy, ECE and AUROC "
        "(the pairs a/b) in percent.\nRepelled on dead leaves and scrambled or warped digits; photographs and "
        "digits with permuted pixels were in no fit."
    )
    typer.echo(f"The page: {page}")
    if browse:
        webbrowser.open(page.resolve().as_uri())


@app.command()
def evaluate(
    network: Annotated[str, typer.Option(help="resnet20 or resnet32 on CIFAR-10, lenet on DirtyMNIST.")] = "resnet20",
    methods: Annotated[str, typer.Option(help="Names of methods, separated by commas, or all.")] = "all",
    layers: Annotated[str, typer.Option(help="Features that methods see: last, auto (with taps) or both.")] = "both",
    seeds: Annotated[int, typer.Option(min=1, help="Repeats of what is random; of LeNets, how many to train.")] = 5,
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets; else that in REPULSE_DATA.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for tables and figures, and for what can be used again.")] = Path(
        "evaluation"
    ),
) -> None:
    """Compare every method with every other on the same features, in one table.

    Features are computed once and kept; methods are fitted on them, with and without taps of earlier stages, and judged
    by accuracy, calibration, selective prediction and how well they tell foreign images. Writes `results.csv` (one line
    a figure), `cells.json` and `tables.md`. With five seeds it takes about an hour on two cores; `--methods
    MAP,KNN,repulse --seeds 1` takes two minutes.
    """
    _needs_lab("repulse evaluate")
    from repulse.data.registry import data_root
    from repulse.experiments import comparison, problems

    check_choice("network", network, problems.PROBLEMS)
    progress = sys.stderr.isatty()
    problem = problems.PROBLEMS[network](data_root(data), out / "cache", progress)
    rows = comparison.chosen(problem, methods.split(","), layers)
    if any(row.method.startswith("LL-Laplace") for row in rows) and importlib.util.find_spec("laplace") is None:
        typer.echo("LL-Laplace needs laplace-torch: `pip install 'repulse[laplace]'`, or name --methods.", err=True)
        raise typer.Exit(2)
    cells = comparison.read(out / problem.name)
    for cell in comparison.run(problem, rows, seeds, progress):
        cells = comparison.write(problem, [cell], out / problem.name)
    typer.echo(problem.title)
    for view, several in comparison.tables(problem, cells).items():
        typer.echo(f"\n{comparison.HEADINGS[view]}")
        for table in several:
            typer.echo(f"\n{table.text()}")
    typer.echo(f"\n{comparison.legend(cells)}\nWritten to {out / problem.name}.")


def _needs_lab(command: str) -> None:
    missing = [name for name in ("sklearn", "matplotlib", "jinja2", "PIL") if importlib.util.find_spec(name) is None]
    if missing:
        typer.echo(
            f"{command} needs {', '.join(missing)}: install the `lab` extra, `pip install 'repulse[lab]'`.", err=True
        )
        raise typer.Exit(2)


def main() -> None:
    """Entry point: errors of the library become one sentence and exit code 2."""
    try:
        app()
    except RepulseError as error:
        typer.echo(f"repulse: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
