"""What the paper prints: the numbers of Tables B.2 to B.6, and which rows of Tables 1 to 3 it marks as best.

The numbers of Tables 1 to 3 were read from files that are not published; their source keeps only which are bold (B) and
which are underlined (u). Names are ours: "letters" is EMNIST, "noise" is FakeData, "training data" is dirtyMNIST or
Cifar10, and "16 patches" is Patches-16. AUROC is in per cent, as are accuracy and ECE.
"""

from __future__ import annotations

import math

from repulse.errors import check_choice

NUMBERS = """
B.2: MAP, DDU, SNGP, LL-Laplace, DE-5, LL-E, + letters
LeNet
  accuracy: 77.94 77.94 82.24 77.98 82.48 81.13 81.09
  ece: 3.53 3.53 1.63 3.42 9.49 1.47 1.82
  clean ambiguous: 93.13 52.96 92.76 93.10 95.80 95.25 94.77
  clean mean: 97.85 84.11 96.62 95.27 85.03 96.86 96.68
  ambiguous mean: 80.47 83.10 72.29 81.14 81.45 85.68 92.68
VGG-11
  accuracy: 80.12 80.12 83.31 80.05 83.23 83.49 83.45
  ece: 2.15 2.15 3.98 2.03 4.85 0.95 1.13
  clean ambiguous: 95.17 59.96 92.06 95.03 96.81 97.27 96.05
  clean mean: 98.60 97.42 96.78 96.42 97.57 99.04 97.53
  ambiguous mean: 81.39 98.22 75.63 79.34 80.77 94.59 96.64
VGG-16
  accuracy: 79.17 79.17 83.17 79.10 83.12 83.07 83.04
  ece: 3.12 3.12 3.65 2.75 5.05 1.07 1.26
  clean ambiguous: 93.47 73.31 92.22 93.39 96.57 96.85 95.64
  clean mean: 98.01 97.78 95.62 95.00 97.63 98.87 96.48
  ambiguous mean: 79.69 96.43 71.94 72.10 80.28 92.03 95.54
ResNet-18
  accuracy: 80.76 80.76 83.64 80.73 83.23 83.54 83.54
  ece: 3.28 3.28 3.04 2.96 5.50 0.93 1.14
  clean ambiguous: 93.25 52.85 88.61 nan 96.21 96.58 95.01
  clean mean: 97.66 99.78 93.41 nan 99.11 99.12 99.33
  ambiguous mean: 77.41 99.96 69.61 nan 94.65 94.38 99.55
B.3: MAP, DDU, LL-E, + training data, + letters, + KMNIST, + FashionMNIST, + Omniglot
LeNet
  ambiguous letters: 60.19 84.76 78.99 78.94 87.10 88.17 81.52 80.39
  ambiguous KMNIST: 72.48 86.52 86.10 86.06 91.07 94.31 86.08 87.79
  ambiguous FashionMNIST: 88.61 79.84 88.96 88.85 93.48 96.45 98.07 93.94
  ambiguous Omniglot: 87.76 83.38 86.77 86.69 92.69 94.14 92.00 98.89
VGG-11
  ambiguous letters: 63.44 96.51 82.60 82.64 96.49 95.50 86.42 79.62
  ambiguous KMNIST: 76.59 99.49 93.57 93.60 98.72 99.85 94.13 96.89
  ambiguous FashionMNIST: 89.38 97.84 97.11 97.12 97.53 98.16 99.74 91.65
  ambiguous Omniglot: 85.56 96.99 95.00 95.03 94.04 99.26 95.23 99.99
VGG-16
  ambiguous letters: 61.13 94.09 78.70 78.71 96.23 94.17 86.54 78.09
  ambiguous KMNIST: 72.51 98.10 89.31 89.30 97.44 99.16 91.85 92.13
  ambiguous FashionMNIST: 87.37 97.32 95.35 95.35 98.11 98.09 99.68 94.19
  ambiguous Omniglot: 87.05 94.44 94.36 94.33 91.47 98.17 96.00 98.86
ResNet-18
  ambiguous letters: 65.39 98.58 84.41 84.41 98.14 97.35 93.55 88.40
  ambiguous KMNIST: 77.08 99.92 93.32 93.33 99.15 99.93 98.96 98.21
  ambiguous FashionMNIST: 82.71 99.89 98.15 98.14 99.59 99.75 99.98 98.76
  ambiguous Omniglot: 77.79 100.00 97.03 97.02 99.94 100.00 100.00 100.00
B.4: accuracy, ece, CIFAR-100 auroc, Tiny ImageNet auroc, Places365 auroc, textures auroc, SVHN auroc, noise auroc
ResNet-18
  MAP: 95.04 2.58 88.39 88.29 89.09 90.39 94.51 94.34
  DDU: 95.04 2.58 88.96 89.23 90.70 95.62 93.61 99.99
  LL-Laplace: 95.03 1.03 88.14 88.27 89.13 90.86 93.04 95.74
  SNGP: 95.02 1.25 86.47 83.90 92.32 98.18 87.03 88.59
  LL-E: 95.05 1.81 88.73 88.97 90.04 91.41 93.58 95.76
  + CIFAR-100: 94.99 1.94 91.24 91.42 91.89 94.80 96.29 98.08
  + Tiny ImageNet: 95.00 1.10 87.38 89.31 90.18 93.94 91.52 99.74
  DE-5: 95.98 0.59 90.54 90.00 90.15 93.49 94.06 99.15
ResNet-18 (SN 3)
  MAP: 95.06 2.60 88.43 88.25 89.21 90.23 94.10 94.30
  DDU: 95.06 2.60 89.03 89.23 90.66 95.56 94.59 99.99
  LL-Laplace: 95.02 1.09 87.50 87.59 88.58 89.98 92.43 94.01
  SNGP: 95.04 0.96 88.42 87.97 91.28 96.05 94.23 94.09
  LL-E: 95.05 1.84 88.82 88.97 90.30 91.19 93.12 95.38
  + CIFAR-100: 95.00 2.02 91.27 91.38 91.83 94.63 96.30 98.03
  + Tiny ImageNet: 95.02 1.14 88.12 89.66 90.60 93.94 92.41 99.11
  DE-5: 96.02 0.52 90.83 90.25 90.38 93.53 95.02 99.26
ResNet-18 (SN 7)
  MAP: 95.05 2.61 88.49 88.31 89.21 90.69 94.12 94.15
  DDU: 95.05 2.61 88.96 89.23 90.58 95.68 94.81 99.98
  LL-Laplace: 95.02 1.04 88.28 88.37 89.21 91.14 93.14 95.31
  SNGP: 95.02 1.25 86.49 83.89 92.47 98.17 86.31 87.39
  LL-E: 95.06 1.83 88.85 88.98 90.23 91.56 93.65 96.32
  + CIFAR-100: 95.02 2.03 91.27 91.39 91.74 95.00 96.61 97.28
  + Tiny ImageNet: 95.03 1.13 87.70 89.47 90.16 94.14 92.50 99.43
  DE-5: 95.96 0.55 90.52 90.00 90.20 93.45 93.98 98.94
B.5: accuracy, ece, CIFAR-100 auroc, Tiny ImageNet auroc, Places365 auroc, textures auroc, SVHN auroc, noise auroc
ResNet-18
  MAP: 95.06 2.60 88.43 88.25 89.21 90.23 94.10 94.30
  DDU: 95.06 2.60 89.03 89.23 90.66 95.56 94.59 99.99
  LL-Laplace: 95.02 1.09 87.50 87.59 88.58 89.98 92.43 94.01
  SNGP: 95.04 0.96 88.42 87.97 91.28 96.05 94.23 94.09
  LL-E: 95.05 1.84 88.82 88.97 90.30 91.19 93.12 95.38
  + Tiny ImageNet: 95.02 1.14 88.12 89.66 90.60 93.94 92.41 99.11
  DE-5: 95.96 0.59 90.59 90.00 90.17 93.22 94.85 98.94
WRN-28-10
  MAP: 95.91 2.33 89.71 89.25 90.00 89.21 93.46 97.06
  DDU: 95.91 2.33 89.00 89.14 90.81 97.62 98.62 100.00
  LL-Laplace: 95.89 1.13 88.77 88.57 89.63 89.15 92.30 96.74
  SNGP: 95.90 1.25 89.44 88.73 91.85 95.30 93.15 97.13
  LL-E: 95.88 0.97 89.72 89.64 91.02 89.87 92.39 97.77
  + Tiny ImageNet: 95.83 1.62 89.51 90.40 91.57 94.24 94.27 99.62
  DE-5: 96.59 0.77 91.81 90.84 91.09 94.54 97.24 99.84
ResNet-50
  MAP: 94.99 2.85 87.98 87.59 88.18 90.38 92.17 95.52
  DDU: 94.99 2.85 87.35 87.55 89.09 95.23 93.92 100.00
  LL-Laplace: 94.94 1.39 87.46 87.25 88.01 90.10 90.88 96.16
  SNGP: 94.99 1.34 87.36 86.86 90.52 95.82 91.22 95.52
  LL-E: 95.01 2.26 88.33 88.23 89.32 91.43 92.48 96.98
  + Tiny ImageNet: 94.95 1.49 89.58 90.34 91.51 94.77 94.96 99.92
  DE-5: 96.12 0.75 90.32 89.53 89.60 93.78 94.37 99.99
ResNet-101
  MAP: 94.82 2.80 88.15 87.68 88.35 90.24 93.97 96.33
  DDU: 94.82 2.80 86.92 87.03 88.57 94.98 94.26 100.00
  SNGP: 94.80 1.06 87.99 87.34 90.76 95.77 93.79 96.50
  LL-E: 94.83 2.16 88.61 88.42 89.77 91.50 94.00 98.37
  + Tiny ImageNet: 94.77 1.46 89.73 90.60 91.77 94.89 95.42 99.98
  DE-5: 96.00 0.71 89.95 89.17 89.21 93.09 94.98 99.14
B.6: MAP, DDU, LL-E, + CIFAR-100, + Tiny ImageNet, + textures, + SVHN, + noise
ResNet-18
  CIFAR-100 auroc: 88.43 89.03 88.82 91.27 88.12 89.37 87.08 85.72
  Tiny ImageNet auroc: 88.25 89.23 88.97 91.38 89.66 89.88 85.74 86.28
  Places365 auroc: 89.21 90.66 90.30 91.83 90.60 88.54 84.60 84.95
  textures auroc: 90.23 95.56 91.19 94.63 93.94 95.72 90.53 90.98
  SVHN auroc: 94.10 94.59 93.12 96.30 92.41 95.94 99.09 89.72
  noise auroc: 94.30 99.99 95.38 98.03 99.11 98.21 89.74 100.00
WRN-28-10
  CIFAR-100 auroc: 89.71 89.00 89.72 91.93 89.51 89.42 86.83 85.67
  Tiny ImageNet auroc: 89.25 89.14 89.64 91.46 90.40 89.82 85.06 86.33
  Places365 auroc: 90.00 90.81 91.02 91.45 91.57 89.39 83.31 85.74
  textures auroc: 89.21 97.62 89.87 94.06 94.24 95.66 88.77 90.47
  SVHN auroc: 93.46 98.62 92.39 96.34 94.27 95.55 99.13 89.09
  noise auroc: 97.06 100.00 97.77 98.45 99.62 98.49 93.11 100.00
ResNet-50
  CIFAR-100 auroc: 87.98 87.35 88.33 90.96 89.58 89.11 85.72 86.03
  Tiny ImageNet auroc: 87.59 87.55 88.23 90.83 90.34 89.51 84.30 85.81
  Places365 auroc: 88.18 89.09 89.32 91.35 91.51 88.64 82.73 84.33
  textures auroc: 90.38 95.23 91.43 93.84 94.77 96.03 89.74 90.79
  SVHN auroc: 92.17 93.92 92.48 95.16 94.96 96.17 99.41 89.97
  noise auroc: 95.52 100.00 96.98 98.37 99.92 99.43 93.49 100.00
ResNet-101
  CIFAR-100 auroc: 88.15 86.92 88.61 91.00 89.82 89.47 86.95 86.79
  Tiny ImageNet auroc: 87.68 87.03 88.42 90.75 90.69 89.76 85.23 86.63
  Places365 auroc: 88.35 88.57 89.77 91.26 91.91 89.06 84.83 85.18
  textures auroc: 90.24 94.98 91.50 93.69 94.77 96.26 90.49 91.89
  SVHN auroc: 93.97 94.26 94.00 96.06 95.39 96.49 99.57 92.07
  noise auroc: 96.33 100.00 98.37 98.77 99.98 99.66 94.23 100.00
"""
"""A line a table with its columns, then networks, and below each its rows; "+ letters" is fs-RLL-E with letters."""

