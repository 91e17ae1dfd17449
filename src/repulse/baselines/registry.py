"""Methods by name: each class that takes features is listed by the decorator `register`.

A new method is one new file in this folder; it is found without being named anywhere else:

    @register
    @dataclass
    class FeatureNorm(Detector):
        name = "feature norm"
        family = "distance"

        def _score(self, features, prediction):
            return -features.norm(dim=1)
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from typing import TypeVar, get_args, get_type_hints

from repulse.baselines.contract import Method
from repulse.baselines.resources import Resources
from repulse.errors import RecipeError, check_choice, expected

M = TypeVar("M", bound=Method)

METHODS: dict[str, type[Method]] = {}
"""Every method that takes features, by its name, in the order of tables."""


def register(method: type[M]) -> type[M]:
    """List a class of methods in `METHODS` under its name."""
    if METHODS.get(method.name, method).__qualname__ != method.__qualname__:
        raise RecipeError(expected("name", "of one method only", f"{method.name!r} twice"))
    METHODS[method.name] = method
    families = get_args(get_type_hints(Method)["family"])
    ordered = sorted(METHODS.items(), key=lambda item: (families.index(item[1].family), item[1].__module__))
    METHODS.clear()
    METHODS.update(ordered)
    return method


def build(name: str, resources: Resources) -> Method:
    """Return the method of this name, ready to be fitted."""
    check_choice("name", name, METHODS)
    return METHODS[name].build(resources)


def import_methods(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, so that its methods are listed."""
    for module in pkgutil.iter_modules(path):
        importlib.import_module(f"{package}.{module.name}")
