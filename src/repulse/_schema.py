"""Plain JSON checked against type hints, before anything is made from it."""

from __future__ import annotations

import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def mismatch(value: Any, hint: Any, where: str) -> str | None:
    """Return in words where some JSON is not what a type hint says; None if all of it is.

    A dataclass stands for a mapping with its fields, of which those with a default may be missing; a tuple for a list.

    Examples:
        >>> mismatch({"a": [1, "2"]}, dict[str, list[int]], "it")
        "it.a[1] is '2', not int"
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return None
    if origin in (Union, types.UnionType):
        found = [mismatch(value, choice, where) for choice in arguments]
        if None in found:
            return None
        real = [wrong for wrong, choice in zip(found, arguments, strict=True) if choice is not type(None)]
        return real[0] if len(real) == 1 else _not(value, where, " or ".join(map(_name, arguments)))
    if origin is Literal:
        return None if value in arguments and type(value) in map(type, arguments) else _not(value, where, _name(hint))
    if is_dataclass(hint):
        return _in_fields(value, hint, where)
    if origin in (list, tuple):
        return _in_each(value, list, arguments[0], where)
    if origin is dict:
        return _in_each(value, dict, arguments[1], where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53:
        return None
    same = value is None if hint in (None, type(None)) else type(value) is hint
    return None if same else _not(value, where, _name(hint))


def _in_fields(value: Any, kind: Any, where: str) -> str | None:
    if not isinstance(value, dict):
        return _not(value, where, "a mapping")
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}
    for name in value:
        if name not in known:
            return f"{where}.{name} is unknown"
    for name, field in known.items():
        if name not in value:
            if field.default is MISSING and field.default_factory is MISSING:
                return f"{where}.{name} is missing"
        elif found := mismatch(value[name], hints[name], f"{where}.{name}"):
            return found
    return None


def _in_each(value: Any, kind: type, hint: Any, where: str) -> str | None:
    if type(value) is not kind:
        return _not(value, where, f"a {kind.__name__}")
    parts = (
        [(f"{where}.{key}", part) for key, part in value.items()]
        if kind is dict
        else ([(f"{where}[{i}]", part) for i, part in enumerate(value)])
    )
    return next((found for place, part in parts if (found := mismatch(part, hint, place))), None)


def _not(value: Any, where: str, wanted: str) -> str:
    return f"{where} is {repr(value)[:60]}, not {wanted}"


def _name(hint: Any) -> str:
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))
