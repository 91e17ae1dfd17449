"""The loop: draw a training batch and a repulsion batch, add up the forces, take a step of Adam."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from repulse._mapped import MAX_ELEMENTS
from repulse._progress import progress_bar
from repulse.particles.fast.step import ClosedFormStep, has_closed_form
from repulse.particles.fit_data import FitData, StepDiagnostics, StepResult, identity
from repulse.particles.forces import gaussian_process_prior, mix_driving, repel
from repulse.particles.heads import Particles
from repulse.particles.history import Epoch
from repulse.particles.kernels import Pairs, mean_off_diagonal
from repulse.particles.pool import Pool, batches
from repulse.particles.tasks import Task
from repulse.recipe import Recipe

MIN_EPOCHS, MIN_STEPS = 3, 2000
"""Minimum number of passes over the data, and of steps, if the recipe does not say how many."""

MIN_RECORDED_STEPS = 20
"""Steps of which one record is made, at least, if the recipe does not say how many epochs there are."""


class DivergedError(Exception):
    """Something became non-finite; the particles hold the state of the last good epoch."""

    def __init__(self, epoch: int, epochs: int, history: tuple[Epoch, ...]) -> None:
        super().__init__(f"in epoch {epoch} of {epochs}")
        self.history = history


@dataclass(frozen=True)
class Forces:
    """The two parts of the loss of one step, and what they were computed from."""

    nll: Tensor
    driving: Tensor
    repulsion: Tensor | None
    pairs: Pairs | None
    outputs: Tensor
    repulsion_outputs: Tensor | None


def optimise(
    particles: Particles,
    data: FitData,
    recipe: Recipe,
    progress: bool,
    *,
    autograd: bool = False,
) -> tuple[Epoch, ...]:
    """Fit the particles in place: in closed form where there is one, unless `autograd` is asked for.

    Raises:
        DivergedError: when the loss or a parameter is no longer finite; the particles are then as after the last good
            epoch.
    """
    steps = max(data.size // recipe.batch_size, 1)
    epochs = epochs_of(recipe, steps)
    pool = Pool(data.x, data.y, data.prepare, recipe.batch_size)
    data = replace(data, x=pool.x, y=pool.y, prepare=identity, samples=data.size)
    kind = ClosedFormStep if not autograd and has_closed_form(particles) else AutogradStep
    with torch.inference_mode(kind is ClosedFormStep):  # where operations need not look after gradients
        stepper = kind(particles, data, recipe)  # pyright: ignore[reportArgumentType]
        loop = _FitLoop(stepper, particles.count, pool, data, recipe, steps * epochs)
        passes = 1 if recipe.epochs else math.ceil(MIN_RECORDED_STEPS / steps)  # to record takes as long as a step
        return _run(particles, loop, [min(passes, epochs - i) * steps for i in range(0, epochs, passes)], progress)


def epochs_of(recipe: Recipe, steps: int) -> int:
    """Return the number of passes over data of this many steps."""
    return recipe.epochs or max(MIN_EPOCHS, math.ceil(MIN_STEPS / steps))


def _run(particles: Particles, loop: _FitLoop, epochs: Sequence[int], progress: bool) -> tuple[Epoch, ...]:
    """Run epochs of these many steps, and keep a copy of the particles after each good one."""
    history: list[Epoch] = []
    good = {name: value.clone() for name, value in particles.state_dict().items()}
    name = f"fitting {loop.heads} heads"
    with progress_bar(name=name, total=loop.total, unit="step", show=progress) as bar:
        for epoch, steps in enumerate(epochs, start=1):
            try:
                record = loop.run_epoch(steps, bar)
            except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
                # ssge: NaN has no eigenvectors
                record = None
            if record is None or not _finite(particles):
                particles.load_state_dict(good)
                raise DivergedError(epoch, len(epochs), tuple(history))
            for kept, value in zip(good.values(), particles.state_dict().values(), strict=True):
                kept.copy_(value)
            history.append(record)
            bar.set_postfix(epoch=f"{epoch}/{len(epochs)}", nll=f"{record.nll:.4f}", refresh=False)
    return tuple(history)


class _FitLoop:
    """Batches and step counter of one fit."""

    def __init__(
        self,
        stepper: ClosedFormStep | AutogradStep,
        heads: int,
        pool: Pool,
        data: FitData,
        recipe: Recipe,
        total: int,
    ) -> None:
        self.stepper, self.heads, self.data, self.recipe = stepper, heads, data, recipe
        self.total, self.step = total, 0
        self.strength = recipe.strength_for(data.task.class_count)
        self.batches = pool.batches(torch.Generator().manual_seed(recipe.seed))
        self.repulsion_batches = None
        if data.repulsion is not None:
            size = len(data.repulsion)
            own = torch.Generator().manual_seed(recipe.seed + 1)  # so that repelling does not reorder the training data
            self.repulsion_batches = batches(size, recipe.repulsion_batch_size, own, data.x.device)

    def run_epoch(self, steps: int, bar: tqdm) -> Epoch | None:
        """Take the steps of one epoch; return None if its loss is not finite."""
        nll, repulsion = 0.0, 0.0  # tensors, if the steps say tensors: then nothing waits for a device
        for step in range(1, steps + 1):
            result = self.take_step(measure=step == steps)
            nll = nll + result.nll
            repulsion = repulsion + (0.0 if result.repulsion is None else result.repulsion)
            bar.update()
        if not math.isfinite(float(nll + repulsion)):
            return None
        none = result.repulsion is None  # pyright: ignore[reportPossiblyUnboundVariable]
        mean_repulsion = None if none else repulsion / (steps * self.heads)
        return _record(self.data.task, result.measured, nll / steps, mean_repulsion)  # pyright: ignore

    def take_step(self, *, measure: bool) -> StepResult:
        """Take one step, at the current learning rate and strength."""
        recipe, progress = self.recipe, self.step / self.total
        lr = recipe.lr * 0.5 * (1 + math.cos(math.pi * progress)) if recipe.decay == "cosine" else recipe.lr
        strength = self.strength * ramp(recipe.schedule, progress)
        repulsion_batch = None if self.repulsion_batches is None else next(self.repulsion_batches)
        self.step += 1
        return self.stepper.step(next(self.batches), repulsion_batch, lr, strength, measure=measure)


class AutogradStep:
    """Takes steps of any particles, in place, by autograd of the written loss."""

    def __init__(self, particles: Particles, data: FitData, recipe: Recipe) -> None:
        self.particles, self.data, self.recipe = particles, data, recipe
        parameters = list(particles.parameters())
        fused = all(p.device.type in ("cpu", "cuda") for p in parameters)
        self.optimizer = torch.optim.Adam(parameters, lr=recipe.lr, fused=fused)

    def step(
        self, batch: Tensor, repulsion_batch: Tensor | None, lr: float, strength: float, *, measure: bool
    ) -> StepResult:
        """Take a step of Adam on the samples with indices `batch` and the repulsion samples with `repulsion_batch`."""
        data = self.data
        x, y = data.x[batch], data.y[batch]
        r = None if data.repulsion is None or repulsion_batch is None else data.repulsion[repulsion_batch]
        forces = compute_forces(self.particles, data, self.recipe, x, y, r)
        self.optimizer.zero_grad()
        ratio = backward(self.particles, forces, strength, self.recipe, measure=measure)
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.step()
        measured = None
        if measure:
            bandwidth, k = (None, None) if forces.pairs is None else (forces.pairs.bandwidth, forces.pairs.k)
            measured = StepDiagnostics(ratio, bandwidth, k, forces.outputs, forces.repulsion_outputs)
        repulsion = None if forces.repulsion is None else forces.repulsion.detach()
        return StepResult(forces.nll.detach().mean(), repulsion, measured)


def compute_forces(
    particles: Particles,
    data: FitData,
    recipe: Recipe,
    x: Tensor,
    y: Tensor,
    r: Tensor | None,
) -> Forces:
    """Compute likelihood and prior on the training batch, and repulsion on the repulsion batch, for one step."""
    repulsion_outputs = None if r is None else particles(r)
    repulsion, pairs = None, None
    if particles.count > 1 and recipe.strength != 0 and recipe.space != "none":
        if recipe.space == "parameters":
            compared, how = particles.vectors(), "jointly"
        else:
            compared = data.task.compared(repulsion_outputs, recipe.on)  # pyright: ignore[reportArgumentType]
            how = recipe.compare
        repulsion, pairs = repel(compared, recipe.rule, recipe.kernel, recipe.bandwidth, how)

    outputs = particles(x)
    mixing = None
    if pairs is not None and recipe.rule == "svgd" and recipe.space == "function":
        mixing = pairs.k if pairs.k.ndim == 2 else pairs.k.mean(dim=0)
    driven = outputs if mixing is None else mix_driving(outputs, mixing)
    nll = data.task.nll(driven, y)
    # The exact weight of the prior relative to a mean log-likelihood is 1/N.
    if recipe.prior == "function":
        at, features = (outputs, x) if r is None else (repulsion_outputs, r)
        at = at if mixing is None else mix_driving(at, mixing)  # pyright: ignore[reportArgumentType]
        prior = gaussian_process_prior(at, features, recipe.prior_std)  # pyright: ignore[reportArgumentType]
    else:
        values = list(particles.parameters()) if mixing is None else [mix_driving(particles.vectors(), mixing)]
        prior = torch.stack([value.square().sum() for value in values]).sum() / (2 * recipe.prior_std**2)
    driving = nll.sum() + prior / data.size
    return Forces(nll, driving, repulsion, pairs, outputs, repulsion_outputs)


def backward(
    particles: Particles,
    forces: Forces,
    strength: float,
    recipe: Recipe,
    *,
    measure: bool = False,
) -> float | None:
    """Leave minus the velocity of every particle in the gradients of its parameters.

    With `measure`, returns the size of the repulsive part of it relative to the driving part.
    """
    mixed = forces.pairs is not None and recipe.rule == "svgd" and recipe.space == "parameters"
    if forces.repulsion is None:
        forces.driving.backward()
        return None
    if not (mixed or measure):
        (forces.driving + strength * forces.repulsion).backward()
        return None
    forces.driving.backward(retain_graph=True)
    if mixed:
        particles.mix_gradients(forces.pairs.k)  # pyright: ignore[reportOptionalMemberAccess]
    driving = _gradient(particles)
    (strength * forces.repulsion).backward()
    if not measure:
        return None
    norms = torch.stack([(_gradient(particles) - driving).norm(), driving.norm()]).double()
    return float(norms[0] / norms[1].clamp_min(1e-30))


def _gradient(particles: Particles) -> Tensor:
    return torch.cat([p.grad.flatten() for p in particles.parameters() if p.grad is not None])


def ramp(schedule: str, t: float) -> float:
    """Return the factor of the strength at the fraction `t` of the fit.

    Examples:
        >>> [ramp("linear", t) for t in (0.0, 0.25, 0.5, 0.75)]
        [0.0, 0.5, 1.0, 1.0]
    """
    if schedule == "linear":
        return min(2 * t, 1.0)
    if schedule == "tanh":
        return math.tanh((1.3 * t) ** 10)
    if schedule == "cyclic":
        return (5 * t % 1.0) ** 10
    return 1.0


@torch.no_grad()
def _record(task: Task, last: StepDiagnostics, nll: Tensor | float, repulsion: Tensor | float | None) -> Epoch:
    elsewhere = last.repulsion_outputs
    return Epoch(
        nll=float(nll),
        repulsion=None if repulsion is None else float(repulsion),
        force_ratio=last.ratio,
        bandwidth=None if last.bandwidth is None else float(last.bandwidth.mean()),
        kernel=None if last.k is None else float(mean_off_diagonal(last.k)),
        epistemic_train=_epistemic(task, last.outputs),
        epistemic_repulsion=None if elsewhere is None else _epistemic(task, elsewhere),
    )


def _epistemic(task: Task, outputs: Float[Tensor, "n B O"]) -> float:
    """Compute the mean epistemic uncertainty; with many classes, of a few samples at once."""
    parts = outputs.split(max(MAX_ELEMENTS // outputs[:, 0].numel(), 1), dim=1)
    return float(torch.cat([task.predict(part).epistemic for part in parts]).mean())


@torch.no_grad()
def _finite(particles: Particles) -> bool:
    """Check whether all parameters are finite: zero times anything else is NaN, and one sum finds it faster."""
    parts = (part for p in particles.parameters() for part in p.flatten().split(MAX_ELEMENTS))
    return bool(torch.stack([(0 * part).sum() for part in parts]).sum() == 0)
