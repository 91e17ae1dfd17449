"""The command line of the library. Each command is a thin function: options, one call, what it prints.

Exit codes: 0 done, 1 a finding that `--strict` does not accept, 2 refused with one sentence, 130 interrupted.
"""

from __future__ import annotations

import importlib.util
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from repulse._version import __version__
from repulse.commands.audit import audit
from repulse.commands.fit import fit
from repulse.commands.gate import gate
from repulse.commands.language import in_words_of_commands
from repulse.commands.report import report
from repulse.commands.score import score
from repulse.commands.serve import serve
from repulse.commands.suggest import suggest
from repulse.commands.watch import watch
from repulse.commands.why import why
from repulse.errors import RepulseError

FIRST = """**First:** `repulse fit resnet18 train/ --checkpoint weights.safetensors --validation held-out/`, then
`repulse report heads --test test/ --ood other=elsewhere/`. Every command ends with what to do next.
Without data of your own: `repulse demo`."""

EXAMPLES = """**Examples**

`repulse fit resnet18 train/ --checkpoint weights.safetensors --validation held-out/` (class folders of images)

`repulse fit my-bert/ train.csv --validation held-out.csv` (texts, and a folder that `save_pretrained` wrote)

`repulse fit network.py:make train.parquet --task regression --label price --validation held-out.parquet`

`repulse fit linear features.npz --checkpoint last-layer.safetensors` (features that are computed already)"""

app = typer.Typer(
    name="repulse",
    help="Honest uncertainty for networks that are already trained.",
    epilog=FIRST,
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


app.command()(suggest)
app.command(epilog=EXAMPLES)(fit)
app.command()(report)
app.command()(score)
app.command()(serve)
app.command()(gate)
app.command()(watch)
app.command()(why)
app.command()(audit)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the numbers.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of networks to train; each takes about ten seconds.")] = 3,
    map_to: Annotated[Path | None, typer.Option("--map", help="Also save the uncertainty map as this picture.")] = None,
    browse: Annotated[bool, typer.Option("--browse", help="Open the page in a browser at the end.")] = False,
) -> None:
    """Train a small network on digits, retrofit it, and see what it does not know.

    The network is compared with a plain ensemble of last layers (LL-E) and with ensembles whose heads repel each other
    on synthetic images (fs-RLL-E, and the default): on clean digits, on ambiguous ones, and on inputs that are no
    digits. Writes one self-contained page. Needs no data beyond those of scikit-learn.
    """
    _require("repulse demo", "demo", "sklearn", "matplotlib")
    from repulse.demo import run as experiment

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


def _require(command: str, extra: str, *packages: str) -> None:
    """End with one line and exit code 2 if packages of an extra are not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        typer.echo(f"{command} needs {' and '.join(missing)}: pip install 'repulse[{extra}]'", err=True)
        raise typer.Exit(2)


def main() -> None:
    """Run the command line; errors of the library become one sentence and exit code 2, an interruption 130."""
    try:
        app()
    except RepulseError as error:
        typer.echo(f"repulse: {in_words_of_commands(str(error))}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("\nrepulse: interrupted; the same command goes on where it was", err=True)
        sys.exit(130)
