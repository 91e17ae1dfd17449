"""Which input file becomes which output file, and which of them are done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from repulse._files import read_regular, sweep
from repulse._version import __version__
from repulse.checkpoint import MAX_METADATA
from repulse.errors import CheckpointError, DataError, expected
from repulse.files.columns import Columns
from repulse.files.samples import FILES, FORMS, is_image

SUFFIXES = (".parquet", ".csv")
"""Of a single output file."""


@dataclass(frozen=True)
class Settings:
    """What is the same for all files of a run: how to open the heads and how to score.

    Attributes:
        heads: folder that `repulse fit` wrote.
        model: name of the network, if it is elsewhere than at the fit.
        checkpoint: file of its weights, if it is elsewhere than at the fit.
        columns: what the columns of tables are; as at the fit where not told.
        probs: whether to write the probability of every class.
        batch_size: number of samples at once; as at the fit if None.
        threads: of torch in each worker.
    """

    heads: str
    model: str | None = None
    checkpoint: str | None = None
    columns: Columns = field(default_factory=Columns)
    probs: bool = False
    batch_size: int | None = None
    threads: int = 1


@dataclass(frozen=True)
class Task:
    """One input file, or one folder of images, and the output file it becomes.

    Attributes:
        source: file, or folder of images.
        part: folder below it, if it is one of several.
        out: output file.
        metadata: what the output file says of itself; one that says the same, and is not older, is done.
        settings: how to score.
    """

    source: str
    part: str | None
    out: str
    metadata: dict[str, str]
    settings: Settings

    def is_done(self) -> bool:
        """Check whether the output is there, made by these heads in this way, and not older than the input."""
        from pyarrow import ArrowException
        from pyarrow.parquet import read_schema

        out, source = Path(self.out), Path(self.source, self.part or "")
        try:
            if out.suffix == ".csv" or out.stat().st_mtime_ns < source.stat().st_mtime_ns:
                return False
            found = read_schema(out).metadata or {}
        except (OSError, ArrowException):
            return False
        return all(found.get(key.encode()) == value.encode() for key, value in self.metadata.items())


def tasks_of(source: Path, out: Path, settings: Settings) -> list[Task]:
    """List the files below a source, each with its output file, sorted.

    A single file, or a folder of images, goes to `out` itself if that ends in .parquet or .csv; otherwise `out` is a
    folder, and each file, or each folder that holds images, becomes one file in it.
    """
    if not source.exists():
        raise DataError(expected("DATA", FORMS, f"{source}, which does not exist"))
    files = sorted(_files_in(source, out)) if source.is_dir() else [source]
    if out.suffix.lower() in SUFFIXES and not out.is_dir():
        if source.is_dir() and files:
            raise DataError(expected("--out", f"a folder, for the {len(files)} files of {source}", out))
        pairs = [(source, None, out)]
    elif files:
        pairs = [(file, None, _output(file, source, out)) for file in files]
    else:
        found = {path.parent for path in source.rglob("*") if is_image(path) and not path.is_relative_to(out)}
        parts = sorted(folder.relative_to(source).as_posix() for folder in found)
        pairs = [(source, part, out / f"{source.name if part == '.' else part}.parquet") for part in parts]
    if not pairs:
        raise DataError(expected(str(source), FORMS, "a folder without any"))
    outputs = [to for _, _, to in pairs]
    for one in outputs:
        if one in (file for file, _, _ in pairs) or outputs.count(one) > 1:
            got = f"{one}, which is an input" if outputs.count(one) == 1 else f"{one} for two of them"
            raise DataError(expected("--out", "another file for each input", got))
    metadata = {
        "repulse.heads": fingerprint(settings.heads),
        "repulse.version": __version__,
        "repulse.settings": json.dumps({**asdict(settings.columns), "probs": settings.probs}, sort_keys=True),
    }
    return [
        Task(str(file), part, str(to), {**metadata, "repulse.source": Path(file, part or "").name}, settings)
        for file, part, to in pairs
    ]


def fingerprint(heads: str | Path) -> str:
    """Return the digest of heads: of their weights, of the network's, and of all that is known of the fit."""
    try:
        return str(json.loads(read_regular(Path(heads) / "ensemble.json", MAX_METADATA))["digest"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as reason:
        got = f"{heads}, where there is no whole ensemble.json"
        raise CheckpointError(expected("HEADS", "a folder that `repulse fit` wrote", got)) from reason


def sweep_strays(tasks: list[Task]) -> None:
    """Remove what killed workers have left beside the outputs."""
    for task in tasks:
        sweep(Path(task.out))


def _files_in(source: Path, out: Path) -> Iterator[Path]:
    for path in source.rglob("*"):
        hidden = any(part.startswith((".", "_")) for part in path.relative_to(source).parts)
        if path.suffix.lower() in FILES and path.is_file() and not hidden and not path.is_relative_to(out):
            yield path


def _output(file: Path, source: Path, out: Path) -> Path:
    relative = file.relative_to(source) if source.is_dir() else Path(file.name)
    return out / (relative if file.suffix == ".parquet" else relative.with_name(relative.name + ".parquet"))
