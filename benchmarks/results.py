"""Put what `repulse-lab reproduce` found in docs/results: tables, figures, claims, the page and pictures of it.

Cells that were measured take the place of the committed ones; the others stay.

Pictures of the page need playwright and chromium; without them those that are there stay.

    repulse-lab reproduce all --preset cpu && repulse-lab evaluate && python benchmarks/results.py
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from repulse.evaluation.table import Column, Table
from repulse_lab.paper.claims import judge, orderings, write_claims
from repulse_lab.paper.claims.results import Results
from repulse_lab.paper.registry import NAMES, chosen
from repulse_lab.report.reproduction import write_report
from repulse_lab.study.evaluate import EVALUATIONS, evaluation
from repulse_lab.study.experiment import Experiment, Outcome
from repulse_lab.study.output import FILE, read, write
from tables import ROOT, insert

SHOTS = {  # name: where the page is scrolled to, width, height, colours
    "report-top": ("header", 1280, 900, "light"),
    "report-claims": ("#claims", 1280, 900, "light"),
    "report-table": ("#cifar10 .results", 1280, 900, "light"),
    "report-map": ("#uncertainty-map .plot", 1280, 900, "dark"),
    "report-phone": ("header", 390, 844, "light"),
}


def overlay(results: Path, to: Path) -> None:
    """Put new cells in the place of the committed ones with the same labels, and make tables of all of them.

    So a few cells can be measured again, in every experiment that has them: what is called the same is the same.
    Figures are new where the run has them, else the committed ones.
    """
    runs = {path.parent.name: read(path.parent) for path in sorted(results.glob(f"*/{FILE}"))}
    measured = {_labels(one): one for run in runs.values() for one in run.outcomes}
    known = {path.parent.name for path in to.glob(f"*/{FILE}")}
    for experiment in every_experiment():
        if experiment.name not in known | set(runs):
            continue
        new, kept = runs.get(experiment.name), to / experiment.name
        old = read(kept) if experiment.name in known else runs[experiment.name]
        cells = {_labels(one): one for one in old.outcomes}
        again = {label: one for label, one in cells.items() if _covers(measured.get(label), one)}
        cells |= {label: replace(measured[label], labels=one.labels) for label, one in again.items()}
        cells |= {_labels(one): one for one in (new.outcomes if new else ())}
        if not cells or (new is None and list(cells.values()) == list(old.outcomes)):
            continue
        latest = new or old
        figures = {one.name: one for one in (*old.figures, *(new.figures if new else ()))}
        missing = [line for line in latest.missing if "cells are not done" not in line]
        changes = {"figures": list(figures.values()), "missing": missing, "minutes": old.minutes}
        outcomes = list(cells.values())
        write(replace(latest, outcomes=outcomes, tables=experiment.tables(outcomes), **changes), kept)
    write_claims(to)


def _covers(new: Outcome | None, old: Outcome) -> bool:
    """Check whether a new cell has all figures of an old one."""
    return new is not None and set(old.figures) <= set(new.figures)


def _labels(outcome: Outcome) -> str:
    """What a cell is, whatever build of the ambiguous digits it was measured on, and whatever a plain row is called."""
    known = {key: str(value) for key, value in outcome.labels.items() if value is not None and key != "build"}
    plain = known.get("method", ""), f"{known.get('method')}, {known.get('repulsion')}"
    if known.get("row") in plain:
        del known["row"]
    return json.dumps(sorted(known.items()))


def every_experiment() -> list[Experiment]:
    """Return the experiments of `reproduce` and of `evaluate`."""
    return [*chosen(["all"]), *(evaluation(network) for network in EVALUATIONS)]


def contents(results: Path) -> str:
    """Every experiment with its page, how much was run, and how long it took."""
    lines = ["| experiment | in the paper | cells | minutes of one core | |", "| --- | --- | --- | --- | --- |"]
    found = [read(results / name) for name in NAMES if (results / name / FILE).is_file()]
    for one in found:
        links = f"[page](cpu/{one.name}/tables.md) · [numbers](cpu/{one.name}/results.csv)"
        lines.append(f"| {one.title} | {one.source} | {len(one.outcomes)} | {one.minutes:.0f} | {links} |")
    dates, commands = (sorted({getattr(one, name) for one in found}) for name in ("date", "command"))
    said = f"Run on {', '.join(dates)} by `{'`, `'.join(commands)}`; minutes are with the networks and features that "
    return said + "experiments share.\n\n" + "\n".join(lines)


def verdicts(results: Path) -> str:
    """How many claims and orderings came out how."""
    judged = judge(results)
    words = list(dict.fromkeys(one.verdict for one in judged))
    table = Table("of", [Column(word, 0) for word in words])
    table.add("claims", [[float(sum(one.verdict == word for one in judged)) for word in words]])
    return table.markdown() + "\n\n" + orderings.summary(orderings.find(Results.read(results))).markdown()


def photograph(page: Path, folder: Path) -> None:
    """Pictures of the page in a browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        for name, (where, width, height, colours) in SHOTS.items():
            tab = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme=colours,  # pyright: ignore[reportArgumentType]
                reduced_motion="reduce",
            )
            tab.goto(page.resolve().as_uri())
            tab.wait_for_selector(".plot svg")
            tab.locator(where).first.scroll_into_view_if_needed()
            tab.evaluate("where => document.querySelector(where).scrollIntoView()", where)
            tab.screenshot(path=folder / f"{name}.png")
            tab.close()
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder that was written to")
    written = parser.parse_args().results
    results = written / "cpu"
    if not results.is_dir():
        sys.exit(f"{results} is not there: run `repulse-lab reproduce all` first.")
    docs = ROOT / "docs" / "results"
    overlay(results, docs / "cpu")
    if (written / "paper").is_dir():  # what of it could be run
        overlay(written / "paper", docs / "paper")
    page = write_report(docs / "cpu")
    insert(docs / "index.md", "contents", contents(docs / "cpu"))
    insert(docs / "index.md", "verdicts", verdicts(docs / "cpu"))
    if importlib.util.find_spec("playwright") and shutil.which("chromium"):
        photograph(page, ROOT / "docs" / "images")
    print(f"{docs}: {sum(len(json.loads(p.read_text())['cells']) for p in docs.glob(f'cpu/*/{FILE}'))} cells")


if __name__ == "__main__":
    main()
