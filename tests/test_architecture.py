"""The import graph of both packages, computed from their source: who may depend on whom.

Imports inside functions count, those for type checkers alone do not: they order nothing at run time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"repulse": ROOT / "src", "repulse_lab": ROOT / "lab" / "src"}

LAYERS = (
    {"__init__", "__main__"},
    {"cli", "commands", "demo", "integrations", "scale", "serve"},
    {"decide", "active", "evaluation", "files"},
    {"suggest"},
    {"retrofit", "ensemble", "checkpoint", "kept", "baselines"},
    {"summary", "deploy"},
    {"functional", "particles", "backbone", "repulsion", "metrics"},
    {"prediction", "recipe", "errors"},
)
"""Rooms of the library, from those that use to those that are used; private modules are in the last layer."""

DOORS = {"ensemble": {"decide", "active", "integrations"}}
"""Rooms above that verbs of the ensemble open when they are called (`ensemble.gate(...)` is `decide.gate` of it)."""

Graph = dict[str, set[str]]


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports_in(node: ast.AST, *, inside_functions: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif is_for_type_checkers(child) or (
            isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not inside_functions
        ):
            continue
        else:
            yield from imports_in(child, inside_functions=inside_functions)


@cache
def sources(package: str) -> dict[str, Path]:
    """The file of each module of a package."""
    root = PACKAGES[package]
    names = {".".join(path.relative_to(root).with_suffix("").parts): path for path in (root / package).rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


def graph(package: str, *, inside_functions: bool) -> Graph:
    """For each module, the modules of both packages that it imports."""
    known = {name for each in PACKAGES for name in sources(each)}
    edges: Graph = {}
    for name, path in sources(package).items():
        edges[name] = set()
        for node in imports_in(ast.parse(path.read_text()), inside_functions=inside_functions):
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            else:
                assert not node.level, f"{name} has a relative import"
                found = [f"{node.module}.{alias.name}" for alias in node.names]
                found = [whole if whole in known else str(node.module) for whole in found]
            edges[name] |= {module for module in found if module in known and module != name}
    return edges


def room_of(module: str) -> str:
    """The folder, or the file at the root of the package, that a module is in."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def rooms(package: str) -> Graph:
    found: Graph = {}
    for module, others in graph(package, inside_functions=True).items():
        mine = {room_of(other) for other in others if other.split(".")[0] == package}
        doors = DOORS.get(room_of(module), set()) if package == "repulse" else set()
        found.setdefault(room_of(module), set()).update(mine - doors - {room_of(module), "__init__"})
    return found


def cycles(edges: Graph) -> list[list[str]]:
    """One cycle for each node from which one can be walked, shortest ways first; none in a graph that is ordered."""
    found = {}
    for start in edges:
        ways, seen = [[start]], set()
        while ways:
            way = ways.pop(0)
            for other in sorted(edges.get(way[-1], ())):
                if other == start:
                    found.setdefault(frozenset(way), [*way, start])
                    ways = []
                    break
                if other not in seen:
                    seen.add(other)
                    ways.append([*way, other])
    return list(found.values())


def test_a_cycle_is_found_and_an_order_is_none():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c", "b"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_imports_inside_functions_are_seen_and_those_for_type_checkers_are_not():
    tree = ast.parse("import a\nif TYPE_CHECKING:\n    import b\ndef f():\n    import c\nclass D:\n    import d\n")

    def names(inside_functions: bool) -> list[str]:
        return [node.names[0].name for node in imports_in(tree, inside_functions=inside_functions)]

    assert names(True) == ["a", "c", "d"]
    assert names(False) == ["a", "d"]


def test_the_library_never_imports_the_laboratory():
    edges = graph("repulse", inside_functions=True)
    assert len(edges) > 50
    assert {module for module, others in edges.items() if any(o.startswith("repulse_lab") for o in others)} == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_depend_on_each_other_one_way(package):
    assert cycles(rooms(package)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_are_imported_without_cycles(package):
    assert cycles(graph(package, inside_functions=False)) == []


def test_dependencies_of_the_library_point_down():
    def layer(room: str) -> int:
        if room.startswith("_") and room not in LAYERS[0]:
            return len(LAYERS) - 1
        return next(i for i, layer in enumerate(LAYERS) if room in layer)

    up = {(room, other) for room, others in rooms("repulse").items() for other in others if layer(other) < layer(room)}
    assert up == set()


def test_the_backbone_knows_nothing_of_particles():
    assert "particles" not in rooms("repulse")["backbone"]


def test_the_doors_of_the_ensemble_open_when_they_are_used_and_not_at_import():
    """A door inside a function costs nothing to those who never open it."""
    edges = graph("repulse", inside_functions=False)
    for room, above in DOORS.items():
        assert {room_of(other) for other in edges[f"repulse.{room}"]} & above == set()
