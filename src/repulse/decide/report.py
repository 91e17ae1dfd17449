"""One page on a gate: what it promised and what it did, on further data and on data from elsewhere."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from repulse.backbone.batches import input_batches, labelled_batches, limit_batch_size, size_of
from repulse.decide import conformal
from repulse.decide.calibration import rows_of
from repulse.decide.decision import ACTIONS, Decision
from repulse.decide.pictures import gate_panels, risk_curve
from repulse.errors import DataError, expected
from repulse.evaluation.page import Gallery, Page, Picture, Section
from repulse.evaluation.plots import png_of, to_svg
from repulse.metrics import auroc, risk_coverage

if TYPE_CHECKING:
    from repulse.decide.gate import Gate

TEST = "test data"
"""Name of the set that is drawn like the calibration data."""
_SHARES = ("set", "foreign", "abstain", "accept", "AUROC")
EXAMPLES, AT_ONCE = 8, 512
"""Examples of each decision on each set, drawn at random, and inputs that are predicted at once."""
LONGEST = 100
"""Letters of the name of an example."""


@dataclass(frozen=True)
class Report:
    """What was measured of a gate.

    Attributes:
        realised: on test data: the shares false_alarms, abstained, coverage (accepted) and missed (targets outside
            their set); error (share of wrong predictions among the accepted); size (mean size of sets, or width).
        intervals: for each share but coverage, its 95 % confidence interval (Clopper and Pearson).
        flagged: for each out-of-distribution set the shares foreign, abstain and accept, and the auroc of its scores.
        page: all of it with figures and examples.
    """

    realised: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    flagged: dict[str, dict[str, float]]
    page: Page = field(repr=False)

    def write(self, path: str | Path) -> Path:
        """Write the page."""
        return self.page.write(path)


@dataclass(frozen=True)
class _Example:
    """An input and what was decided on it: its image if it is one, and its name if it has one."""

    image: Tensor | None
    name: str | None
    decision: Decision

    @property
    def row(self) -> tuple[str, ...]:
        """Name, action, label, doubt and p-value."""
        ((*cells, _),) = self.decision.cells()  # sets of many classes are too wide for a table
        return self.name or "", *cells

    @property
    def picture(self) -> Picture:
        """The image above label and p-value."""
        assert self.image is not None
        (record,) = self.decision.records()
        label = record["label"] if "set" in record else f"{record['label']:.4g}"
        (line,) = self.decision.lines()
        alt = line if self.name is None else f"{self.name}: {line}"
        return Picture(png_of(self.image), f"{label} · p {record['p_value']:.3g}", alt)


@dataclass
class _Seen:
    """What is kept of a pass over one set, whose inputs may have names."""

    names: Sequence[Any] | None = None
    columns: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    examples: dict[str, list[_Example]] = field(default_factory=lambda: defaultdict(list))
    met: Counter[str] = field(default_factory=Counter)
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def add(self, inputs: Any, decision: Decision) -> None:
        for name in ("foreign", "accepted", "doubt", "sets"):
            self.columns[name].append(getattr(decision, name))
        self.columns["score"].append(decision.prediction.score.double())
        for i, action in enumerate(decision.action):
            before, self.met[action] = self.met.total(), self.met[action] + 1
            place = int(torch.randint(self.met[action], (1,), generator=self.generator))
            if place >= EXAMPLES:  # so that every input is as likely to be shown as every other
                continue
            example = _Example(_one(inputs, i), self._name(before), decision[i])
            if self.met[action] <= EXAMPLES:
                self.examples[action].append(example)
            else:
                self.examples[action][place] = example

    def _name(self, index: int) -> str | None:
        if self.names is None:
            return None
        if index >= len(self.names):
            raise DataError(expected("names", "one for each input of a set", f"{len(self.names)}, for more inputs"))
        return str(self.names[index])[:LONGEST]

    def __getitem__(self, name: str) -> Tensor:
        return torch.cat(self.columns[name])


def report(gate: Gate, test: Any, ood: Mapping[str, Any], names: Mapping[str, Sequence[Any]]) -> Report:
    """Pass over all sets and put the page together."""
    if not isinstance(ood, Mapping):
        raise DataError(expected("ood", "a mapping from names to inputs or loaders", type(ood).__name__))
    seen, errors, misses = _Seen(names.get(TEST)), [], []
    test = gate.ensemble.backbone.places.labelled(test)
    for inputs, targets in limit_batch_size(labelled_batches(test, "test"), AT_ONCE):
        decision = gate(inputs)
        seen.add(inputs, decision)
        rows = rows_of(decision.prediction, targets, gate.promise)
        errors.append(rows.error > (gate.promise.tolerance or 0))
        misses.append(_missed(decision, targets, gate))
    others = {name: _passed(gate, data, name, names.get(name)) for name, data in ood.items()}
    realised, intervals = _realised(seen, torch.cat(errors), torch.cat(misses), gate)
    flagged = {name: _shares(other, seen) for name, other in others.items()}
    page = _page(gate, seen, torch.cat(errors), others, realised, intervals, flagged)
    return Report(realised, intervals, flagged, page)


def _missed(decision: Decision, targets: Tensor, gate: Gate) -> Tensor:
    if gate.is_for_classes:
        return ~decision.sets.gather(1, targets.cpu().long().unsqueeze(1)).squeeze(1)
    return (targets.cpu() < decision.sets[:, 0]) | (targets.cpu() > decision.sets[:, 1])


def _passed(gate: Gate, data: Any, name: str, names: Sequence[Any] | None) -> _Seen:
    seen = _Seen(names)
    backbone = gate.ensemble.backbone
    data = backbone.places.unlabelled(data)
    batches = ((inputs, None) for inputs in input_batches(data, name, backbone.several))
    for inputs, _ in limit_batch_size(batches, AT_ONCE):
        seen.add(inputs, gate(inputs))
    return seen


def _realised(
    seen: _Seen, wrong: Tensor, missed: Tensor, gate: Gate
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    foreign, accepted, sets = seen["foreign"], seen["accepted"], seen["sets"]
    counted = {
        "false_alarms": (int(foreign.sum()), len(foreign)),
        "abstained": (int((~foreign & ~accepted).sum()), len(foreign)),
        "error": (int(wrong[accepted].sum()), int(accepted.sum())),
        "missed": (int(missed.sum()), len(missed)),
    }
    shares = {name: hits / total if total else float("nan") for name, (hits, total) in counted.items()}
    size = sets.double().sum(dim=1) if gate.is_for_classes else sets[:, 1] - sets[:, 0]
    return (
        {**shares, "coverage": float(accepted.double().mean()), "size": float(size.mean())},
        {name: _interval(*pair) for name, pair in counted.items()},
    )


def _interval(hits: int, total: int) -> tuple[float, float]:
    """Return the two-sided 95 % interval of a share."""
    low = 1 - conformal.clopper_pearson(total - hits, total, 0.025) if total else 0.0
    return low, conformal.clopper_pearson(hits, total, 0.025)


def _shares(other: _Seen, seen: _Seen) -> dict[str, float]:
    foreign, accepted = other["foreign"], other["accepted"]
    found = {"foreign": foreign, "abstain": ~foreign & ~accepted, "accept": accepted}
    shares = {name: float(mask.double().mean()) for name, mask in found.items()}
    return {**shares, "auroc": float(auroc(seen["score"], other["score"]))}


def _page(
    gate: Gate,
    seen: _Seen,
    wrong: Tensor,
    others: Mapping[str, _Seen],
    realised: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]],
    flagged: Mapping[str, Mapping[str, float]],
) -> Page:
    familiar = ~seen["foreign"]
    curve = None
    if bool(familiar.any()) and (gate.is_for_classes or gate.promise.tolerance is not None):
        coverage, risk = risk_coverage(seen["doubt"][familiar], wrong[familiar])
        at = (float(seen["accepted"][familiar].double().mean()), realised["error"])
        curve = risk_curve(coverage.numpy(), risk.numpy(), gate.promise.risk, at)
    scores = {name: other["score"].numpy() for name, other in others.items()}
    figure = gate_panels(curve, seen["score"].numpy(), scores, gate.thresholds.foreign)
    kept = _table(("", "promised", "on test data", "95 % interval"), _promises(gate, realised, intervals))
    elsewhere = [(name, *(f"{100 * v:.1f} %" for v in values.values())) for name, values in flagged.items()]
    sections = [
        Section("Promised and realised", gate.lines(), kept),
        *([Section("Inputs from elsewhere", (), _table(_SHARES, elsewhere))] if flagged else []),
        Section(
            "Scores and risk", (), figure=to_svg(figure), figure_alt="Risk against coverage, and scores of each set"
        ),
        *(_examples(name, one) for name, one in {TEST: seen, **others}.items()),
    ]
    lead = (
        f"Of {len(familiar):,} familiar inputs {realised['coverage']:.1%} are accepted, {realised['error']:.2%} of "
        f"these wrong, and {realised['false_alarms']:.1%} are called foreign by mistake."
    )
    if flagged:
        lead += " Called foreign: " + ", ".join(f"{v['foreign']:.0%} of {name}" for name, v in flagged.items()) + "."
    footer = f"{gate.basis.samples:,} calibration samples, {gate.basis.date}, repulse {gate.basis.version}"
    return Page("What the gate decides", lead, sections, footer)


def _promises(
    gate: Gate, realised: Mapping[str, float], intervals: Mapping[str, tuple[float, float]]
) -> Iterator[tuple[str, ...]]:
    def row(name: str, text: str, promised: str) -> tuple[str, ...]:
        low, high = intervals[name]
        return text, promised, f"{realised[name]:.2%}", f"{low:.2%} to {high:.2%}"

    promise = gate.promise
    yield row("false_alarms", "familiar inputs called foreign", f"at most {promise.false_alarms:.2%}")
    yield row("error", "errors among accepted", "" if promise.risk is None else f"at most {promise.risk:.2%}")
    yield "inputs accepted", "", f"{realised['coverage']:.2%}", ""
    yield row("abstained", "inputs abstained from", "")
    yield row("missed", "targets outside their set", f"at most {promise.alpha:.2%}")
    yield f"mean {'size of sets' if gate.is_for_classes else 'width of intervals'}", "", f"{realised['size']:.3g}", ""


def _table(head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["".join(f"<th>{escape(cell)}</th>" for cell in head)]
    lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _examples(name: str, seen: _Seen) -> Section:
    """Show examples of each decision on a set: as pictures if inputs are images, otherwise as a table."""
    actions = [(action, seen.examples[action]) for action in ACTIONS if seen.examples[action]]
    if all(one.image is not None for _, examples in actions for one in examples):
        galleries = [Gallery(action, [one.picture for one in examples]) for action, examples in actions]
        return Section(f"Examples: {name}", galleries=galleries)
    rows = [one.row for _, examples in actions for one in examples]
    return Section(f"Examples: {name}", table=_table(("input", "action", "label", "doubt", "p"), rows))


def _one(inputs: Any, i: int) -> Tensor | None:
    """Return one input as an image with values from 0 to 1, or None if it is none."""
    if not isinstance(inputs, Tensor) or inputs.ndim != 4 or inputs.shape[1] not in (1, 3) or size_of(inputs) <= i:
        return None
    image = inputs[i].detach().cpu().float()
    low, high = float(image.min()), float(image.max())
    return (image - low) / max(high - low, 1e-12)
