"""Run the notebooks from their first cell to their last, and keep what they show.

`--check` keeps nothing: it only fails if a cell does.

    python examples/run_notebooks.py
    python examples/run_notebooks.py --check image_folder
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "notebooks"
PATIENCE = {"timeout": 1800, "startup_timeout": 1800, "iopub_timeout": 1800}
"""Seconds: what a busy machine shows late would else be missing."""


def run(path: Path) -> nbformat.NotebookNode:
    """Execute all cells in an empty folder; what came back is without times and counters, which change each time."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, **PATIENCE, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.clear()
    return notebook


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the notebooks.")
    parser.add_argument("names", nargs="*", help="all, if none is given")
    parser.add_argument("--check", action="store_true", help="keep nothing")
    options = parser.parse_args()
    for name in options.names or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        start, path = time.perf_counter(), FOLDER / f"{name}.ipynb"
        notebook = run(path)
        if not options.check:
            nbformat.write(notebook, path)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
