"""What the paper prints: the numbers of Tables B.2 to B.6, and which rows of Tables 1 to 3 it marks as best.

printed_numbers.txt   one line per table with its columns, then networks, and below each its rows
printed_marks.txt     one line per table with its columns, then rows

The numbers of Tables 1 to 3 were read from files that are not published; their source keeps only which are bold (B) and
which are underlined (u). Names are ours: "letters" is EMNIST, "SVHN crops" is SVHN, "noise" is FakeData, "training
data" is dirtyMNIST or Cifar10, "16 patches" is Patches-16, and "+ letters" is fs-RLL-E with letters. AUROC is in per
cent, as are accuracy and ECE.
"""

from __future__ import annotations

import math
from pathlib import Path

from repulse.errors import check_choice

STANDS_IN = {"EMNIST": "letters", "SVHN": "SVHN crops"}
"""What another set stands in for, and is looked up as."""


def ours(text: str) -> str:
    """Return a repulsion set or metric by our name."""
    for real, other in STANDS_IN.items():
        text = text if other in text else text.replace(real, other)
    return text


def _parsed(path: Path) -> dict[str, dict[tuple[str, str, str], str]]:
    """Read what is printed, by table, then by network (empty where there is one), row and column."""
    tables: dict[str, dict[tuple[str, str, str], str]] = {}
    table, columns, network = {}, [], ""
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(": ")
        if line.startswith("  "):
            cells = zip(columns, rest.split(), strict=True)
            table |= {(network, _full(name.strip()), column): cell for column, cell in cells}
        elif rest:
            table, columns, network = tables.setdefault(name, {}), [_full(column) for column in rest.split(", ")], ""
        else:
            network = name
    return tables


def _full(name: str) -> str:
    return f"fs-RLL-E {name}" if name.startswith("+ ") else name


_NUMBERS, _MARKS = (_parsed(Path(__file__).with_name(f"printed_{kind}.txt")) for kind in ("numbers", "marks"))


def printed(table: str, network: str, method: str, repulsion: str | None, metric: str) -> float | None:
    """Return the number in the paper, or None where it prints none.

    Args:
        table: "B.2" to "B.6"; of "1", "2" and "3" no number is known.
        network: as the paper has it, in our spelling ("WRN-28-10", "ResNet-18 (SN 3)").
        method: "MAP", "fs-RLL-E", ...
        repulsion: the set to repel on, or None.
        metric: as experiments name it ("ece", "ambiguous mean", "SVHN auroc").

    Examples:
        >>> printed("B.2", "LeNet", "fs-RLL-E", "letters", "ambiguous mean")
        92.68
        >>> printed("B.2", "LeNet", "fs-RLL-E", "KMNIST", "ambiguous mean") is None
        True
    """
    check_choice("table", table, [*_MARKS, *_NUMBERS])
    row, column = method if not repulsion else f"{method} + {ours(repulsion)}", ours(metric)
    numbers = _NUMBERS.get(table, {})
    number = float(numbers.get((network, row, column)) or numbers.get((network, column, row)) or math.nan)
    return number if math.isfinite(number) else None


def numbers(table: str) -> dict[tuple[str, str], dict[str, float]]:
    """Return all numbers of Table "B.2" to "B.6": by network and metric, then by row ("fs-RLL-E + letters").

    Examples:
        >>> numbers("B.3")["LeNet", "ambiguous letters"]["DDU"]
        84.76
    """
    check_choice("table", table, _NUMBERS)
    methods_across = any(column == "MAP" for _, _, column in _NUMBERS[table])
    found: dict[tuple[str, str], dict[str, float]] = {}
    for (network, row, column), text in _NUMBERS[table].items():
        method, metric = (column, row) if methods_across else (row, column)
        if math.isfinite(float(text)):
            found.setdefault((network, metric), {})[method] = float(text)
    return found


def marked(table: str, mark: str) -> dict[str, list[str]]:
    """Return, by metric, the rows that Table "1", "2" or "3" prints "bold" or "underlined", or "plain".

    Examples:
        >>> marked("1", "bold")["ece"]
        ['LL-E', 'RLL-E']
    """
    check_choice("table", table, _MARKS)
    check_choice("mark", mark, _LETTERS)
    found: dict[str, list[str]] = {}
    for (_, row, column), letter in _MARKS[table].items():
        found.setdefault(column, []).extend([row] if letter == _LETTERS[mark] else [])
    return found


_LETTERS = {"bold": "B", "underlined": "u", "plain": "."}
