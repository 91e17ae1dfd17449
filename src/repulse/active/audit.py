"""Which labels to look at again: probably wrong, ambiguous, out-of-distribution, or copies of each other.

The quality of a label is the probability that the ensemble gives it. Wrong, in all probability, are those of least
quality among the labels that are not predicted, as many as confident learning (Northcutt et al., 2021) estimates to be
wrong. To ask the labels of nearest neighbours as well ranked wrong labels worse.
"""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repulse._files import write_whole
from repulse._mapped import row_chunks
from repulse.backbone.features import compute_features
from repulse.errors import DataError, expected
from repulse.evaluation.page import Gallery, Page, Section
from repulse.kept import KeptFeatures
from repulse.particles.heads import Heads
from repulse.prediction import ClassPrediction, Prediction

if TYPE_CHECKING:
    from repulse.ensemble import Ensemble

FLAGGED = 0.95
"""Quantile of what is usual, above which an input is ambiguous (aleatoric) or out-of-distribution (epistemic)."""

COPY = 1e-3
"""Distance relative to the usual one, up to which two inputs are copies."""

COLUMNS = ("input", "label", "predicted", "quality", "found")
"""Of tables."""

MAX_ROWS = 2000
"""Inputs whose neighbours are searched at once."""


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """What was found about each input, in the order of the data.

    Attributes:
        targets: labels.
        labels: what the ensemble predicts.
        quality: of the labels, from 0 (surely wrong) to 1.
        mislabelled: whether the label is wrong in all probability.
        ambiguous: whether all heads doubt.
        foreign: whether the heads disagree.
        copy_of: index of the nearest other input if it is a copy, -1 otherwise.
        class_names: names of the classes, if they are known.
        keys: what each input is called in tables, such as its file; its index if not known.
    """

    targets: Int[Tensor, " N"]
    labels: Int[Tensor, " N"]
    quality: Float[Tensor, " N"]
    mislabelled: Bool[Tensor, " N"]
    ambiguous: Bool[Tensor, " N"]
    foreign: Bool[Tensor, " N"]
    copy_of: Int[Tensor, " N"]
    class_names: tuple[str, ...] | None = None
    keys: Sequence[Any] | None = None

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def order(self) -> Int[Tensor, " N"]:
        """Indices of all inputs, the most suspect label first."""
        return self.quality.argsort(stable=True)

    def name(self, label: int) -> str:
        """Return the name of a class."""
        return str(label) if self.class_names is None else self.class_names[label]

    def key(self, index: int) -> str:
        """Return what an input is called."""
        return str(index if self.keys is None else self.keys[index])

    def rows(self, most: int | None = 20) -> Iterator[tuple[str, str, str, float, str]]:
        """Iterate over the most suspect inputs: key, label, prediction, quality of the label, findings in words."""
        words = {"mislabelled": self.mislabelled, "ambiguous": self.ambiguous, "foreign": self.foreign}
        for i in self.order[:most].tolist():
            found = [name for name, flags in words.items() if flags[i]]
            found += [f"copy of {self.key(int(self.copy_of[i]))}"] if self.copy_of[i] >= 0 else []
            label, guess = self.name(int(self.targets[i])), self.name(int(self.labels[i]))
            yield self.key(i), label, guess, float(self.quality[i]), ", ".join(found)

    @property
    def counts(self) -> dict[str, int]:
        """How many inputs have which finding."""
        return {
            "inputs": len(self),
            "mislabelled": int(self.mislabelled.sum()),
            "ambiguous": int(self.ambiguous.sum()),
            "foreign": int(self.foreign.sum()),
            "copies": int((self.copy_of >= 0).sum()),
        }

    def __str__(self) -> str:
        rows = list(self.rows())
        wide = max(len(key) for key, *_ in (*rows, ("input",)))
        lines = [", ".join(f"{count:,} {name}" for name, count in self.counts.items())]
        lines += [f"{'input':<{wide}}  {'label':<16}{'predicted':<16}{'quality':>8}  found"]
        lines += [
            f"{key:<{wide}}  {label[:15]:<16}{guess[:15]:<16}{q:>8.3f}  {found}" for key, label, guess, q, found in rows
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Audit({', '.join(f'{count:,} {name}' for name, count in self.counts.items())})"

    def table(self, most: int = 100) -> str:
        """Return the most suspect inputs as an HTML table."""
        lines = ["".join(f"<th>{name}</th>" for name in COLUMNS)]
        for key, label, guess, q, found in self.rows(most):
            lines.append("".join(f"<td>{html.escape(cell)}</td>" for cell in (key, label, guess, f"{q:.3f}", found)))
        return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"

    def csv(self, path: str | Path) -> Path:
        """Write a table of all inputs, the most suspect label first."""
        written = io.StringIO(newline="")
        writer = csv.writer(written)
        writer.writerow(COLUMNS)
        writer.writerows((*row[:3], f"{row[3]:.6f}", row[4]) for row in self.rows(None))
        return write_whole(path, written.getvalue())

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(str(self).splitlines()[0])}</p>{self.table(20)}"

    def page(self, path: str | Path, most: int = 200, galleries: Sequence[Gallery] = ()) -> Path:
        """Write one page with the counts and the most suspect inputs.

        Args:
            path: of the page.
            most: inputs that it lists.
            galleries: rows of pictures to show above the list.
        """
        lead = f"{self.counts['mislabelled']:,} of {len(self):,} labels are wrong in all probability."
        sections = [
            Section("Findings", [str(self).splitlines()[0]]),
            *([Section("Look at these first", galleries=galleries)] if galleries else []),
            Section("The most suspect labels", table=self.table(most)),
        ]
        return Page("Audit of the labels", lead, sections).write(path)


