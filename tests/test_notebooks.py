"""The notebooks as they are kept; `make notebooks` runs them, cell by cell."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples" / "notebooks").glob("*.ipynb"))


def test_there_are_four():
    assert {path.stem for path in NOTEBOOKS} == {"active_learning", "image_folder", "table", "text"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_run_to_its_end_and_is_clean(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert any(cell.outputs for cell in code[-2:])
    for cell in code:
        for output in cell.outputs:
            assert output.output_type != "error"
            shown = str(output.get("text", "")) + str(output.get("data", {}).get("text/html", ""))
            assert not re.search(r"it/s\]|batch/s|step/s|\d%\|", shown), "a progress bar was kept"
            assert "/root/" not in shown
            assert "/home/" not in shown
            assert "Warning" not in shown
    assert notebook.cells[0].source.startswith("# ")
