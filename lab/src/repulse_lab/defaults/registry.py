"""All problems, which of them may decide the default, and which are kept back.

| role | data sets | why |
|---|---|---|
| choosing | CIFAR-10, MNIST, scikit-learn digits, CLINC150, two moons, circles, breast cancer, wine, synthetic \
tables, diabetes, Friedman's first function, UCI concrete and yacht | settings of the default were compared on them: \
it is tuned to what it reaches here |
| reporting | the nine tables of mlbench, pets, spoken digits, GoEmotions, iris, shells of a Gaussian, Friedman's \
third function, UCI energy and power plant | none decided a setting: a user may expect what it reaches here |

A data set has one role, whatever the network: both ResNets see the same CIFAR-10. Pets, spoken digits, iris, energy
and power plant were looked at, though no setting was compared on them, while the first rules were found. On five tables
of mlbench (vehicle, vowel, satellite, glass, pima) other settings were tried once the default stood; none replaced it.
"""

from __future__ import annotations

from collections.abc import Sequence

from repulse.errors import check_choice
from repulse_lab.defaults import benchmark_tables, drawn_tables, images, sounds, tables, texts
from repulse_lab.defaults.problem import Problem

PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for room in (tables, drawn_tables, benchmark_tables, sounds, images, texts)
    for problem in room.PROBLEMS
}
"""Every problem by its name, cheap ones first."""


def chosen(names: Sequence[str]) -> list[Problem]:
    """Return the problems of these names, in their order; all of them for "all" or no name."""
    if not names or "all" in names:
        return list(PROBLEMS.values())
    for name in names:
        check_choice("problem", name, PROBLEMS)
    return [PROBLEMS[name] for name in dict.fromkeys(names)]