@torch.no_grad()
def audit(ensemble: Ensemble, data: Iterable[Any] | None = None, *, progress: bool = True) -> Audit:
    """Judge the labels of data: training data or any other.

    Args:
        ensemble: a classifier, made by `retrofit`, or saved with `features=True`.
        data: batches of `(inputs, targets)`; the training data itself, from its kept features, if not given.
        progress: show a bar when the pass of the network takes more than two seconds.
    """
    ensemble.check_one_output("audit")
    kept, heads = ensemble.required_features("audit"), ensemble.heads
    if heads.task.class_count is None:
        raise DataError(expected("the ensemble, for `audit`,", "a classifier", "one that predicts a number"))
    features, targets = kept.train, kept.targets
    if data is not None:
        device = next(heads.parameters()).device
        found = compute_features(ensemble.backbone, data, None, device=device, progress=progress)
        features, targets = found.train, found.targets
    wanted = f"class indices from 0 to {heads.task.class_count - 1}, one per input"
    if targets.is_floating_point() or targets.ndim != 1:
        raise DataError(expected("targets", wanted, f"{targets.dtype} of shape {tuple(targets.shape)}"))
    if int(targets.min()) < 0 or int(targets.max()) >= heads.task.class_count:
        raise DataError(expected("targets", wanted, f"from {int(targets.min())} to {int(targets.max())}"))
    prediction = Prediction.cat([heads.predict(part.float()).cpu() for part in row_chunks(features)])
    assert isinstance(prediction, ClassPrediction)
    targets = targets.cpu().long()
    own = data is None
    copies = _copies(features, kept, heads) if own else torch.full_like(targets, -1)
    chosen = prediction.probs.gather(1, targets.unsqueeze(1)).squeeze(1)
    usual = _usual(prediction if own else None, heads, kept)
    return Audit(
        targets,
        prediction.labels,
        chosen,
        _probably_wrong(prediction.probs, targets),
        prediction.aleatoric > usual.aleatoric.quantile(FLAGGED),
        prediction.epistemic > usual.epistemic.quantile(FLAGGED),
        copies,
        ensemble.class_names,
    )


def _probably_wrong(probs: Float[Tensor, "N K"], targets: Int[Tensor, " N"]) -> Bool[Tensor, " N"]:
    """Return the most suspect labels, as many as confident learning estimates to be wrong.

    An input is a sure one where a class is at least as probable as it is, on average, for inputs of that label. The
    share of sure inputs of a label that are sure of another class is taken for that of all inputs of the label.
    """
    quality, predicted = probs.gather(1, targets.unsqueeze(1)).squeeze(1), probs.argmax(dim=1)
    counts = targets.bincount(minlength=probs.shape[1])
    totals = torch.zeros(probs.shape[1]).index_add_(0, targets, quality)
    thresholds = torch.where(counts > 0, totals / counts.clamp_min(1), torch.inf)
    best = torch.where(probs >= thresholds, probs, -1.0).max(dim=1)
    sure = best.values > 0
    other = sure & (best.indices != targets) & (predicted != targets)
    sure_of = targets[sure].bincount(minlength=probs.shape[1])
    share = targets[other].bincount(minlength=probs.shape[1]) / sure_of.clamp_min(1)
    suspects = (predicted != targets).nonzero().squeeze(1)
    worst = suspects[quality[suspects].argsort(stable=True)[: round(float((share * counts).sum()))]]
    return torch.zeros_like(targets, dtype=torch.bool).index_fill_(0, worst, True)


def _copies(features: Tensor, kept: KeptFeatures, heads: Heads) -> Int[Tensor, " N"]:
    """Return the nearest other training input of each if it is a copy, -1 otherwise."""
    from repulse.decide.neighbours import Neighbours

    search, copies = Neighbours.of(kept, heads), []
    for begin in range(0, len(features), MAX_ROWS):
        rows = features[begin : begin + MAX_ROWS].float()
        _, found = search.nearest(rows, min(2, len(kept.train)))
        itself = found == torch.arange(begin, begin + len(found)).unsqueeze(1).to(found)
        itself[:, -1] |= ~itself.any(dim=1)  # among many copies it may not be listed: leave out the last
        other = found[~itself].view(len(found), -1)
        if not other.shape[1]:
            return torch.full((len(features),), -1)
        away = search.whitened(rows - kept.train[other[:, 0]].float())  # exactly zero for copies
        copies.append(torch.where(away.norm(dim=1) / search.usual <= COPY, other[:, 0], -1))
    return torch.cat(copies).cpu()


def _usual(own: ClassPrediction | None, heads: Heads, kept: KeptFeatures) -> Prediction:
    """Return predictions of data that is known to be ordinary: validation data, or the training data."""
    if kept.validation is None and own is not None:
        return own
    rows = kept.train if kept.validation is None else kept.validation
    return Prediction.cat([heads.predict(part.float()).cpu() for part in row_chunks(rows)])
