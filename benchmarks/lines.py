"""Count the lines of code of every room of both packages, and put the table in CONTRIBUTING.md.

A line of code is one that is not blank, not a comment and not part of a docstring (or of a string that documents a
constant).

    python benchmarks/lines.py
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
PACKAGES = {"repulse": ROOT / "src" / "repulse", "repulse_lab": ROOT / "lab" / "src" / "repulse_lab"}
FILES = "files at the root"
HOLDS = {
    "repulse": {
        FILES: "`retrofit`, `ensemble`, `recipe`, `summary`, `checkpoint`, `functional`, `errors`, `cli`",
        "active": "which inputs to label next, learning new labels, forgetting, auditing",
        "backbone": "finding the last layer, taps, batches of any form, computing and keeping features",
        "baselines": "methods to compare with: the contract, and one method per file",
        "commands": "what `repulse` does on the command line: one command per file",
        "decide": "gate with guarantees, conformal sets, watch over time, reasons",
        "demo": "`repulse demo`: digits, from training to the page",
        "evaluation": "all metrics from one pass over each set, overlap, tables and plots",
        "files": "networks and samples from files and folders",
        "integrations": "scikit-learn, Lightning, Hugging Face, ONNX, skorch, OpenOOD, pytorch-ood: leaves",
        "metrics": "pure functions of predictions",
        "particles": "heads, tasks, kernels, rules, forces, the fit, the centre; `fast/` has the same formulas by hand",
        "prediction": "what predictions hold, one file per kind of output; the split of uncertainty",
        "repulsion": "one source of repulsion samples per file, and the choice between them",
        "scale": "bulk scoring on local processes, Ray, Spark and Dask",
        "serve": "a small HTTP service and its page",
        "suggest": "which source, how strong, which layers, judged without out-of-distribution labels",
    },
    "repulse_lab": {
        FILES: "`repulse-lab`",
        "campaign": "kills, damage, full disks, random calls, threads: what held",
        "decisions": "whether gates and watches keep their promises, on real data",
        "defaults": "the default recipe on many problems, and whether it keeps its promises",
        "data": "data sets by name, corruptions, fetching",
        "jobs": "content-addressed jobs, on one machine or several",
        "networks": "networks, their training, published weights",
        "paper": "one table or figure of the paper per file, its claims, the numbers it prints",
        "report": "one page of all results",
        "speed": "what things cost",
        "study": "what a problem, a grid and a cell are; tables and output of experiments",
    },
}


def code_lines(source: str) -> int:
    """Return the number of lines that hold code."""
    documented = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    nothing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in nothing:
            found |= set(range(token.start[0], token.end[0] + 1))
    return len(found - documented)


def rooms(package: Path) -> dict[str, tuple[int, int]]:
    """Return the number of files and of lines of code of every room of a package."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        room = parts[0] if len(parts) > 1 else FILES
        files, lines = found.get(room, (0, 0))
        found[room] = files + 1, lines + code_lines(path.read_text(encoding="utf-8"))
    return dict(sorted(found.items(), key=lambda item: (item[0] != FILES, item[0])))


def table() -> str:
    """Return the table of both packages."""
    lines = ["| room | holds | files | lines of code |", "| --- | --- | --- | --- |"]
    for name, package in PACKAGES.items():
        found = rooms(package)
        files, code = (sum(column) for column in zip(*found.values(), strict=True))
        lines.append(f"| **`{name}`** | **all of it** | **{files}** | **{code:,}** |")
        for room, (count, size) in found.items():
            label = room if room == FILES else f"`{room}/`"
            lines.append(f"| {label} | {HOLDS[name].get(room, '')} | {count} | {size:,} |")
    return "\n".join(lines)


def main() -> None:
    text, made = PAGE.read_text(encoding="utf-8"), table()
    between = re.compile(r"(<!-- rooms -->\n).*?(<!-- end of rooms -->)", re.DOTALL)
    PAGE.write_text(between.sub(lambda match: f"{match[1]}\n{made}\n\n{match[2]}", text), encoding="utf-8")
    print(made)


if __name__ == "__main__":
    main()
