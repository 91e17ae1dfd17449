"""Downloads that can be trusted and taken up again.

What comes is kept in a `.part` file, so that a dropped connection or a kill costs only what was on the way; it gets its
name when its digest is right, so a file that is there is whole and is the right one.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from tqdm import tqdm

from repulse._locks import locked
from repulse.errors import DataError
from repulse_lab.data.archives import DAMAGED, extract, extract_folder
from repulse_lab.data.remotes import Remote

CHUNK = 1 << 20
UNKNOWN_MEGABYTES = 500
"""Size of a download, at most, of which the catalogue does not say that it is large."""
TRIES = 5
PAUSE = 1.0
"""Seconds before the second try; twice as long before each further one."""


class _RefusedError(Exception):
    """What the server says or sends cannot be right."""


def missing(remote: Remote, root: Path) -> list[str]:
    """Return which of its files and folders are not in the data folder."""
    folders = [path for path in remote.folders if not any((root / path).glob("*"))]
    return [path for path in remote.files if not (root / path).is_file()] + folders


def fetch(remote: Remote, root: Path, progress: bool = True) -> None:
    """Download what is missing. A wrong digest leaves nothing behind; a kill leaves what the next call goes on with."""
    if not missing(remote, root):
        return
    _check_address(remote)
    work = root / ".fetch"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / ".fetch.lock", f"downloads to {root}"):
            work.mkdir(exist_ok=True)
            try:
                if wanted := missing(remote, root):  # another process may have been faster
                    _fetch(remote, root, work, wanted, progress)
            finally:
                if not any(work.iterdir()):
                    work.rmdir()
    except OSError as reason:
        raise DataError(f"Expected to write {remote.name} to {root}, but it failed: {reason}.") from reason


def _check_address(remote: Remote) -> None:
    """Refuse what anybody on the way could have changed: a plain address without digests of what it gives."""
    parts = urllib.parse.urlsplit(remote.url)
    vouched = remote.digest or (remote.files and not remote.folders and all(remote.files.values()))
    if parts.scheme not in ("http", "https"):
        raise DataError(f"Expected {remote.name} to have an address of https, but got {remote.url!r}.")
    if parts.scheme == "http" and not vouched and parts.hostname not in ("localhost", "127.0.0.1"):
        raise DataError(f"Expected {remote.name} to have an address of https or a digest, but got {remote.url!r}.")


def most_bytes(remote: Remote) -> int:
    """Return how many bytes a download may have: twice what is known of it."""
    return (2 * remote.megabytes or UNKNOWN_MEGABYTES) * 10**6


def _fetch(remote: Remote, root: Path, work: Path, wanted: list[str], progress: bool) -> None:
    part = work / f"{hashlib.sha256(remote.url.encode()).hexdigest()[:16]}.part"
    _download(remote, part, progress)
    scratch = work / "unpacked"
    shutil.rmtree(scratch, ignore_errors=True)  # of a fetch that was killed
    scratch.mkdir()
    try:
        _check(remote.name, part, remote.digest)
        for number, path in enumerate(wanted):
            made = _unpack(remote, part, path, scratch / str(number))
            _check(path, made, remote.files.get(path, ""))
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            made.replace(root / path)
    except DataError:  # wrong, and no use to go on with; a full disk or a kill would leave it
        part.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    part.unlink(missing_ok=True)


def _download(remote: Remote, part: Path, progress: bool) -> None:
    """Bring the part file to its full length, over as many connections as it takes."""
    for attempt in range(TRIES):
        time.sleep(PAUSE * 2 ** (attempt - 1) if attempt else 0)
        try:
            _go_on(remote, part, progress)
            return
        except _RefusedError as reason:
            part.unlink(missing_ok=True)
            raise DataError(f"Expected to download {remote.name} from {remote.url}, but {reason}.") from reason
        except (OSError, http.client.HTTPException) as reason:
            if attempt == TRIES - 1 or _is_final(reason, attempt):
                kept = part.stat().st_size if part.exists() else 0
                note = f" The {kept} bytes that came are kept, and the next try goes on from there." if kept else ""
                why = reason if isinstance(reason, urllib.error.HTTPError) else getattr(reason, "reason", reason)
                sentence = f"Expected to download {remote.name} from {remote.url}, but it failed: {why}.{note}"
                raise DataError(sentence) from reason


def _is_final(reason: Exception, attempt: int) -> bool:
    """Check whether another try would end alike: the server said no, or was never reached."""
    if isinstance(reason, urllib.error.HTTPError):
        return reason.code < 500
    return isinstance(reason, urllib.error.URLError) and attempt == 0


def _go_on(remote: Remote, part: Path, progress: bool) -> None:
    """Ask for the rest over one connection, and start over if the server gives the whole."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "repulse"} | ({"Range": f"bytes={have}-"} if have else {})
    request = urllib.request.Request(remote.url, headers=headers)
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 416 or not have:
                raise
            if error.headers.get("Content-Range") == f"bytes */{have}":
                return  # there is no rest
        part.unlink()  # longer than what is offered now: something else
        _go_on(remote, part, progress)
        return
    with answer:
        if have and not str(answer.headers.get("Content-Range")).startswith(f"bytes {have}-"):
            have = 0
        length, most = answer.headers.get("Content-Length"), most_bytes(remote)
        if length is not None and not length.strip().isdecimal():
            raise _RefusedError(f"the server says it has {length!r} bytes")
        size = have + int(length) if length else None
        if size is not None and size > most:
            raise _RefusedError(f"it has {size:,} bytes where {most:,} would be many")
        bar = tqdm(total=size, initial=have, desc=remote.name, unit="B", unit_scale=True, disable=not progress)
        with bar, part.open("ab" if have else "wb") as file:
            while chunk := answer.read(CHUNK):
                if file.tell() + len(chunk) > most:
                    raise _RefusedError(f"more than {most:,} bytes came")
                file.write(chunk)
                bar.update(len(chunk))
            if size is not None and file.tell() < size:
                raise ConnectionError(f"the connection ended after {file.tell()} of {size} bytes")


def _unpack(remote: Remote, whole: Path, path: str, to: Path) -> Path:
    """Return what is to be kept at `path`: the download itself, its unpacked content, or a member or folder of it."""
    try:
        if path in remote.folders:
            extract_folder(whole, remote.folders[path], to)
        elif path in remote.members:
            extract(whole, remote.members[path], to)
        elif remote.gzipped:
            with gzip.open(whole) as source, to.open("wb") as file:
                shutil.copyfileobj(source, file, CHUNK)
        else:
            return whole
    except (*DAMAGED, gzip.BadGzipFile) as reason:
        wanted = (
            "be packed with gzip" if remote.gzipped else f"hold {remote.folders.get(path) or remote.members.get(path)}"
        )
        raise DataError(f"Expected {remote.url} to {wanted}, but it does not ({reason}).") from reason
    return to


def _check(name: str, path: Path, digest: str) -> None:
    if not digest:
        return
    kind = {32: "md5", 64: "sha256"}[len(digest)]
    with path.open("rb") as file:
        got = hashlib.file_digest(file, kind).hexdigest()
    if got != digest:
        label = {"md5": "MD5", "sha256": "SHA-256"}[kind]
        raise DataError(f"Expected {name} to have {label} {digest}, but got {got}; nothing was kept.")