MARKS = """
1: accuracy, nll, ece, clean ambiguous, clean mean, ambiguous mean
  MAP: . . . . . .
  DDU: . . . . B B
  SNGP: u . . . . .
  LL-Laplace: . . . . . .
  LL-E: B B B B . .
  RLL-E: B B B B . .
  + training data: . . . . . .
  + letters: u . . . . u
  + 16 patches: u u u u u .
  + 8 patches: u . u . . .
  + 4 patches: u . u . . .
  DE-5: . . . . . .
2: accuracy, nll, ece, CIFAR-100 auroc, Tiny ImageNet auroc, Places365 auroc, textures auroc, SVHN auroc, noise auroc
  MAP: u . . . . . . . .
  DDU: u . . . . . B B B
  SNGP: . . . . . B . . .
  LL-Laplace: . . . . . . . . .
  LL-E: . u . . . . . . .
  RLL-E: . . . . . . . . .
  + training data: . . . . . . . . .
  + CIFAR-100: . . . B B . . . .
  + Tiny ImageNet: . . . . . u . . .
  + textures: . . . . . . u . .
  + 32 patches: . . u . . . . . .
  + 16 patches: . . B . . . . . .
  DE-5: B B . u u . . u u
3: accuracy, nll, ece, Tiny ImageNet auroc, Places365 auroc, textures auroc, SVHN auroc, noise auroc
  MAP: u . . u . . . .
  DDU: u . . . . . . u
  SNGP: . . . . B u . .
  LL-Laplace: . . . B . . . .
  LL-E: . u . . . . . .
  RLL-E: . . u . . . . .
  + training data: . . . . . . . .
  + Tiny ImageNet: . . . u u . u u
  + textures: . . . . . B B .
  + 32 patches: . u . . . . . B
  + 16 patches: . . . . . . . B
  DE-5: B B B . . . . .
"""
"""A line a table with its columns, then rows."""

STANDS_IN = {"EMNIST": "letters"}
"""What another set stands in for, and is looked up as."""


def ours(text: str) -> str:
    """A repulsion set or metric by our name."""
    return " ".join(STANDS_IN.get(word, word) for word in text.split(" "))


def _parsed(text: str) -> dict[str, dict[tuple[str, str, str], str]]:
    """By table, then by network (empty where there is one), row and column: what is printed."""
    tables: dict[str, dict[tuple[str, str, str], str]] = {}
    table, columns, network = {}, [], ""
    for line in text.strip().splitlines():
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


_NUMBERS, _MARKS = _parsed(NUMBERS), _parsed(MARKS)


def printed(table: str, network: str, method: str, repulsion: str | None, metric: str) -> float | None:
    """The number in the paper, or None where it prints none.

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
    """All numbers of Table "B.2" to "B.6": by network and metric, then by row ("fs-RLL-E + letters").

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
    """By metric, the rows that Table "1", "2" or "3" prints "bold" or "underlined", or "plain".

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
