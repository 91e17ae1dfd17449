"""Files that somebody made to do harm: refused in one sentence, soon, in little room, and nothing is run."""

from __future__ import annotations

import os
import pickle
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import repulse
from repulse import ActiveLearning, CheckpointError
from repulse._files import sealed, unsealed
from repulse.baselines import KNN
from repulse_lab.campaign.finding import Finding, ensemble, inputs, network, or_refused

VALUES: tuple[Any, ...] = (None, True, -1, 0, 1.5, "x", [], {}, [None], {"x": 1}, 10**7, 10**30, "../x", [[]], "heads")
DEVICES = ("fifo", "/dev/zero", "/dev/random", "/dev/stdin", "folder", "pickle", "huge")


class Trap:
    """Whoever unpickles this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def hostile(times: int, seed: int) -> Iterator[Finding]:
    """Forge entries of a saved ensemble with a right digest, and put other things in the place of files."""
    draw = random.Random(seed)
    found = Finding("forged, with a right digest:", "an entry of `ensemble.json`")
    with tempfile.TemporaryDirectory() as name:
        folder = ensemble().save(Path(name) / "saved")
        file = folder / "ensemble.json"
        whole, model = unsealed(file.read_bytes()), network()
        everywhere = list(_places(whole))
        for _ in range(times):
            path, value = draw.choice(everywhere), draw.choice(VALUES)
            with found.trial((path, value)), or_refused(found):
                file.write_text(sealed(_changed(whole, path, value)), encoding="utf-8")
                repulse.load(folder, model).predict(inputs(3))
        yield found
    found = Finding("in the place of a file:", "a pipe, a device, a folder, a pickle, a terabyte")
    for number in range(max(times // 10, len(DEVICES))):
        kind = DEVICES[number % len(DEVICES)]
        with tempfile.TemporaryDirectory() as name, found.trial(kind):
            _replaced(Path(name), kind)
    yield found


def _replaced(root: Path, kind: str) -> None:
    folder = ensemble().save(root / "saved")
    trace = root / "trace"
    heads = next(folder.glob("heads-*"))
    labels, method = root / "labels", root / "method"
    for path in (folder / "ensemble.json", heads, labels, method):
        before = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "pickle":
            path.write_bytes(pickle.dumps(Trap(trace)))
        elif kind == "huge":
            with path.open("wb") as file:
                file.truncate(2**40 if path.parent == folder else 2**20)
        else:
            path.symlink_to(kind)
        try:
            if path.parent == folder:
                repulse.load(folder, network())
            elif path is labels:
                ActiveLearning(inputs(), lambda *_: None).load(labels)
            else:
                KNN.load(method)
        except CheckpointError:
            pass
        else:
            raise AssertionError(f"{path.name} was taken")
        assert not trace.exists(), "it was unpickled"
        path.rmdir() if kind == "folder" else path.unlink()
        if before is not None:
            path.write_bytes(before)


def _places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[path[0]] = _changed(copy[path[0]], path[1:], value)
    return copy
