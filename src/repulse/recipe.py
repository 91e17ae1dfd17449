"""Recipe: everything that decides a fit, in one frozen, JSON-friendly place.

The `Literal` types are the one list of choices: editors complete them, and every check reads them.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from repulse.errors import RecipeError, check_choice, check_number, check_positive_integer, expected

TaskName = Literal["classification", "multilabel", "regression"]
Space = Literal["function", "parameters", "none"]
OutputSpace = Literal["probabilities", "logits", "centred_logits", "log_probabilities"]
Comparison = Literal["jointly", "pointwise"]
Rule = Literal["kde", "blob", "sge", "ssge", "svgd"]
Kernel = Literal["rbf", "laplace", "l2", "imq"]
Bandwidth = Literal["median", "median_offdiagonal"]
Strength = Literal["auto"]
Schedule = Literal["constant", "linear", "tanh", "cyclic"]
Prior = Literal["weights", "function"]
Init = Literal["random", "pretrained"]
Decay = Literal["cosine", "none"]
Layers = Literal["auto", "last"]
TapScale = Literal["auto"]
CentreOn = Literal["network", "heads"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to fit, how the heads repel each other, and how the fit is run.

    The heads minimise, summed over the heads,

        mean negative log-likelihood + |theta|^2 / (2 N prior_std^2) + strength * log sum_j k(x_i, x_j)

    where `x_i` is what `space` and `on` say: the outputs of head i on a batch of repulsion samples, or its parameters.
    `Recipe()` is what was measured to work without tuning (docs/defaults.md).

    Attributes:
        heads: number of heads (particles).
        hidden: widths of hidden layers of each head; `()` means linear heads, as in the paper.
        task: "classification" (one class per input), "multilabel" (several labels at once, each 0 or 1) or "regression"
            (one number, or several in columns).
        noise: regression only: the known noise standard deviation, in units of the targets, of all targets or of each
            in a tuple. None measures it on
            validation rows, or assumes it from the training inputs; heads that are not around a network (`centre`)
            predict a variance for every input instead.
        space: where heads repel: "function" (their outputs on the repulsion samples), "parameters", or "none".
        on: which function of the outputs: "probabilities", "logits", "centred_logits" (mean over classes removed,
            which softmax ignores anyway) or "log_probabilities". Regression always repels on the mean.
        compare: "jointly" (one kernel over all outputs on a batch, as in the paper) or "pointwise" (one kernel for each
            repulsion sample, averaged, so that heads must differ on every one and not only where it is easiest).
        rule: the estimate of the density the heads run away from: "kde", "blob", "sge", "ssge" or "svgd".
        kernel: "rbf", "laplace" (L1 distance), "l2" (distance not squared) or "imq".
        bandwidth: "median" (over all pairs, a head with itself included), "median_offdiagonal", or a number, which is
            taken per coordinate: `exp(-mean((x_i - x_j)^2) / bandwidth)` for the rbf kernel.
        strength: weight of the repulsion relative to the mean log-likelihood. The exact posterior has 1/N, which no
            training of realistic length can see; 0.001 to 1 is the useful range. "auto" is 0.03 for up to ten classes
            and `0.03 (10 / classes)^1.5` for more, because with many classes it is cheap to disagree and the same
            strength does harm; for regression it is 0.3, or 0.03 for heads without a network. The recipe of fitted
            heads holds the number.
        schedule: strength over the fit: "constant", "linear" (grows over the first half), "tanh" or "cyclic".
        prior: "weights" (Gaussian on the parameters) or "function" (the Gaussian process that linear heads with that
            weight prior are, scored on the repulsion samples).
        prior_std: standard deviation of the weights under the prior, for features scaled to unit size.
        init: "random" (independent, as `torch.nn.Linear`) or "pretrained" (the network's last layer plus noise).
        epochs: passes over the training features; None for at least 3 passes and at least 2000 steps.
        lr: learning rate of Adam.
        decay: "cosine" (learning rate to zero over the fit) or "none".
        batch_size: training samples per step.
        repulsion_batch_size: repulsion samples per step.
        repulsion_samples: maximum number of repulsion samples of which `retrofit` computes features (the fit cycles
            through them): the first of a loader; a source draws up to eight from each training sample.
        layers: what heads see of the network, in `retrofit`: "auto" (the penultimate features, and taps: means and
            standard deviations of the channels of earlier stages), "last" (the penultimate features alone, as in the
            paper), or the names of the modules to tap.
        whiten: whether heads also see all features along the principal axes of the training data, each with the same
            small standard deviation: an input that leaves the data in any direction is then far away. Costs nothing at
            prediction, for it is folded into the heads.
        tap_scale: standard deviation of the whitened features (or, without whitening, of the taps), relative to
            penultimate features of unit size. Weights have one prior, so this decides how much of a prediction they
            may carry. "auto" is 1 where validation labels decide how much of the prediction is the heads', and for
            regression, and 0.2 elsewhere.
        distances: whether heads also see how far features are from the training data, as a few numbers that they
            could not compute themselves (logarithms of mean squares along principal axes); needs `whiten`, and the
            network as the centre.
        centre: "network" lets heads carry nothing but disagreement: the mean prediction is the network's, calibrated on
            validation labels, and fades with the distance from the data. "heads" leaves heads as they were fitted.
        synthetic_share: share of the repulsion samples that `retrofit` makes itself where other data is given, also of
            few samples.
        seed: of everything random in the fit.
    """

    heads: int = 10
    hidden: tuple[int, ...] = ()
    task: TaskName = "classification"
    noise: float | tuple[float, ...] | None = None
    space: Space = "function"
    on: OutputSpace = "probabilities"
    compare: Comparison = "pointwise"
    rule: Rule = "kde"
    kernel: Kernel = "rbf"
    bandwidth: Bandwidth | float = "median"
    strength: Strength | float = "auto"
    schedule: Schedule = "constant"
    prior: Prior = "weights"
    prior_std: float = 0.5
    init: Init = "random"
    epochs: int | None = None
    lr: float = 7e-4
    decay: Decay = "cosine"
    batch_size: int = 128
    repulsion_batch_size: int = 128
    repulsion_samples: int = 10_000
    layers: Layers | tuple[str, ...] = "auto"
    whiten: bool = True
    tap_scale: TapScale | float = "auto"
    distances: bool = True
    centre: CentreOn = "network"
    synthetic_share: float = 0.5
    seed: int = 0

    def __new__(cls, *_: Any, **settings: Any) -> Recipe:
        """Refuse a setting that there is none of, before Python does in its own words."""
        for name in settings:
            check_choice("a setting of `Recipe`", name, cls.__dataclass_fields__)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name in ("heads", "batch_size", "repulsion_batch_size", "repulsion_samples"):
            check_positive_integer(name, getattr(self, name))
        if self.epochs is not None:
            check_positive_integer("epochs", self.epochs)
        object.__setattr__(self, "hidden", _as_widths(self.hidden))
        object.__setattr__(self, "layers", _as_layers(self.layers))
        for name, known in _CHOICES.items():
            check_choice(name, getattr(self, name), known)
        if isinstance(self.bandwidth, str):
            check_choice("bandwidth", self.bandwidth, get_args(Bandwidth))
        else:
            check_number("bandwidth", self.bandwidth, positive=True)
        if isinstance(self.strength, str):
            check_choice("strength", self.strength, get_args(Strength))
        else:
            check_number("strength", self.strength, positive=False)
        for name in ("prior_std", "lr"):
            check_number(name, getattr(self, name), positive=True)
        if isinstance(self.tap_scale, str):
            check_choice("tap_scale", self.tap_scale, get_args(TapScale))
        else:
            check_number("tap_scale", self.tap_scale, positive=True)
        for name in ("whiten", "distances"):
            if not isinstance(getattr(self, name), bool):
                raise RecipeError(expected(name, "True or False", repr(getattr(self, name))))
        check_number("synthetic_share", self.synthetic_share, positive=False)
        if self.synthetic_share >= 1:
            raise RecipeError(expected("synthetic_share", "at least 0 and below 1", repr(self.synthetic_share)))
        if isinstance(self.noise, list):
            object.__setattr__(self, "noise", tuple(self.noise))
        if self.noise is not None:
            for noise in self.noise if isinstance(self.noise, tuple) else (self.noise,):
                check_number("noise", noise, positive=True)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63 - 1:
            raise RecipeError(expected("seed", "an integer from 0 to 2^63 - 2", repr(self.seed)))
        if self.prior == "function" and self.hidden:
            raise RecipeError(expected("prior", "'weights' for heads with hidden layers", "'function'"))
        if self.init == "pretrained" and self.hidden:
            raise RecipeError(expected("init", "'random' for heads with hidden layers", "'pretrained'"))

    def strength_for(self, classes: int | None) -> float:
        """Return the strength as a number, given the number of classes (None for regression).

        Examples:
            >>> Recipe().strength_for(10), Recipe().strength_for(1000), Recipe(strength=0.1).strength_for(1000)
            (0.03, 3e-05, 0.1)
        """
        if isinstance(self.strength, str):
            return 0.3 if classes is None else 0.03 * min(1.0, 10 / classes) ** 1.5
        return self.strength

    def replace(self, **changes: Any) -> Recipe:
        """Return a copy with some fields changed.

        Examples:
            >>> Recipe().replace(heads=5).heads
            5
        """
        for name in changes:
            check_choice("field", name, [field.name for field in dataclasses.fields(self)])
        return dataclasses.replace(self, **changes)


