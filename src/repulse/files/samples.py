"""What is in a file or a folder: samples with their keys and, where there are any, labels, as they are on disk."""

from __future__ import annotations

import importlib.util
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repulse.errors import DataError, expected
from repulse.files.columns import KEYS, LABELS, ROWS, Columns, Kind

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL import Image

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
TABLES = (".parquet", ".pq", ".csv", ".tsv")
FILES = (*TABLES, ".npz", ".tar")
FORMS = "a folder of images, a CSV, TSV or Parquet table, an .npz of arrays, or a .tar of images"


@dataclass(frozen=True)
class Slice:
    """Bytes of a file inside another, such as a member of a tar."""

    path: Path
    offset: int
    size: int

    def read(self) -> bytes:
        """Read them."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


@dataclass(frozen=True)
class Samples:
    """Samples in the order of their source.

    Attributes:
        kind: what they are.
        values: paths (or bytes) of images, strings, or an array whose rows are the samples.
        keys: what identifies each: a sequence of strings or integers, or the column of the table.
        labels: strings, integers or floats, or several numbers of each; None if there are none.
        key_name: name of the keys in scores.
        columns: what the columns of the table are, if it was one.
        name: of the source, for messages.
    """

    kind: Kind
    values: Any
    keys: Any
    labels: np.ndarray | None = None
    key_name: str = "key"
    columns: Columns = field(default_factory=Columns)
    name: str = ""

    def __len__(self) -> int:
        return len(self.values)

    def some(self, indices: Sequence[int]) -> Samples:
        """Return the samples with these numbers."""
        values = (
            self.values[list(indices)] if isinstance(self.values, np.ndarray) else [self.values[i] for i in indices]
        )
        labels = None if self.labels is None else self.labels[list(indices)]
        keys = [self.keys[i] for i in indices]
        return Samples(self.kind, values, keys, labels, self.key_name, self.columns, self.name)


def read_samples(
    source: str | Path, columns: Columns | None = None, kind: Kind | None = None, part: str | None = None
) -> Samples:
    """Read what a file or folder holds; of images, only where they are.

    Args:
        source: a folder of images (those in folders of their own have its name as label), a CSV, TSV or Parquet
            table, an `.npz` of arrays, or a `.tar` of images.
        columns: what the columns of a table are; found by their names where not told.
        kind: what the samples must be, if that is known.
        part: only the images in this folder below a folder of images, and not those in folders below it.
    """
    path = Path(source)
    columns = columns or Columns()
    if not path.exists():
        raise DataError(expected("DATA", FORMS, f"{source}, which does not exist"))
    suffix = path.suffix.lower()
    if path.is_dir():
        found = _folder(path, part)
    elif suffix == ".npz":
        found = _arrays(path)
    elif suffix == ".tar":
        found = _tar(path)
    elif suffix in TABLES:
        found = table_samples(read_table(path), columns, kind, path)
    elif suffix in IMAGES:
        found = Samples("images", [path], [path.name], key_name="path", name=str(path))
    else:
        raise DataError(expected("DATA", FORMS, str(source)))
    if not len(found):
        raise DataError(expected(str(source), "at least one sample", "none"))
    if kind is not None and found.kind != kind:
        raise DataError(expected(str(source), f"{kind}, which the network takes", found.kind))
    return found


def read_table(path: Path) -> pa.Table:
    """Read a CSV, TSV or Parquet file."""
    need("pyarrow", f"reading {path.name}", "files")
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            with parquet.ParquetFile(path) as file:  # of a folder with "=" in its name, no column is made
                return file.read()
        delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        return csv.read_csv(path, parse_options=parsing)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as reason:
        why = (str(reason).splitlines() or [type(reason).__name__])[0].rstrip(". ")
        raise DataError(expected(str(path), "a whole table", f"one that cannot be read: {why}")) from reason


def table_samples(table: pa.Table, columns: Columns, kind: Kind | None, path: Path) -> Samples:
    """Return the samples in the rows of a table; paths of images are relative to the folder of the table."""
    twice = next((name for name in table.column_names if table.column_names.count(name) > 1), None)
    if twice is not None:
        raise DataError(expected(f"the columns of {path}", "of different names", f"two called {twice!r}"))
    columns, kind = columns.found_in(table.schema, kind, path.name)
    if kind == "texts":
        values: Any = [str(value) for value in _whole(table, columns.text, path)]
    elif kind == "images":
        values = [_image_in(value, path) for value in _whole(table, columns.path, path)]
    else:
        values = _numbers(table, columns.features or (), path)
    labels = _labels(table, columns.labels_in(table.column_names), path)
    keys, key_name = _keys(table, columns, kind)
    return Samples(kind, values, keys, labels, key_name, columns, str(path))


def open_image(value: Path | bytes | Slice) -> Image.Image:
    """Open an image in colour, turned as its EXIF says."""
    from PIL import Image, ImageOps

    try:
        content = value.read() if isinstance(value, Slice) else value
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError) as reason:
        name = value if isinstance(value, Path) else "an image of DATA"
        why = (str(reason).splitlines() or [type(reason).__name__])[0].rstrip(". ")
        why = "no such file" if isinstance(reason, FileNotFoundError) else why
        raise DataError(expected(str(name), "a whole image", why)) from reason


def need(package: str, what: str, extra: str) -> None:
    """Say in one sentence what to install, if a package of an extra is missing."""
    if importlib.util.find_spec(package) is None:
        raise DataError(f"{what[0].upper()}{what[1:]} needs {package}: pip install 'repulse[{extra}]'.")


def is_image(path: Path) -> bool:
    """Tell image files by their names; hidden files are none."""
    return path.suffix.lower() in IMAGES and not path.name.startswith(".")


def _folder(folder: Path, part: str | None) -> Samples:
    need("PIL", "reading images", "files")
    below = folder.rglob("*") if part is None else (folder / part).iterdir()
    paths = sorted((path for path in below if is_image(path)), key=lambda path: path.relative_to(folder).parts)
    if not paths:
        raise DataError(expected(f"the folder {folder}", "one with images, or folders of images, in it", "none"))
    parts = [path.relative_to(folder).parts for path in paths]
    labels = np.asarray([part[0] for part in parts]) if all(len(part) > 1 for part in parts) else None
    return Samples("images", paths, ["/".join(part) for part in parts], labels, "path", name=str(folder))


def _arrays(path: Path) -> Samples:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name.lower(): file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as reason:
        why = (str(reason).splitlines() or [type(reason).__name__])[0].rstrip(". ")
        raise DataError(expected(str(path), "an .npz of arrays", why)) from reason
    rows = next((arrays[name] for name in (*ROWS, "inputs", "data") if name in arrays), None)
    if rows is None:
        several = [array for array in arrays.values() if array.ndim > 1]
        rows = several[0] if len(several) == 1 else None
    if rows is None or rows.ndim < 2 or rows.dtype.kind not in "fiub":
        got = ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "none"
        raise DataError(expected(f"the arrays of {path}", "`features` (N, d), and `labels` (N,) if there are any", got))
    labels = next((arrays[name] for name in LABELS if name in arrays), None)
    keys = next((arrays[name] for name in (*KEYS, "keys") if name in arrays), None)
    for name, values in (("labels", labels), ("keys", keys)):
        if values is not None and len(values) != len(rows):
            raise DataError(expected(f"the {name} of {path}", f"{len(rows)}, one for each row", len(values)))
    named = ("key", keys.tolist()) if keys is not None else ("row", range(len(rows)))
    return Samples("rows", rows.astype(np.float32), named[1], labels, named[0], name=str(path))


def _tar(path: Path) -> Samples:
    """Find the images of a tar; `a/b.cls` beside `a/b.jpg` holds its label, as webdataset writes it."""
    need("PIL", "reading images", "files")
    try:
        with tarfile.open(path, "r:") as file:
            members = [member for member in file.getmembers() if member.isfile()]
    except (tarfile.TarError, OSError) as reason:
        raise DataError(expected(str(path), "a whole tar that is not compressed", reason)) from reason
    where = {member.name: Slice(path, member.offset_data, member.size) for member in members}
    images = [name for name in where if is_image(Path(name))]
    beside = [where.get(str(Path(name).with_suffix(".cls"))) for name in images]
    labels = None
    if images and all(label is not None for label in beside):
        labels = np.asarray([label.read().decode(errors="replace").strip() for label in beside if label is not None])
        if all(text.isdecimal() for text in labels):
            labels = labels.astype(np.int64)
    return Samples("images", [where[name] for name in images], images, labels, "path", name=str(path))


def _whole(table: pa.Table, column: str | None, path: Path) -> list[Any]:
    """Return the values of a column, none of which may be missing."""
    values = table.column(column).to_pylist()  # pyright: ignore[reportArgumentType]
    missing = [row for row, value in enumerate(values) if value is None]
    if missing:
        got = f"{len(missing)} empty cells, first in row {missing[0]}"
        raise DataError(expected(f"the column {column!r} of {path}", "without empty cells", got))
    return values


def _labels(table: pa.Table, names: Sequence[str], path: Path) -> np.ndarray | None:
    """Return the labels of each row: of several columns as numbers, with NaN in empty cells; None without columns."""
    if not names:
        return None
    if len(names) == 1:
        values = _whole(table, names[0], path)
        if not (values and isinstance(values[0], list)):
            return np.asarray(values)
        values = list(zip(*values, strict=True)) if len(set(map(len, values))) == 1 else [("lists of other lengths",)]
    else:
        values = [table.column(name).to_pylist() for name in names]
    try:
        columns = [np.asarray([np.nan if v is None else v for v in column], dtype=np.float32) for column in values]
    except (ValueError, TypeError) as reason:
        wanted = "numbers, as many in each row"
        raise DataError(expected(f"the labels {', '.join(names)} of {path}", wanted, reason)) from reason
    return np.stack(columns, axis=1)


def _image_in(value: Any, table: Path) -> Path | bytes:
    """Return an image of a cell: a path relative to the table, bytes, or both as Hugging Face writes them."""
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    return value if isinstance(value, bytes) else table.parent / str(value)


def _numbers(table: pa.Table, features: Sequence[str], path: Path) -> np.ndarray:
    parts = []
    for name in features:
        values = _whole(table, name, path)
        try:
            part = np.asarray(values, dtype=np.float32)
        except (ValueError, TypeError) as reason:
            wanted = "numbers, as many in each row"
            raise DataError(expected(f"the column {name!r} of {path}", wanted, reason)) from reason
        parts.append(part if part.ndim > 1 else part[:, None])
    return np.concatenate(parts, axis=1)


def _keys(table: pa.Table, columns: Columns, kind: Kind) -> tuple[Any, str]:
    if columns.key is not None:
        return table.column(columns.key).combine_chunks(), columns.key  # of the type that it has
    if kind == "images" and columns.path is not None:
        values = table.column(columns.path).to_pylist()
        values = [value.get("path") if isinstance(value, dict) else value for value in values]
        if all(isinstance(value, str) for value in values):
            return values, columns.path
    return range(len(table)), "row"
