"""Forces as losses: what a training loop adds to its likelihood so that autograd moves the particles apart.

Each rule says in closed form where a particle should go; `repulsion` is a scalar whose gradient is minus that
direction, so that it can be added to any loss and pulled back through whatever produced the outputs. The likelihood is
pulled back through the training batch and the repulsion through the repulsion batch, because each is computed there.
"""

from __future__ import annotations

import math
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.errors import DataError, check_choice, check_dense, check_number, expected
from repulse.particles.kernels import Pairs, evaluate
from repulse.particles.rules import DIRECTIONS
from repulse.recipe import Bandwidth, Comparison, Kernel, OutputSpace, Rule

LARGEST, LARGEST_DOUBLE = 1e15, 1e150
"""Sizes of outputs up to which sums of their squares have room in single and in double precision."""


class _Repulsion(torch.autograd.Function):
    """Value: sum_i log sum_j k_ij, mean over sets. Gradient: minus the direction of the rule."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pairs: Pairs, rule: str) -> Tensor:
        sets = pairs.k.shape[0] if pairs.k.ndim == 3 else 1
        ctx.save_for_backward(DIRECTIONS[rule](pairs).to(x.dtype) / sets)
        return (pairs.k.sum(dim=-1).log().sum() / sets).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (direction,) = ctx.saved_tensors
        return -gradient * direction, None, None


class _Mix(torch.autograd.Function):
    """Identity whose gradient is averaged over particles with the weights `k / n`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Tensor) -> Tensor:
        ctx.save_for_backward(k)
        return x.view_as(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (k,) = ctx.saved_tensors
        return mix(gradient, k), None


def mix(values: Float[Tensor, "n ..."], k: Float[Tensor, "n n"]) -> Float[Tensor, "n ..."]:
    """Compute `(1/n) sum_j k_ij values_j`, as SVGD does with driving forces."""
    return torch.tensordot(k.to(values.dtype), values, dims=1) / len(k)


def mix_driving(x: Float[Tensor, "n ..."], k: Float[Tensor, "n n"]) -> Float[Tensor, "n ..."]:
    """Return the same values, whose gradient will be averaged by `mix`."""
    return _Mix.apply(x, k)  # pyright: ignore[reportReturnType]


def in_space(outputs: Float[Tensor, "n ... K"], on: str) -> Float[Tensor, "n ... K"]:
    """Map logits to the space in which the kernel compares them."""
    if on == "probabilities":
        return outputs.softmax(dim=-1)
    if on == "log_probabilities":
        return outputs.log_softmax(dim=-1)
    if on == "centred_logits":
        return outputs - outputs.mean(dim=-1, keepdim=True)
    return outputs


def arrange(x: Float[Tensor, "n ..."], compare: str) -> Tensor:
    """Return particles as rows: `(n, p)` of whole batches, or pointwise one set per sample, `(R, n, p)`."""
    if compare == "jointly":
        return x.flatten(start_dim=1)
    return x.reshape(*x.shape[:2], -1).transpose(0, 1)


def repel(
    x: Float[Tensor, "n ..."], rule: str, kernel: str, bandwidth: str | float, compare: str
) -> tuple[Tensor, Pairs]:
    """Compute `repulsion` on values as they are, and return it with the kernel it was computed from."""
    rows = arrange(x, compare)
    pairs = evaluate(rows, kernel, bandwidth)
    return _Repulsion.apply(rows, pairs, rule), pairs  # pyright: ignore[reportReturnType]


def repulsion(
    outputs: Float[Tensor, "n ..."],
    *,
    on: OutputSpace = "logits",
    rule: Rule = "kde",
    kernel: Kernel = "rbf",
    bandwidth: Bandwidth | float = "median",
    compare: Comparison = "jointly",
) -> Float[Tensor, ""]:
    """Compute the repulsion between n particles, as a loss to add to a training loop of your own.

    For the kde rule this is `sum_i log sum_j k(x_i, sg x_j)`, where sg stops the gradient. Outputs must come from the
    repulsion samples, not from the training batch, unless you want to repel there.

    Examples:
        >>> outputs = torch.tensor([[0.0], [1.0]], requires_grad=True)
        >>> repulsion(outputs).backward()
        >>> (-outputs.grad).flatten().sign().tolist()  # descending pushes the two apart
        [-1.0, 1.0]

    Args:
        outputs: one entry of the first axis a particle; for classification, logits with classes on the last axis. Pass
            `(n, p)` parameter vectors to repel in parameter space.
        on: "logits" (the values as they are), "probabilities", "centred_logits" or "log_probabilities".
        rule: "kde", "blob", "sge", "ssge" or "svgd". SVGD also averages the driving forces: pass the training outputs
            through `mix_driving(outputs, kernel_matrix(...))` before the likelihood.
        kernel: "rbf", "laplace", "l2" or "imq".
        bandwidth: "median", "median_offdiagonal" or a number per coordinate.
        compare: "jointly", one kernel over the whole batch, as in the paper; or "pointwise", one kernel a sample (the
            second axis), averaged: then heads must differ on every sample, not only on the easiest ones.
    """
    check_choice("rule", rule, get_args(Rule))
    check_choice("compare", compare, get_args(Comparison))
    _check(outputs, on, kernel, bandwidth)
    loss, _ = repel(in_space(_with_room(outputs), on), rule, kernel, bandwidth, compare)
    return loss.to(outputs.dtype)


def kernel_matrix(
    outputs: Float[Tensor, "n ..."],
    *,
    on: OutputSpace = "logits",
    kernel: Kernel = "rbf",
    bandwidth: Bandwidth | float = "median",
) -> Float[Tensor, "n n"]:
    """Compute kernel values between n particles, without gradient: how close they are. Arguments as `repulsion`."""
    _check(outputs, on, kernel, bandwidth)
    k = evaluate(in_space(_with_room(outputs), on).flatten(start_dim=1), kernel, bandwidth).k
    return k if outputs.dtype == torch.float64 else k.float()


def _with_room(outputs: Tensor) -> Tensor:
    """Return outputs in double precision if their squares would overflow in single; refuse those that would in both."""
    size = float(outputs.detach().abs().amax())
    if LARGEST_DOUBLE < size < math.inf:
        raise DataError(expected("outputs", f"at most {LARGEST_DOUBLE:g} in size", f"{size:.3g}"))
    return outputs.double() if LARGEST < size < math.inf else outputs


def _check(outputs: Tensor, on: str, kernel: str, bandwidth: str | float) -> None:
    check_choice("on", on, get_args(OutputSpace))
    check_choice("kernel", kernel, get_args(Kernel))
    if isinstance(bandwidth, str):
        check_choice("bandwidth", bandwidth, get_args(Bandwidth))
    else:
        check_number("bandwidth", bandwidth, positive=True)
    tensor = isinstance(outputs, Tensor)
    if not tensor or outputs.ndim < 2 or not outputs.numel() or not outputs.is_floating_point():
        got = f"{outputs.dtype} of shape {tuple(outputs.shape)}" if tensor else type(outputs).__name__
        raise DataError(expected("outputs", "a float tensor of shape (n, ...), not empty", got))
    check_dense("outputs", outputs)


def gaussian_process_prior(
    outputs: Float[Tensor, "n B K"], features: Float[Tensor, "B d"], std: float = 1.0
) -> Float[Tensor, ""]:
    """Compute minus the log density, up to a constant, of linear heads' outputs under their Gaussian-process prior.

    A linear head with weights and biases from N(0, std^2) gives outputs on a batch with features `P` that are Gaussian
    with covariance `C = std^2 (P P^T + 1)`, independently for each class; the loss is `sum_ik f_ik^T C^-1 f_ik / 2`.
    `C` has rank at most d + 1, so its diagonal gets a jitter of 1e-3 of its mean.
    """
    factor = prior_factor(features.detach().to(outputs.dtype), std)
    columns = outputs.transpose(0, 1).flatten(start_dim=1)  # (B, n K)
    return 0.5 * (columns * torch.cholesky_solve(columns, factor)).sum()


def prior_factor(features: Float[Tensor, "B d"], std: float) -> Float[Tensor, "B B"]:
    """Compute the Cholesky factor of the covariance of `gaussian_process_prior`."""
    covariance = std**2 * (features @ features.T + 1)
    jitter = 1e-3 * covariance.diagonal().mean()
    covariance = covariance + jitter * torch.eye(len(features), dtype=features.dtype, device=features.device)
    factor, failed = torch.linalg.cholesky_ex(covariance)  # which does not make the host wait for a device
    return factor.masked_fill(failed > 0, torch.nan)