_CHOICES = {name: get_args(hint) for name, hint in get_type_hints(Recipe).items() if get_origin(hint) is Literal}
"""The names that each field takes which takes nothing but names."""


def _as_widths(value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple | list):
        raise RecipeError(expected("hidden", "a tuple of layer widths", repr(value)))
    for width in value:
        check_positive_integer("hidden", width)
    return tuple(value)


def _as_layers(value: object) -> str | tuple[str, ...]:
    known: tuple[str, ...] = get_args(Layers)
    if isinstance(value, str) and value in known:
        return value
    if not isinstance(value, tuple | list) or not all(isinstance(name, str) for name in value):
        near = difflib.get_close_matches(value, known, n=1) if isinstance(value, str) else []
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise RecipeError(expected("layers", "one of 'auto', 'last', or a list of module names", repr(value)) + hint)
    return tuple(value)


_PAPER = Recipe(
    layers="last",
    whiten=False,
    tap_scale=0.2,
    distances=False,
    centre="heads",
    synthetic_share=0.0,
    compare="jointly",
    strength=0.03,
    lr=1e-3,
)

LL_E = _PAPER.replace(space="none")
"""Last-layer ensemble: independent heads, no repulsion."""

RLL_E = _PAPER.replace(space="parameters")
"""Repulsive last-layer ensemble: the heads' parameters repel each other."""

FS_RLL_E = _PAPER
"""Function-space repulsive last-layer ensemble: the heads' predictions on the repulsion samples repel each other.

The paper's form: one kernel over the whole repulsion batch, heads that see the penultimate features alone.
"""

NAMED = {"LL-E": LL_E, "RLL-E": RLL_E, "fs-RLL-E": FS_RLL_E, "repulse": Recipe()}
"""Recipes as tables name them."""

PAPER_TRAINING = {"epochs": 30, "lr": 1e-4, "decay": "none", "strength": 0.1, "prior_std": 1.0}
"""How the paper trained its heads: `FS_RLL_E.replace(**PAPER_TRAINING)`.

The text gives epochs, learning rate and batch size; the strength is read off the name of one of its result files (of
another it is 0.001, which is what a sweep chooses for a short training, docs/results/index.md), and the prior is our
reading. Features are scaled here, of which the paper says nothing.
"""


def check_recipe(recipe: Recipe | None) -> Recipe:
    """Return the recipe, or the default one if there is none."""
    if recipe is not None and not isinstance(recipe, Recipe):
        raise RecipeError(expected("recipe", "a `Recipe` or None", type(recipe).__name__))
    return recipe or Recipe()
