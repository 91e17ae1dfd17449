"""Run the service, and say where it listens once it does."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from repulse.errors import DataError, expected

if TYPE_CHECKING:
    from fastapi import FastAPI


def listen(app: FastAPI, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until interrupted.

    Args:
        app: the service.
        host: address to listen at.
        port: port to listen at; 0 for a free one.
        ready: told the URL when requests are taken.
    """
    import uvicorn

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((host, port))
        except OSError as reason:
            got = f"{host}:{port}, where {(reason.strerror or str(reason)).lower()}"
            raise DataError(expected("--host and --port", "where this machine can listen", got)) from reason
        name = f"[{host}]" if ":" in host else host
        settings = uvicorn.Config(app, log_level="warning", access_log=False, limit_concurrency=1000)
        server = uvicorn.Server(settings)
        taken.listen(128)
        ready(f"http://{name}:{taken.getsockname()[1]}")
        server.run(sockets=[taken])
