"""A watch over a stream of inputs: has anything changed since calibration, and how sure is that?"""

from __future__ import annotations

import copy
import json
import math
import threading
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from repulse._files import explaining_writes, with_nan, without_nan
from repulse._tensors import read_tensors, write_tensors
from repulse.decide.decision import ACTIONS, Decision
from repulse.decide.estimate import Estimate, Reliability
from repulse.decide.martingales import BETS, Bet, Ranks, threshold_for
from repulse.decide.record import Record
from repulse.errors import CheckpointError, DataError, check_choice, check_positive_integer, expected
from repulse.metrics.inputs import check_share

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from repulse.decide.gate import Gate

Kind = Literal["epistemic", "total"]
KINDS: tuple[Kind, ...] = ("epistemic", "total")
MEANING = {"epistemic": "new kinds of input", "total": "harder inputs"}
REMEMBERED = 20_000
"""Scores that new ones are ranked among, at most, if calibration data alone are not more."""
MOST_RECORDS = 512
"""Records that are kept for the plot; beyond, every second one is dropped."""
ONE_AT_A_TIME = threading.Lock()
"""Held while a watch changes or is saved: servers have threads. One for all watches, so that these can be copied."""


class Watch:
    """Follows a stream of inputs and raises an alarm, by mistake with probability at most `false_alarm`, ever.

    Made by `gate.watch()`. Two martingales bet against the stream: one on epistemic p-values (new kinds of input), one
    on those of total uncertainty (harder inputs). Memory and time per input are constant.

    Attributes:
        gate: what decides.
        false_alarm: bound on the probability of ever raising an alarm while nothing changes.
        bet: how the martingales bet.
        window: number of inputs that records are about.
        seen: inputs so far.
        counts: of each action so far.
        history: records, one per update, thinned out as they get many.
    """

    def __init__(self, gate: Gate, false_alarm: float, bet: Bet, window: int, seed: int) -> None:
        check_share("false_alarm", false_alarm)
        check_choice("bet", bet, BETS)
        check_positive_integer("window", window)
        self.gate, self.false_alarm, self.bet, self.window = gate, false_alarm, bet, window
        rows = gate.thresholds.rows
        columns = {"epistemic": rows.score.numpy(), "total": rows.total.numpy()}
        self._ranks = {kind: Ranks(column, REMEMBERED) for kind, column in columns.items()}
        self._bets = {kind: BETS[bet]() for kind in KINDS}
        self._reliability = Reliability(rows[rows.score <= gate.thresholds.foreign], gate.is_for_classes)
        self._generator = torch.Generator().manual_seed(seed)
        self._last = np.empty((0, 4))  # action, both p-values, doubt
        self._parts, self._elsewhere = 1, dict.fromkeys(KINDS, 0.0)
        self.alarms: dict[Kind, int | None] = dict.fromkeys(KINDS)
        self.seen, self.counts, self.history = 0, dict.fromkeys(ACTIONS, 0), []

    def update(self, x: Any) -> Record:
        """Follow the next inputs, one after another.

        Args:
            x: what `gate` takes, or the decision that it made on them.
        """
        decision = x if isinstance(x, Decision) else self.gate(x)
        with ONE_AT_A_TIME:
            return self._follow(decision)

    def _follow(self, decision: Decision) -> Record:
        count = len(decision)
        uniform = 1 - torch.rand(count, 2, generator=self._generator, dtype=torch.float64).numpy()  # never zero
        scores = {"epistemic": decision.prediction.score, "total": decision.prediction.total}
        p = {
            kind: self._ranks[kind].p_values(scores[kind].double().numpy(), uniform[:, i], self._generator)
            for i, kind in enumerate(KINDS)
        }
        for i in range(count):
            for kind in KINDS:
                self._bets[kind].update(p[kind][i : i + 1])
                if self.alarms[kind] is None and self._evidence(kind) >= self._threshold:
                    self.alarms[kind] = self.seen + i + 1
        actions = np.array([ACTIONS.index(action) for action in decision.action], dtype=np.float64)
        rows = np.stack([actions, p["epistemic"], p["total"], decision.doubt.double().numpy()], axis=1)
        self._last = np.concatenate([self._last, rows])[-self.window :]
        self.seen += count
        for action, number in decision.counts().items():
            self.counts[action] += number
        self.history.append(self.record())
        if len(self.history) > MOST_RECORDS:
            self.history = self.history[::2]
        return self.history[-1]

    @property
    def alarm(self) -> bool:
        """Whether anything has been found to have changed."""
        return self.finding is not None

    @property
    def finding(self) -> str | None:
        """What has changed, in words: "new kinds of input", "harder inputs", or both; None if nothing was found."""
        return " and ".join(MEANING[kind] for kind in KINDS if self.alarms[kind] is not None) or None

    def record(self) -> Record:
        """Return how the stream is doing now."""
        window = len(self._last)
        shares = [float((self._last[:, 0] == i).mean()) if window else math.nan for i in range(3)]
        means = [float(self._last[:, i].mean()) if window else math.nan for i in (1, 2)]
        evidence = [float(self._bets[kind].log_value[0]) / math.log(10) for kind in KINDS]
        familiar = self._last[self._last[:, 0] != ACTIONS.index("foreign"), 3]
        found, measure = self._reliability.estimate(familiar), "absolute error"
        if self.gate.is_for_classes:
            found, measure = Estimate(1 - found.value, 1 - found.high, 1 - found.low), "accuracy"
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return Record(
            now,
            self.seen,
            window,
            *shares,
            *means,
            *evidence,
            alarm=self.finding,
            measure=measure,
            estimate=found.value,
            low=found.low,
            high=found.high,
        )

    def merge(self, other: Watch) -> Watch:
        """Return one watch for two streams that were followed apart, such as those of two servers.

        Evidence of n merged watches must be n times as strong to raise an alarm, which keeps the bound however the
        streams depend on each other (they share calibration data). Inputs that the new watch is given continue this
        one's stream.
        """
        same = isinstance(other, Watch) and other.gate.basis == self.gate.basis
        if not same or other.false_alarm != self.false_alarm:
            got = "another" if isinstance(other, Watch) else type(other).__name__
            raise DataError(expected("other", "a watch of the same gate and false alarm rate", got))
        both = copy.copy(self)
        both._ranks, both._bets = copy.deepcopy(self._ranks), copy.deepcopy(self._bets)
        both._generator = torch.Generator().set_state(self._generator.get_state())
        both._parts, both.window = self._parts + other._parts, self.window + other.window
        both._elsewhere = {kind: max(self._elsewhere[kind], other._evidence(kind)) for kind in KINDS}
        both._last = np.concatenate([other._last, self._last])
        both.seen, both.history = self.seen + other.seen, list(self.history)
        both.counts = {action: self.counts[action] + other.counts[action] for action in ACTIONS}
        reached = {kind: both._evidence(kind) >= both._threshold for kind in KINDS}
        both.alarms = {kind: both.seen if reached[kind] else None for kind in KINDS}
        return both

    @property
    def _threshold(self) -> float:
        return threshold_for(self.false_alarm, len(KINDS) * self._parts)

    def _evidence(self, kind: Kind) -> float:
        """Return the largest log capital there ever was, here or in a watch that was merged."""
        return max(float(self._bets[kind].log_most[0]), self._elsewhere[kind])

    def metrics(self) -> str:
        """Return the present state in the text format that Prometheus and others scrape."""
        now = self.record()
        found = [_metric("inputs_total", "counter", "Inputs since the beginning.", self.counts, "action")]
        shares = {action: getattr(now, action) for action in ACTIONS}
        found.append(_metric("window_share", "gauge", f"Share of the last {now.window} inputs.", shares, "action"))
        means = {"epistemic": now.p_epistemic, "total": now.p_total}
        found.append(_metric("p_value_mean", "gauge", "Mean p-value, one half without drift.", means, "kind"))
        evidence = {"epistemic": now.evidence_epistemic, "total": now.evidence_total}
        found.append(_metric("drift_evidence_log10", "gauge", "Decimal log of the odds for drift.", evidence, "kind"))
        alarms = {kind: int(self.alarms[kind] is not None) for kind in KINDS}
        found.append(_metric("drift_alarm", "gauge", "1 once drift was found.", alarms, "kind"))
        ends = {"estimate": now.estimate, "low": now.low, "high": now.high}
        name = now.measure.replace(" ", "_")
        found.append(_metric(f"estimated_{name}", "gauge", f"Estimated {now.measure}, 95 % interval.", ends, "end"))
        return "".join(found)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot evidence, decisions and the estimate over time; write it to a file if there is a path."""
        from repulse.decide.pictures import watch_panels
        from repulse.evaluation.plots import save_picture

        alarms = [seen for seen in self.alarms.values() if seen is not None]
        figure = watch_panels(self.history, self._threshold / math.log(10), min(alarms, default=None))
        if path is not None:
            save_picture(figure, path)
        return figure

    def save(self, path: str | Path) -> Path:
        """Write all of its state to a file, from which `gate.resume` goes on exactly as if it had not stopped."""
        with ONE_AT_A_TIME, explaining_writes(path):
            return write_tensors(path, *self._state())

    def _state(self) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """Return all of its state, as tensors and as text."""
        arrays = {f"ranks.{kind}": self._ranks[kind].known for kind in KINDS}
        for kind in KINDS:
            arrays |= {f"bets.{kind}.{name}": getattr(self._bets[kind], name) for name in self._bets[kind].kept}
        arrays |= {"last": self._last, "generator": self._generator.get_state().numpy()}
        plain = {name: getattr(self, name) for name in _PLAIN}
        about = {**plain, "basis": asdict(self.gate.basis), "history": [asdict(one) for one in self.history]}
        about["bets"] = {kind: self._bets[kind].seen for kind in KINDS}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        return tensors, {"watch": json.dumps(without_nan(about), allow_nan=False)}

    def __repr__(self) -> str:
        return f"Watch({self.record()})"


_PLAIN = ("false_alarm", "bet", "window", "seen", "counts", "alarms", "_parts", "_elsewhere")


def resume(gate: Gate, path: str | Path) -> Watch:
    """Read a watch that was saved, for the gate it was made by."""
    tensors, said = read_tensors(path)
    try:
        arrays = {name: tensor.numpy().copy() for name, tensor in tensors.items()}
        about = json.loads(said["watch"])
        if about["basis"] != asdict(gate.basis):
            wanted = "a watch of this gate (remove the file to begin anew)"
            raise CheckpointError(expected(str(path), wanted, "that of another one"))
        watch = Watch(gate, about["false_alarm"], about["bet"], about["window"], 0)
        for name in _PLAIN:
            setattr(watch, name, about[name])
        for kind in KINDS:
            watch._ranks[kind].known = arrays[f"ranks.{kind}"]
            watch._bets[kind].seen = about["bets"][kind]
            for name in watch._bets[kind].kept:
                setattr(watch._bets[kind], name, arrays[f"bets.{kind}.{name}"])
        watch._last = arrays["last"]
        watch._generator.set_state(torch.from_numpy(arrays["generator"]))
        watch.history = [Record(**{**with_nan(one), "alarm": one["alarm"]}) for one in about["history"]]
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as reason:
        raise CheckpointError(expected(str(path), "a watch that was saved", f"something else ({reason})")) from reason
    return watch


def _metric(name: str, kind: str, text: str, values: Any, label: str) -> str:
    lines = [f"# HELP repulse_{name} {text}", f"# TYPE repulse_{name} {kind}"]
    for key, value in values.items():
        number = "NaN" if isinstance(value, float) and math.isnan(value) else repr(value)
        lines.append(f'repulse_{name}{{{label}="{key}"}} {number}')
    return "\n".join(lines) + "\n"
