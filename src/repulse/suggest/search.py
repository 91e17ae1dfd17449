"""Fit heads on features of every source and judge them on those of all others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from repulse import metrics
from repulse.backbone.batches import to_device, training_batch
from repulse.backbone.features import Features, compute_features
from repulse.backbone.reading import first_batch
from repulse.ensemble import Ensemble
from repulse.errors import RepulsionError, expected
from repulse.particles.calibrate import network_outputs
from repulse.particles.fit import fit_heads
from repulse.particles.tasks import Task
from repulse.prediction import ClassPrediction, Prediction
from repulse.recipe import Recipe
from repulse.repulsion import FeatureSource, Mixture, Source, choose
from repulse.retrofit import AUTO
from repulse.suggest.suggestion import LEAST_GAIN, NOWHERE, Suggestion, Trial

STRENGTHS = (0.3, 3.0)
"""Factors on the strength that are tried with the best source."""

LAST = "last"
"""What the table calls heads without taps."""

HELD_OUT = 5
"""Without validation data, every fifth row is kept from the heads."""

PER_SOURCE = 2000
"""Samples of a source, at most."""

LIKE_THE_DATA = 0.55
"""AUROC, by heads that repel nowhere, below which samples look like the data and judge nobody."""

FEW_MISTAKES = 20
"""Mistakes below which they say nothing."""

TOO_COSTLY = 2.0
"""Standard errors of the difference in log-likelihood beyond which a setting costs something in distribution."""


Predict = Callable[[Tensor], Prediction]
"""From features to a prediction."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """What is compared.

    Attributes:
        objects: for each candidate, what `retrofit` takes.
        mixtures: for each candidate, the single sources it is made of, and their weights.
        singles: every single source, or given data, by name.
    """

    objects: dict[str, Any]
    mixtures: dict[str, dict[str, float]]
    singles: dict[str, Any]

    @classmethod
    def of(cls, chosen: Source | FeatureSource, given: dict[str, Any], synthetic_share: float) -> Candidates:
        """Take apart what "auto" chooses and what is given; every part is a candidate too."""
        parts = {name: _parts(name, source) for name, source in {AUTO: chosen, **given}.items()}
        whole = sum(weight for _, weight in parts[AUTO].values())
        for name, source in given.items():
            if synthetic_share and not isinstance(source, Source | FeatureSource | Tensor):  # as `retrofit` does
                share = synthetic_share / (1 - synthetic_share) / whole
                parts[name] |= {key: (one, share * weight) for key, (one, weight) in parts[AUTO].items()}
        singles = {key: source for one in parts.values() for key, (source, _) in one.items()}
        alone = {key: s for key, s in singles.items() if key not in parts and isinstance(s, Source | FeatureSource)}
        mixtures = {name: {key: weight for key, (_, weight) in one.items()} for name, one in parts.items()}
        mixtures |= {key: {key: 1.0} for key in alone}
        return cls({AUTO: AUTO, **given, **alone}, mixtures, singles)


@dataclass(eq=False)
class Search:
    """Features of the data and of every source, and the trials on them.

    Attributes:
        recipe: what trials start from.
        fitted: the same, with the number for `tap_scale` that heads without repulsion chose.
        classes: number of classes; None for regression.
        last_layer: weight and bias of the network's last layer.
        widths: how many features heads see without and with taps.
        data: features and targets of the training rows of the heads.
        held_out: features and targets that judge.
        calibrates: whether the network has not seen these.
        candidates: what is compared.
        pools: features of the samples of every single source, by name.
    """

    recipe: Recipe
    fitted: Recipe
    classes: int | None
    last_layer: tuple[Tensor, Tensor]
    widths: tuple[int, int]
    data: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]
    calibrates: bool
    candidates: Candidates
    pools: dict[str, Tensor]
    trials: list[Trial] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        base: Ensemble,
        data: Any,
        validation: Iterable[Any] | None,
        recipe: Recipe,
        given: dict[str, Any],
        folder: Path,
    ) -> Search:
        """Compute all features that trials need.

        Args:
            base: heads without repulsion, whose features are in the folder.
            data: the training data.
            validation: data that judges.
            recipe: what to start from.
            given: further candidates.
            folder: for features.
        """
        backbone, task = base.backbone, base.heads.task
        weight, bias = backbone.weights
        options: Any = {"samples": PER_SOURCE, "seed": recipe.seed, "device": weight.device, "progress": False}

        def features(source: Any) -> Features:
            return compute_features(backbone, data, source, cache=folder, **options)

        rows = _rows(features(None), task)
        if validation is None:
            judges = torch.arange(len(rows[0]), device=rows[0].device) % HELD_OUT == HELD_OUT - 1
            held_out, rows = (rows[0][judges], rows[1][judges]), (rows[0][~judges], rows[1][~judges])
        else:
            found = compute_features(
                backbone, validation, None, cache=folder / "validation", name="validation", **options
            )
            held_out = _rows(found, task)
        with torch.no_grad():
            inputs = to_device(training_batch(first_batch(data, recipe.seed), 0)[0], weight.device)
            candidates = Candidates.of(choose(inputs, backbone).source, given, recipe.synthetic_share)
        pools = {name: _kept(name, features(source).repulsion) for name, source in candidates.singles.items()}
        if len(weight) == 1 and task.class_count == 2:  # one logit z is two, -z/2 and z/2
            weight, bias = (torch.cat([-part / 2, part / 2]) for part in (weight, bias))
        widths = backbone.penultimate, backbone.width
        scale = recipe.tap_scale if base.recipe is None else base.recipe.tap_scale
        rest = (widths, rows, held_out, validation is not None, candidates, pools)
        fixed = recipe.replace(tap_scale=scale)
        return cls(recipe, fixed, task.class_count, (weight.detach(), bias.detach()), *rest)

    def run(self, progress: bool) -> Suggestion:
        """Make the trials: sources, then strengths, then layers."""
        usual, taps = self.recipe.strength_for(self.classes), self.widths[0] < self.widths[1]
        reference = self._fit(None, 0.0, taps)
        total = len(self.candidates.mixtures) + len(STRENGTHS) + taps
        with tqdm(total=total, desc="trials", delay=2.0, disable=not progress, leave=False) as bar:

            def attempt(name: str, strength: float, tapped: bool) -> None:
                predict = self._fit(self.candidates.mixtures[name], strength, tapped)
                self.trials.append(self._judge(name, strength, tapped, predict, reference))
                bar.update()

            self.trials.append(self._judge(NOWHERE, 0.0, taps, reference, reference))
            for name in self.candidates.mixtures:
                attempt(name, usual, taps)
            for factor in STRENGTHS if (best := self._best()).source != NOWHERE else ():
                attempt(best.source, factor * usual, taps)
            if taps and (best := self._best()).source != NOWHERE:
                attempt(best.source, best.strength, False)
        return self._suggestion(self._best(), usual)

    def _suggestion(self, best: Trial, usual: float) -> Suggestion:
        rows = f"{len(self.held_out[0]):,}"
        where = f"{rows} validation samples" if self.calibrates else f"{rows} training samples kept from the heads"
        if best.source == NOWHERE:
            return Suggestion(None, self.recipe, best, self.trials, where)
        recipe = self.recipe.replace(layers="last") if best.layers == LAST else self.recipe
        recipe = recipe if best.strength == usual else recipe.replace(strength=best.strength)
        return Suggestion(self.candidates.objects[best.source], recipe, best, self.trials, where)

    def _best(self) -> Trial:
        able = [t for t in self.trials[1:] if not t.costly and t.score > max(LEAST_GAIN, t.error)]
        return max(able, key=lambda trial: trial.score, default=self.trials[0])

    def _judge(self, name: str, strength: float, taps: bool, predict: Predict, reference: Predict) -> Trial:
        parts = self.candidates.mixtures.get(name, {})
        rows, targets = self.held_out
        inside, plain = predict(rows), reference(rows)
        areas, gains = [], []  # one row per source, one column per held-out row
        for key, pool in self.pools.items():
            usual = placements(plain.of_inputs("epistemic"), reference(pool).of_inputs("epistemic"))
            if float(usual.mean()) < LIKE_THE_DATA:
                continue  # nobody should doubt these
            left = {other: weight for other, weight in parts.items() if other != key}
            if key in parts and not left:
                continue  # heads that repel on nothing else
            judge = predict if key not in parts else self._fit(left, strength, taps)
            known = inside if judge is predict else judge(rows)
            areas.append(placements(known.of_inputs("epistemic"), judge(pool).of_inputs("epistemic")))
            gains.append(areas[-1] - usual)
        wrong = self._mistakes()
        mistakes = [math.nan, math.nan]
        if min(int(wrong.sum()), int((~wrong).sum())) >= FEW_MISTAKES:
            doubts = [1 - p.confidence if isinstance(p, ClassPrediction) else p.total for p in (inside, plain)]
            mistakes = [100 * metrics.auroc(doubt[~wrong], doubt[wrong]) for doubt in doubts]
        lost = (plain.log_likelihood(targets) - inside.log_likelihood(targets)).double()  # pyright: ignore
        error = float(lost.std(correction=0)) / math.sqrt(len(lost))
        nll = -float(inside.log_likelihood(targets).double().mean())  # pyright: ignore
        others = 100 * float(torch.stack(areas).mean()) if areas else math.nan
        gained = 100 * torch.stack(gains).mean(dim=0) if gains else torch.zeros(1)
        gain, spread = float(gained.mean()), float(gained.std(correction=0)) / math.sqrt(len(gained))
        better = mistakes[0] - mistakes[1] if math.isfinite(mistakes[0]) else 0.0
        layers = LAST if not taps else "with taps"
        costly = float(lost.mean()) > TOO_COSTLY * error
        return Trial(name, strength, layers, others, gain, spread, mistakes[0], nll, costly, gain + better)

    def _mistakes(self) -> Tensor:
        """Return which held-out rows the network gets wrong; of a regression the tenth with the largest errors.

        Where a row has several targets there is no one mistake, and none counts.
        """
        rows, targets = self.held_out
        if targets.ndim > 1:
            return torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        outputs = network_outputs(self.last_layer, rows)
        if self.classes is not None:
            return outputs.argmax(dim=1) != targets
        errors = (outputs[:, 0] - targets).abs()
        return errors > errors.quantile(0.9)

    def _fit(self, parts: dict[str, float] | None, strength: float, taps: bool) -> Predict:
        """Fit heads that repel on a mixture; return how they predict."""
        width = self.widths[taps]
        rows, targets = self.data
        heads = fit_heads(
            rows[:, :width],
            targets,
            None if parts is None else _mixed(self.pools, parts)[:, :width],
            self.fitted.replace(strength=strength),
            classes=self.classes,
            start=self.last_layer,
            taps=width - self.widths[0],
            validation=(self.held_out[0][:, :width], self.held_out[1]) if self.calibrates else None,
            progress=False,
        )
        return lambda rows: heads.predict(rows[:, :width])


def placements(inside: Tensor, outside: Tensor) -> Tensor:
    """Return, for each score inside, the share of scores outside above it (ties count half): their mean is the AUROC.

    Examples:
        >>> placements(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 2.0]))
        tensor([1.0000, 0.2500], dtype=torch.float64)
    """
    known = outside.double().sort().values
    sides = [torch.searchsorted(known, inside.double(), right=right) for right in (False, True)]
    return 1 - (sides[0] + sides[1]).double() / (2 * len(known))


def _parts(name: str, source: Any) -> dict[str, tuple[Any, float]]:
    """Return the single sources that a candidate is made of, by name, and their weights."""
    if not isinstance(source, Mixture):
        return {repr(source) if isinstance(source, Source | FeatureSource) else name: (source, 1.0)}
    found: dict[str, tuple[Any, float]] = {}
    for part, weight in zip(source.sources, source.weights, strict=True):
        inner = _parts(repr(part), part)
        whole = sum(share for _, share in inner.values())
        found |= {key: (one, weight * share / whole) for key, (one, share) in inner.items()}
    return found


def _mixed(pools: dict[str, Tensor], parts: dict[str, float]) -> Tensor:
    """Return samples of several sources, in the shares that their weights say."""
    most = max(weight / len(pools[key]) for key, weight in parts.items())
    return torch.cat([pools[key][: max(round(weight / most), 1)] for key, weight in parts.items()])


def _rows(features: Features, task: Task) -> tuple[Tensor, Tensor]:
    """Return features and targets as a fit takes them."""
    targets = features.targets.squeeze(1) if features.targets.shape[1:] == (1,) else features.targets
    if task.kind == "classification" and targets.ndim == 2:  # probabilities of classes
        targets = targets.argmax(dim=1)
    return features.train.float().clone(), targets.clone().to(task.target_dtype or targets.dtype)


def _kept(name: str, samples: Tensor | None) -> Tensor:
    if samples is None or not len(samples):
        raise RepulsionError(expected(f"samples of {name}", "at least one", "none"))
    return samples.float().clone()  # the folder they are mapped from is used again
