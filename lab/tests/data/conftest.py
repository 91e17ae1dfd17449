"""A server of the test's own for downloads."""

from __future__ import annotations

import http.server
import threading
from functools import partial

import pytest

from download_server import Handler
from repulse_lab.data import download


@pytest.fixture
def handler():
    return type("Fresh", (Handler,), {"asked": []})


@pytest.fixture
def server(tmp_path, handler, monkeypatch):
    """A web server for the folder `served`."""
    monkeypatch.setattr(download, "PAUSE", 0.0)
    folder = tmp_path / "served"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=folder)) as running:
        running.daemon_threads = True
        running.block_on_close = False
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
