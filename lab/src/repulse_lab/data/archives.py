"""Members of tar and zip archives, written where we say and never where the archive says."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from repulse.errors import DataError, expected

DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError)


class Member(NamedTuple):
    """A plain file, or something else that is only named, in an archive."""

    name: str
    plain: bool
    open: Callable[[], IO[bytes] | None]

    @property
    def path(self) -> PurePosixPath:
        return PurePosixPath(self.name.replace("\\", "/"))

    @property
    def strays(self) -> bool:
        """Check whether its name leads out of the folder it would be unpacked in."""
        return self.path.is_absolute() or ".." in self.path.parts or ":" in self.path.parts[0]


def extract(archive: Path, member: str, to: Path) -> None:
    """Write one member to a file of ours."""
    with _members(archive) as members:
        found = next((m for m in members if m.plain and m.path == PurePosixPath(member)), None)
        if found is None:
            raise KeyError(member)
        _copy(found, to)


def extract_folder(archive: Path, folder: str, to: Path) -> int:
    """Write all files below a folder of the archive into a folder of ours; returns how many.

    An archive with a name that leads elsewhere, or with a link in the folder, is refused before it can be followed.
    """
    count, top = 0, PurePosixPath(folder)
    with _members(archive) as members:
        for member in members:
            if member.path.parts and member.strays:
                raise DataError(expected("the archive", "of files in their folder", f"a member named {member.name!r}"))
            if not member.path.is_relative_to(top) or member.path == top:
                continue
            if not member.plain:
                raise DataError(expected("the archive", "of plain files", f"a link or device named {member.name!r}"))
            target = to / member.path.relative_to(top)
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(member, target)
            count += 1
    if not count:
        raise KeyError(folder)
    return count


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[Member]]:
    """Return all members but folders, in the order of the archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            yield (
                Member(info.filename, not _is_zip_link(info), partial(zipped.open, info))
                for info in zipped.infolist()
                if not info.is_dir()
            )
    else:
        with tarfile.open(archive) as tar:
            yield (Member(info.name, info.isfile(), partial(tar.extractfile, info)) for info in tar if not info.isdir())


def _is_zip_link(info: zipfile.ZipInfo) -> bool:
    return (info.external_attr >> 28) == 0o12  # the type of a symbolic link in the mode that Unix writes


def _copy(member: Member, to: Path) -> None:
    source = member.open()
    if source is None:
        raise KeyError(member.name)
    with source, to.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
