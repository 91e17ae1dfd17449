"""Flip one byte of any file: it is refused, made again, or gives what it gave before."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from repulse_lab.campaign.finding import Finding, or_refused
from repulse_lab.campaign.writers import writers


def damage(times: int, seed: int) -> Iterator[Finding]:
    """Flip this many bytes in the files of each writer, one at a time, and cut off as many ends."""
    draw = random.Random(seed)
    for writer in filter(lambda writer: writer.damaged, writers()):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            writer.prepare(folder)
            writer.write(folder)
            whole = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
            for way in ("a byte flipped", "cut short"):
                found = Finding(f"{way} in", writer.name)
                for _ in range(times if way == "a byte flipped" else max(times // 5, 1)):
                    path = draw.choice(list(whole))
                    content = bytearray(whole[path])
                    if not content:
                        continue
                    at = draw.randrange(len(content))
                    if way == "a byte flipped":
                        content[at] ^= draw.randrange(1, 256)
                    else:
                        del content[at:]
                    with found.trial(f"{path.name} at {at}"):
                        path.write_bytes(content)
                        if writer.refuses:
                            with or_refused(found):
                                writer.check(folder)
                        else:
                            writer.check(folder)
                    for other in folder.rglob("*"):
                        if other.is_file() and other not in whole:
                            other.unlink()
                    for other, before in whole.items():
                        other.write_bytes(before)
                yield found
