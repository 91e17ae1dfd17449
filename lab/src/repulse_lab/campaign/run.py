"""Run all campaigns, and write their table to docs/reliability.md."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from repulse_lab.campaign.calls import calls
from repulse_lab.campaign.damage import damage
from repulse_lab.campaign.disks import disks
from repulse_lab.campaign.finding import Finding
from repulse_lab.campaign.hostile import hostile
from repulse_lab.campaign.kills import kills
from repulse_lab.campaign.page import put_in
from repulse_lab.campaign.repetition import restarts, threads

Campaign = Callable[[int, int], Iterator[Finding]]
CAMPAIGNS: dict[Campaign, int] = {
    kills: 100,
    damage: 600,
    disks: 50,
    hostile: 2000,
    calls: 500,
    threads: 200,
    restarts: 10,
}
"""How often each is tried in the long form."""

BEGIN, END = "<!-- campaign -->", "<!-- end of campaign -->"


def run(share: float, seed: int, say: Callable[[str], object] = lambda line: None) -> list[Finding]:
    """Run all campaigns, with this share of the tries of the long form."""
    torch.set_num_threads(1)  # processes that are copied must have no others
    found, last = [], time.monotonic()
    for campaign, times in CAMPAIGNS.items():
        for finding in campaign(max(round(share * times), 1), seed):
            counts = f"{finding.tried} tried, {finding.refused} refused, {len(finding.failures)} failed"
            counts += f", {1000 * (time.monotonic() - last) / finding.tried:.0f} ms each"
            last = time.monotonic()
            say(f"{finding.campaign} {finding.what}: {counts}")
            for failure in finding.failures[:5]:
                say(f"    {failure}")
            found.append(finding)
    return found


def table(found: Sequence[Finding]) -> str:
    """Return the table in Markdown."""
    rows = ["| what was done | to what | tried | held | failed |", "| --- | --- | --- | --- | --- |"]
    for one in found:
        counts = f"{one.tried:,} | {one.tried - len(one.failures):,} | {len(one.failures):,}"
        rows.append(f"| {one.campaign.rstrip(':')} | {one.what} | {counts} |")
    tried, failed = sum(one.tried for one in found), sum(len(one.failures) for one in found)
    return "\n".join([*rows, f"| **all** | | **{tried:,}** | **{tried - failed:,}** | **{failed:,}** |"])


def main(share: float, seed: int, page: Path | None) -> int:
    """Run, say what is found, and write the page; return the number of failures."""
    start = time.monotonic()
    found = run(share, seed, lambda line: print(line, flush=True))
    minutes = (time.monotonic() - start) / 60
    if page is not None:
        command = f"`make campaign SHARE={share:g}`"
        how = f"By {command}, seed {seed}, in {max(minutes, 1):.0f} min on one core of a busy machine, with torch"
        content = f"{table(found)}\n\n{how} {torch.__version__} and Python {sys.version.split()[0]}."
        put_in(page, content, BEGIN, END)
    return sum(len(one.failures) for one in found)
