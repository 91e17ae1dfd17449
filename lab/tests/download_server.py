"""A server that drops connections when told to, and archives for it to offer."""

from __future__ import annotations

import hashlib
import http.server
import io
import tarfile
import time
import zipfile
from pathlib import Path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files, with ranges if told to, and drops connections when told to."""

    ranges = True
    drops: tuple[int, ...] = ()
    stall = False
    length: str | None = None
    busy = 0
    asked: list[str | None]

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        wanted = self.headers.get("Range")
        self.asked.append(wanted)
        if not path.is_file() or len(self.asked) <= self.busy:
            self.send_error(503 if self.busy else 404)
            return
        content = path.read_bytes()
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        if start and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if self.length is None or self.length:
            self.send_header("Content-Length", str(len(content) - start) if self.length is None else self.length)
        self.end_headers()
        number = len(self.asked) - 1
        self.wfile.write(content[start:][: self.drops[number] if number < len(self.drops) else None])
        self.wfile.flush()
        if self.stall and number == 0:
            time.sleep(20)


def archive(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def left(root) -> list[str]:
    """All files but the lock."""
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if (path.is_file() or ".fetch" in path.name) and path.name != ".fetch.lock"
    )


def zipped(members: dict[str, bytes], link: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
        if link:
            info = zipfile.ZipInfo(link)
            info.external_attr = 0o120777 << 16
            file.writestr(info, "/etc/passwd")
    return buffer.getvalue()


def linked(name: str, kind: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    return buffer.getvalue()
