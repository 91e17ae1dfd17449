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


def run(
    share: float, seed: int, say: Callable[[str], object] = lambda line: None, only: Sequence[str] = ()
) -> list[Finding]:
    """Run all campaigns, or those of these names, with this share of the tries of the long form."""
    torch.set_num_threads(1)  # processes that are copied must have no others
    found, last = [], time.monotonic()
    chosen = {campaign: times for campaign, times in CAMPAIGNS.items() if not only or campaign.__name__ in only}
    for campaign, times in chosen.items():
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


def main(share: float, seed: int, page: Path | None, only: Sequence[str] = ()) -> int:
    """Run, say what is found, and write the page; return the number of failures.

    With names of campaigns, only their rows of the page are made again, and a line says so.
    """
    start = time.monotonic()
    found = run(share, seed, lambda line: print(line, flush=True), only)
    minutes = (time.monotonic() - start) / 60
    if page is not None:
        which = f" ONLY={','.join(only)}" if only else ""
        how = f"By `make campaign SHARE={share:g}{which}`, seed {seed}, in {max(minutes, 1):.0f} min on one core of a"
        lines = [f"{how} busy machine, with torch {torch.__version__} and Python {sys.version.split()[0]}."]
        rows = found
        if only:
            before = page.read_text(encoding="utf-8")
            rows = merged(rows_of(before), found)
            lines = [*(line for line in before.splitlines() if line.startswith("By `make campaign SHARE=")), *lines]
        put_in(page, "\n\n".join([table(rows), *lines]), BEGIN, END)
    return sum(len(one.failures) for one in found)


def rows_of(text: str) -> list[Finding]:
    """Read the rows of a table back."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    counted = [row for row in rows if len(row) == 5 and row[2].replace(",", "").isdigit()]
    return [
        Finding(row[0], row[1], int(row[2].replace(",", "")), ["then"] * int(row[4].replace(",", "")))
        for row in counted
    ]


def merged(before: Sequence[Finding], found: Sequence[Finding]) -> list[Finding]:
    """Return the rows from before with new ones in their place; rows of new subjects follow those of their kind."""
    rows = list(before)
    for one in found:
        kind = one.campaign.rstrip(":")
        places = [i for i, row in enumerate(rows) if (row.campaign, row.what) == (kind, one.what)]
        last = max((i for i, row in enumerate(rows) if row.campaign == kind), default=len(rows) - 1)
        at = places[0] if places else last + 1
        rows[at : at + len(places)] = [one]
    return rows
