"""What the columns of a table are: texts, paths of images, features, labels, keys; as told, or found by their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from repulse.errors import DataError, expected

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["images", "texts", "rows"]
"""What samples are: image files, strings, or numbers."""

TEXTS = ("text", "sentence", "utterance", "query", "content", "document")
PATHS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path")
LABELS = ("label", "labels", "target", "targets", "class", "category", "y")
KEYS = ("key", "id", "uuid", "row_id")
ROWS = ("features", "embedding", "embeddings", "x")
"""Names, in any case, by which columns (and arrays of `.npz` files) are found."""


@dataclass(frozen=True)
class Columns:
    """Names of columns; None for what is not there, or is to be found.

    Attributes:
        text: of texts.
        path: of the paths of images, relative to the table, or of their bytes.
        label: of classes or of numbers to predict; of several labels or numbers, names separated by commas, unless each
            cell holds a list of them.
        key: of what identifies a sample in scores; without one, the path or the number of the row does.
        features: of numbers, in the order in which the network takes them.
    """

    text: str | None = None
    path: str | None = None
    label: str | None = None
    key: str | None = None
    features: tuple[str, ...] | None = None

    def found_in(self, schema: pa.Schema, kind: Kind | None, name: str) -> tuple[Columns, Kind]:
        """Fill in what was not told from the names and types of columns, and say what the samples are.

        Args:
            schema: of the table.
            kind: what samples are, if the network or the fit decides that.
            name: of the table, for messages.
        """
        for option in ("text", "path", "label", "key"):
            self._check(option, schema, name)
        label = self.label or _named(schema, LABELS, {self.text, self.path, self.key})
        known = replace(self, label=label)
        labels = known.labels_in(schema.names)
        key = self.key or _named(schema, KEYS, {self.text, self.path, label, *labels})
        known = replace(known, key=key)
        kind = kind or known._kind(schema)
        if kind == "texts":
            text = self.text or known._only_strings(schema, TEXTS)
            if text is None:
                raise DataError(expected("--text", f"the column of {name} that holds the texts", _several(schema)))
            return replace(known, text=text, path=None, features=None), kind
        if kind == "images":
            path = self.path or known._only_strings(schema, PATHS)
            if path is None:
                raise DataError(expected("--path", f"the column of {name} that holds images", _several(schema)))
            return replace(known, path=path, text=None, features=None), kind
        features = self.features or tuple(
            f.name for f in schema if f.name not in (*labels, key) and (_is_number(f.type) or _is_row(f.type))
        )
        missing = [feature for feature in features if feature not in schema.names]
        if missing or not features:
            got = f"none called {missing[0]!r}" if missing else _several(schema)
            raise DataError(expected(f"the columns of {name}", "numbers, those that the network takes", got))
        return replace(known, features=features, text=None, path=None), kind

    def labels_in(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return which of some columns hold labels: the one that is named, or all of several; none if one lacks."""
        if self.label is None or self.label in names:
            return (self.label,) if self.label is not None else ()
        several = tuple(name.strip() for name in self.label.split(","))
        return several if set(several) <= set(names) else ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @staticmethod
    def from_dict(kept: dict[str, Any]) -> Columns:
        """Return the columns that `to_dict` described."""
        features = kept["features"]
        return Columns(**{**kept, "features": None if features is None else tuple(features)})

    def _check(self, option: str, schema: pa.Schema, name: str) -> None:
        column = getattr(self, option)
        if column is not None and column not in schema.names and option != "label":
            raise DataError(expected(f"--{option}", f"a column of {name}", f"{column!r}; {_several(schema)}"))

    def _kind(self, schema: pa.Schema) -> Kind:
        if self.text or self.path:
            return "texts" if self.text else "images"
        taken = {*self.labels_in(schema.names), self.key}
        by_name = {kind: _named(schema, names, taken) for kind, names in (("images", PATHS), ("texts", TEXTS))}
        for kind, column in by_name.items():
            if column is not None and not _is_number(schema.field(column).type):
                return kind  # pyright: ignore[reportReturnType]
        numbers = any(f.name not in taken and (_is_number(f.type) or _is_row(f.type)) for f in schema)
        return "texts" if not numbers and self._only_strings(schema, ()) else "rows"

    def _only_strings(self, schema: pa.Schema, names: tuple[str, ...]) -> str | None:
        """Return the column with one of these names, or the only one of strings (or bytes) that is nothing else."""
        taken = {*self.labels_in(schema.names), self.key}
        found = _named(schema, names, taken)
        others = [f.name for f in schema if f.name not in taken and not _is_number(f.type) and not _is_row(f.type)]
        return found or (others[0] if len(others) == 1 else None)


def _named(schema: pa.Schema, names: tuple[str, ...], taken: set[str | None]) -> str | None:
    """Return the first column with one of these names, in their order."""
    there = {column.lower(): column for column in reversed(schema.names) if column not in taken}
    return next((there[name] for name in names if name in there), None)


def _is_number(kind: pa.DataType) -> bool:
    from pyarrow import types

    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _is_row(kind: pa.DataType) -> bool:
    """Check for a list of numbers in each cell."""
    from pyarrow import types

    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return lists and _is_number(kind.value_type)  # pyright: ignore[reportAttributeAccessIssue]


def _several(schema: pa.Schema) -> str:
    return f"the columns {', '.join(schema.names[:8])}" + (", ..." if len(schema.names) > 8 else "")
