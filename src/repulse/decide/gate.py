"""A gate: which predictions to act upon, which to pass on, which inputs to call foreign, with guarantees."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch

from repulse._version import __version__
from repulse.backbone.fingerprint import weights_of
from repulse.decide import conformal
from repulse.decide.calibration import Calibration, Thresholds, collect, doubt_of
from repulse.decide.decision import Decision
from repulse.decide.deployed import DeployedGate
from repulse.decide.martingales import Bet
from repulse.decide.promise import Promise
from repulse.decide.watch import Watch, resume
from repulse.ensemble import Ensemble
from repulse.errors import CheckpointError, PromiseWarning, expected
from repulse.metrics.inputs import check_share
from repulse.prediction import ClassPrediction, Prediction, RegressionPrediction

if TYPE_CHECKING:
    from repulse.checkpoint import KeptGate
    from repulse.decide.report import Report


@dataclass(frozen=True)
class Basis:
    """What a gate rests on.

    Attributes:
        samples: number of calibration samples.
        data: fingerprint of their inputs and targets.
        date: when it was calibrated, in UTC.
        version: of repulse.
        network: fingerprint of the weights of the network.
        heads: fingerprint of the heads.
        recipe: fingerprint of the recipe that they were fitted by.
    """

    samples: int
    data: str
    date: str
    version: str
    network: str
    heads: str
    recipe: str


class Gate:
    """Decides on inputs: accept the prediction, abstain from it, or call the input foreign.

    Made by `ensemble.gate(data, ...)`. What is promised holds for inputs drawn like the calibration data, whatever the
    network and the data are; of foreign inputs nothing can be promised, and `report` measures it.

    Attributes:
        ensemble: what predicts.
        promise: what holds.
        basis: the data, network, heads and version that it holds for.
        thresholds: what is compared with.
    """

    def __init__(self, ensemble: Ensemble, promise: Promise, rows: Calibration, basis: Basis) -> None:
        self.ensemble, self.promise, self.basis = ensemble, promise, basis
        self.thresholds = Thresholds(promise, rows)

    def __call__(self, x: Any, *, false_discoveries: float | None = None) -> Decision:
        """Decide on inputs.

        Args:
            x: what `ensemble.predict` takes: inputs, a batch, or a loader.
            false_discoveries: call inputs foreign that differ from the calibration data as a batch: of those called
                so, at most this share is expected to be familiar (Benjamini-Hochberg), instead of at most
                `false_alarms` of the familiar ones to be called so. To flag one input among B needs about
                `B / false_discoveries` calibration samples.
        """
        return self.decide(self.ensemble.predict(x), false_discoveries=false_discoveries)

    def decide(self, prediction: Prediction, *, false_discoveries: float | None = None) -> Decision:
        """Decide on predictions that were made already; see `__call__`."""
        prediction = prediction.cpu()
        if isinstance(prediction, ClassPrediction):
            labels, predicted = prediction.labels, prediction.labels
            sets = conformal.class_sets(prediction.probs, self.promise.sets, self.thresholds.set_limit)  # pyright: ignore[reportArgumentType]
        else:
            assert isinstance(prediction, RegressionPrediction)
            labels, predicted = prediction.mean, torch.zeros(len(prediction), dtype=torch.long)
            kind, alpha = self.promise.sets, self.promise.alpha
            sets = conformal.intervals(prediction, kind, alpha, self.thresholds.set_limit)  # pyright: ignore[reportArgumentType]
        score, doubt = prediction.score.double(), doubt_of(prediction)
        p_value = self.thresholds.p_values(score, predicted)
        strange = p_value <= self.promise.false_alarms
        accepted = self.thresholds.accepts(score, doubt.double(), p_value)
        if false_discoveries is not None:
            check_share("false_discoveries", false_discoveries)
            strange = conformal.benjamini_hochberg(p_value, false_discoveries)
            accepted = accepted & ~strange
        return Decision(strange, accepted, p_value, doubt, labels, sets, prediction, self.ensemble.class_names)

    def watch(self, false_alarm: float = 0.01, *, bet: Bet = "switching", window: int = 1000, seed: int = 0) -> Watch:
        """Start to watch over a stream of inputs: `watch.update(batch)`, `watch.alarm`.

        Args:
            false_alarm: probability with which it may ever raise an alarm while nothing changes, however long it runs.
            bet: how it bets on a change: "switching" (at any time, of any share; the default), "mixture" (of powers),
                "jumper" (the simple jumper) or "plugin" (a histogram of what came before).
            window: number of last inputs that records are about.
            seed: of the random numbers that break ties between scores.
        """
        return Watch(self, false_alarm, bet, window, seed)

    def resume(self, path: str | Path) -> Watch:
        """Go on with a watch that was saved, exactly as if it had not stopped."""
        return resume(self, path)

    def report(
        self,
        test: Any,
        ood: Mapping[str, Any] | None = None,
        *,
        names: Mapping[str, Sequence[Any]] | None = None,
        path: str | Path | None = None,
    ) -> Report:
        """Measure on further data whether the promise is held, and what happens to foreign inputs; as one page.

        Args:
            test: labelled data drawn like the calibration data: `(inputs, targets)` or a loader.
            ood: inputs of each out-of-distribution set, or a loader of them, by name.
            names: what stands beside the examples of a set ("test data", or its name in `ood`), such as the text or the
                file of each input, in the order of the data; images need none.
            path: where to write the page.
        """
        from repulse.decide.report import report

        found = report(self, test, ood or {}, names or {})
        if path is not None:
            found.write(path)
        return found

    def deployed(self) -> DeployedGate:
        """Return what it decides as a plain module, which adds to the answers of `ensemble.deploy()`."""
        return DeployedGate(self.thresholds, self.ensemble.heads.count)

    @property
    def is_for_classes(self) -> bool:
        """Whether classes are predicted, or else numbers."""
        return self.promise.sets in get_args(conformal.ClassSets)

    def warnings(self) -> list[str]:
        """Return in words which promise cannot be held, and by how much."""
        if self.promise.risk is None or self.thresholds.chosen is not None:
            return []
        bound, share = self.thresholds.lowest_bound()
        return [
            f"No threshold holds an error rate of {self.promise.risk:.3g} with confidence {1 - self.promise.delta:.3g}:"
            f" the lowest bound that {self.basis.samples:,} samples show is {bound:.3g}, with {share:.0%} accepted. "
            "Everything is abstained from."
        ]

    def lines(self) -> list[str]:
        """Return the promise and what it rests on, in words."""
        promise, held = self.promise, self.thresholds
        low, high = conformal.threshold_range(len(held.reference), promise.false_alarms)
        per = " of each predicted class" if promise.by_class else ""
        where = "" if promise.by_class else f"; score above {held.foreign:.4g}"
        found = [
            f"foreign: at most {promise.false_alarms:.3g} of familiar inputs{per}, on average over calibration data"
            + ("" if promise.by_class else f" ({low:.3g} to {high:.3g} in 95 % of draws)")
            + where
        ]
        if promise.risk is not None and held.chosen is not None:
            (errors, counts, total), i = held.tested, held.chosen
            what = "wrong" if promise.tolerance is None else f"off by more than {promise.tolerance:.4g}"
            found.append(
                f"accept: at most {promise.risk:.3g} of these are {what}, with confidence {1 - promise.delta:.3g}; "
                f"{_doubt(held.doubt)}, {counts[i] / total:.1%} of familiar inputs, of which "
                f"{errors[i]} of {counts[i]:,} were wrong"
            )
        inside = "sets" if self.is_for_classes else "intervals"
        found.append(
            f"{inside} ({promise.sets}): hold the target of at least {1 - promise.alpha:.3g} of familiar inputs"
        )
        about = f"{self.basis.samples:,} samples ({self.basis.data[:12]}), {self.basis.date}"
        return [*found, f"rests on {about}, repulse {self.basis.version}", *(f"! {one}" for one in self.warnings())]

    def __repr__(self) -> str:
        return "\n  ".join(["Gate", *self.lines()])

    def kept(self) -> KeptGate:
        """Return all of it as plain data and tensors, as `ensemble.save` writes it."""
        return {"promise": asdict(self.promise), "basis": asdict(self.basis)}, dict(vars(self.thresholds.rows))


def _doubt(most: float) -> str:
    return "any doubt" if math.isinf(most) else f"doubt up to {most:.3g}"


def calibrate(ensemble: Ensemble, data: Any, promise: Promise, progress: bool = True) -> Gate:
    """Make a gate from labelled data that neither the network nor the heads were fitted to."""
    rows, fingerprint, doubtful = collect(ensemble, data, promise, progress)
    promise.check_samples(len(rows))
    date = datetime.now(UTC).isoformat(timespec="seconds")
    gate = Gate(ensemble, promise, rows, Basis(len(rows), fingerprint, date, __version__, **_made_for(ensemble)))
    for message in (*([doubtful] if doubtful else []), *gate.warnings()):
        warnings.warn(message, PromiseWarning, stacklevel=3)
    return gate


def restore(ensemble: Ensemble, kept: KeptGate) -> Gate:
    """Return the gate that `Gate.kept` described, if it was calibrated for this ensemble."""
    about, columns = kept
    try:
        promise, basis = _read(Promise, about["promise"]), _read(Basis, about["basis"])
        rows = _read(Calibration, columns)
        if {len(column) for column in columns.values()} != {basis.samples}:
            raise ValueError("columns of another length")
    except (KeyError, TypeError, ValueError) as reason:
        raise CheckpointError(expected("the gate that was kept", "as `save` wrote it", reason)) from reason
    for part, digest in _made_for(ensemble).items():
        if getattr(basis, part) != digest:
            wanted = f"for the {part} that it was calibrated with"
            raise CheckpointError(expected("the gate that was kept", wanted, f"another {part}"))
    return Gate(ensemble, promise, rows, basis)


def _read(kind: Any, values: Mapping[str, Any]) -> Any:
    return kind(**{one.name: values[one.name] for one in fields(kind)})


def _made_for(ensemble: Ensemble) -> dict[str, str]:
    """Return what may not change under a gate."""
    recipe = None if ensemble.recipe is None else asdict(ensemble.recipe)
    text = json.dumps(recipe, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return {"network": ensemble.network["weights"], "heads": weights_of(ensemble.heads), "recipe": digest}
