"""Deployed: an ensemble as a plain module for production, which checks nothing and adds no hooks when it is called."""

from __future__ import annotations

import copy
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from repulse._modes import caller
from repulse.backbone.batches import as_inputs, call, logits_of, mask_of
from repulse.backbone.endings import Call
from repulse.backbone.positions import FeatureMap
from repulse.backbone.split import Backbone
from repulse.backbone.taps import INPUTS, Tap
from repulse.particles.at_positions import answer_at_positions
from repulse.particles.centred import CentredHeads
from repulse.particles.folded import FoldedHeads
from repulse.particles.heads import Heads


class Deployed(nn.Module):
    """Maps inputs, passed as the network takes them, to a `NamedTuple` of tensors with a row for each sample.

    For classes these are `probs, aleatoric, epistemic, total`; for regression `mean, aleatoric, epistemic, total`; with
    a gate also `p_value, decision`. For an output at every position each is a map (`probs` as the network has its
    classes), computed one head after the other, but not in parts. The module is always in eval mode, can be called by
    several threads, compiled and exported, and has no parameters to train, but gradients flow to its inputs.

    Args:
        backbone: the network; its modules are copied, the memory of its weights is shared.
        heads: the fitted heads, which are folded into one matrix where they are linear and around a centre.
        gate: what adds a decision to the answer, if there is a gate.
    """

    def __init__(self, backbone: Backbone, heads: Heads, gate: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone = _HookedBackbone(backbone)
        self.heads: Any = twin_of(heads)
        one_output = not backbone.ending.positions  # at positions, heads are evaluated one after the other
        if one_output and isinstance(heads, CentredHeads) and len(heads.weights) == 1:
            self.heads = FoldedHeads(heads)
        self.gate = gate
        self.eval()

    def train(self, mode: bool = True) -> Deployed:
        """Stay in eval mode: there is nothing to train."""
        return super().train(False)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return what the ensemble predicts, and how uncertain it is."""
        x, positions = as_inputs(self.backbone.model, inputs, named), self.backbone.ending.positions
        if positions:
            return answer_at_positions(self.heads, self.backbone.locate(x), channels_last=positions == "channels_last")
        features = self.backbone(x)
        answer = self.heads.task.answer(self.heads(features))
        return answer if self.gate is None else self.gate(answer)


def twin_of(module: nn.Module) -> Any:
    """Copy modules, but not the memory of their tensors.

    Parameters are new objects all the same, so that moving or casting the twin leaves the original where it is.
    """
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    for part in module.modules():
        for value in (*part._buffers.values(), *vars(part).values()):
            if isinstance(value, Tensor):  # also those that a parametrisation computes, which refuse to be copied
                memo[id(value)] = value.detach()
    return copy.deepcopy(module, memo)


class _HookedBackbone(Backbone):
    """A backbone on a twin of the network, whose hooks stay."""

    def __init__(self, backbone: Backbone) -> None:
        about = (backbone.ending, backbone.taps, backbone.several)
        super().__init__(twin_of(backbone.model), *about, forms=backbone.forms, places=backbone.places)
        self._passes = _Passes()
        for name in self.ending.layers:
            self.model.get_submodule(name).register_forward_hook(_Keep(self._passes, name))
        for i, tap in enumerate(self.taps):
            if tap.reads != INPUTS:
                keep = _KeepTap(self._passes, i, tap, as_map=bool(self.ending.positions))
                self.model.get_submodule(tap.name).register_forward_hook(keep)

    def forward(self, x: Any) -> Float[Tensor, "B d"]:
        kept, logits = self._pass(x)
        return self.joined(self.pooled(kept.ends, logits), kept.read)

    def locate(self, x: Any) -> FeatureMap:
        kept, logits = self._pass(x)
        return self.mapped(x, kept.ends, kept.read, logits)

    def _pass(self, x: Any) -> tuple[_Pass, Tensor]:
        """Run the network; return what hooks have kept, and its output."""
        kept = _Pass(mask_of(x), self.read_inputs(x))
        me = caller()
        self._passes.of[me] = kept
        try:
            return kept, logits_of(self.places.logits_in(call(self.model, x)))
        finally:
            del self._passes.of[me]


class _Pass:
    """What one pass has read so far."""

    def __init__(self, mask: Tensor | None, read: dict[int, Any]) -> None:
        self.mask, self.read = mask, read
        self.ends: dict[str, Call] = {}


class _Passes:
    """The passes that are under way, by their thread; an object of its own, because exports copy what modules hold."""

    def __init__(self) -> None:
        self.of: dict[int, _Pass] = {}


class _Keep:
    """A hook that keeps what goes through a last layer, for the pass that its thread is in."""

    def __init__(self, passes: _Passes, name: str) -> None:
        self.passes, self.name = passes, name

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        kept = self.passes.of.get(caller())
        if kept is not None:  # nobody runs the network by itself
            kept.ends[self.name] = (inputs[0], output)


class _KeepTap:
    """A hook that keeps what a tap reads, for the pass that its thread is in."""

    def __init__(self, passes: _Passes, i: int, tap: Tap, *, as_map: bool) -> None:
        self.passes, self.i, self.tap, self.as_map = passes, i, tap, as_map

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        kept = self.passes.of.get(caller())
        if kept is not None:
            kept.read[self.i] = self.tap.map(output) if self.as_map else self.tap.read(output, kept.mask)
