"""See a network as features and a last layer: run one batch, find the layer that makes the output, choose the taps."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn

from repulse._modes import caller, evaluating
from repulse.backbone.batches import (
    call,
    channels_last,
    first_samples,
    logits_of,
    map_tensors,
    mask_of,
    rows_are_samples,
    size_of,
)
from repulse.backbone.endings import (
    Call,
    Ending,
    activate,
    find_ending,
    flatten_positions,
    is_last_layer,
    joint_features,
    nearly_equal,
    output_follows,
    pool,
    refusal,
    special_layers,
    weights_of,
    with_channels_first,
)
from repulse.backbone.forms import Form, forms_of
from repulse.backbone.maps import Ran
from repulse.backbone.memory_format import prefers_channels_last
from repulse.backbone.places import Places
from repulse.backbone.positions import FeatureMap, at_size, interpolated
from repulse.backbone.tap_choice import (
    COARSEST,
    MAX_COLUMNS,
    POSITION_COLUMNS,
    find_taps,
    named_taps,
    position_taps,
    within_columns,
)
from repulse.backbone.taps import INPUTS, Read, Tap, finished, fits, signal_in, tensor_in
from repulse.errors import BackboneError, DataError, expected

PROBE_SAMPLES = 8
"""Number of samples of a batch that show how a network runs."""

CHECKED_POSITIONS = 16
"""Number of positions of each batch at which the output is compared with that of the last layer."""


class Backbone(nn.Module):
    """A network seen as features and a last layer; the network itself is shared, not copied or changed.

    Called on inputs, it returns the penultimate features and, after them, what the taps read: `(B, width)`.

    Attributes:
        model: the network.
        ending: its last layer, and how the output comes from it.
        taps: which earlier stages are read too.
        several: how many tensors the network takes side by side, or None if it takes one, or names.
        channels_last: whether `run` hands images over with their channels last in memory (see `memory_format`).
        forms: name, shape and type of each of its inputs, as far as they are known.
        places: where inputs and targets are in batches, and logits in outputs.
    """

    def __init__(
        self,
        model: nn.Module,
        ending: Ending,
        taps: Sequence[Tap] = (),
        several: int | None = None,
        channels_last: bool = False,
        forms: Sequence[Form] = (),
        places: Places | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.ending = ending
        self.taps = tuple(taps)
        self.several = several
        self.channels_last = channels_last
        self.forms = tuple(forms)
        self.places = places or Places()

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the last layer."""
        weight, bias = weights_of(*map(self.model.get_submodule, self.ending.layers))
        return self.ending.factor * weight, self.ending.factor * bias

    @property
    def outputs(self) -> int:
        """Number of outputs of the network."""
        return self.weights[0].shape[0]

    @property
    def penultimate(self) -> int:
        """Number of features that enter the last layer."""
        return self.weights[0].shape[1]

    @property
    def width(self) -> int:
        """Number of features in all."""
        return self.penultimate + sum(tap.columns for tap in self.taps)

    def with_taps(self, taps: Sequence[Tap]) -> Backbone:
        """Return the same network with other taps."""
        return Backbone(self.model, self.ending, taps, self.several, self.channels_last, self.forms, self.places)

    @torch.no_grad()
    def grid(self, x: Any) -> tuple[int, ...]:
        """Return how many positions the features of the last layer have along each axis."""
        return tuple(self.locate(x).grid)

    def run(self, x: Any) -> Float[Tensor, "B d"]:
        """Compute features in the memory format that is faster for this network; its weights are not moved."""
        if self.channels_last:
            try:
                return self(map_tensors(x, channels_last))
            except RuntimeError:  # a view that wants channels first; what fails for another reason fails again
                pass
        return self(x)

    def forward(self, x: Any) -> Float[Tensor, "B d"]:
        """Compute the features of inputs in any form the network takes, in eval mode.

        Of a network with an output at every position, those of all positions, one after the other.
        """
        if self.ending.positions:
            return self.locate(x).all_rows()
        mask = mask_of(x)
        read = self.read_inputs(x)
        ends, logits = self._watch(x, read, lambda tap, output: tap.read(output, mask))
        pooled = self.pooled(ends, logits)
        if not output_follows(self.ending, pooled, self.weights, logits):
            self._refuse_output(logits)
        return self.joined(pooled, read)

    def locate(self, x: Any) -> FeatureMap:
        """Compute the features of inputs at every position, for a network that has an output there."""
        read: dict[int, Tensor] = {}
        ends, logits = self._watch(x, read, lambda tap, output: tap.map(output))
        found = self.mapped(x, ends, read, logits)
        self._check_positions(found, logits if self.ending.positions == "channels_first" else logits.movedim(-1, 1))
        return found

    def mapped(self, x: Any, ends: Mapping[str, Call], read: Mapping[int, Tensor], logits: Tensor) -> FeatureMap:
        """Return features at every position, from what went through the last layer and the taps in a pass."""
        (name,) = self.ending.layers
        self._check_ran([name], ends)
        self._check_ran([tap.name for tap in self.taps], read, range(len(self.taps)))
        features = with_channels_first(ends[name][0], self.model.get_submodule(name))
        first = self.ending.positions == "channels_first"
        size = tuple(logits.shape[2:] if first else logits.shape[1:-1])
        if not self.ending.resize:
            features = features.reshape(features.shape[0], -1, *size)  # a row of positions may be an image
        grid = tuple(features.shape[2:])
        maps = [read[i] for i in range(len(self.taps))]
        taps = [at_size(one, grid) if math.prod(one.shape[2:]) > math.prod(grid) else one for one in maps]
        mask = mask_of(x)
        mask = mask if mask is not None and tuple(mask.shape[1:]) == size else None
        return FeatureMap(features, tuple(taps), size, self.ending.resize, mask)

    @torch.no_grad()
    def _check_positions(self, found: FeatureMap, logits: Float[Tensor, "B K ..."]) -> None:
        """Check at a few positions that the output is what the last layer makes of the features there."""
        if not logits.numel():
            return
        few = torch.linspace(0, math.prod(found.size) - 1, CHECKED_POSITIONS, device=logits.device).long()
        features = interpolated(found.features[0].float(), few, found.size, found.resize)
        weight, bias = (part.float() for part in self.weights)
        again = activate(self.ending.activation, nn.functional.linear(features, weight, bias))
        seen = logits[0].flatten(1)[:, few].T
        if not nearly_equal(again.to(seen.dtype), seen):
            self._refuse_output(logits)

    def _refuse_output(self, logits: Tensor) -> NoReturn:
        if not bool(logits.isfinite().all()):
            raise DataError(expected("x", "such that the network's output is finite", "NaN or infinite outputs"))
        wanted = f"that of {self.ending} as in the first batch"
        raise BackboneError(expected("the model's output", wanted, "something else; it depends on more than that"))

    def _watch(
        self, x: Any, read: dict[int, Any], read_tap: Callable[[Tap, Any], Read]
    ) -> tuple[dict[str, Call], Tensor]:
        """Run the network; return what went in and out of its last layers, and its output; read the taps."""
        me = caller()  # the model may be serving other threads, whose features are theirs
        ends: dict[str, Call] = {}

        def at_end(name: str):
            def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
                if caller() == me:
                    ends[name] = (inputs[0], output)

            return hook

        def at_tap(i: int, tap: Tap):
            def hook(_: nn.Module, inputs: Any, output: Any) -> None:
                if caller() == me:
                    read[i] = read_tap(tap, output)

            return hook

        layers = [self.model.get_submodule(name) for name in self.ending.layers]
        tapped = [
            (i, tap, self.model.get_submodule(tap.name)) for i, tap in enumerate(self.taps) if tap.reads != INPUTS
        ]
        hooks = []
        try:
            for name, layer in zip(self.ending.layers, layers, strict=True):
                hooks.append(layer.register_forward_hook(at_end(name)))
            for i, tap, module in tapped:
                hooks.append(module.register_forward_hook(at_tap(i, tap)))
            with evaluating(self.model):
                logits = logits_of(self.places.logits_in(call(self.model, x)))
        finally:
            for hook in hooks:
                hook.remove()
        return ends, logits

    def pooled(self, ends: Mapping[str, Call], logits: Tensor) -> Float[Tensor, "B d"]:
        """Return the penultimate features, from what went through the last layers in a pass."""
        self._check_ran(self.ending.layers, ends)
        if self.ending.pooling == "none" and len(ends) == 1 and ends[self.ending.layers[0]][0].ndim == 2:
            return ends[self.ending.layers[0]][0]  # the usual case, in no time
        layers = [self.model.get_submodule(name) for name in self.ending.layers]
        inputs, outputs = zip(*(ends[name] for name in self.ending.layers), strict=True)
        return pool(self.ending, joint_features(inputs, layers), flatten_positions(outputs[0], layers[0]), logits)

    def joined(self, pooled: Float[Tensor, "B d"], read: Mapping[int, Read]) -> Float[Tensor, "B w"]:
        """Append what the taps have read in a pass, by their places among the taps."""
        self._check_ran([tap.name for tap in self.taps], read, range(len(self.taps)))
        found = finished(self.taps, [read[i] for i in range(len(self.taps))])
        return torch.cat([pooled, *found], dim=1) if self.taps else pooled

    def read_inputs(self, x: Any) -> dict[int, Read]:
        """Return what is read of the inputs themselves."""
        return {i: tap.read(signal_in(x), None) for i, tap in enumerate(self.taps) if tap.reads == INPUTS}

    @staticmethod
    def _check_ran(names: Sequence[str], found: Mapping[Any, Any], keys: Sequence[Any] | None = None) -> None:
        """Refuse a pass that did not run these modules, whose results are under these keys, or their names."""
        for name, key in zip(names, names if keys is None else keys, strict=True):
            if key not in found:
                raise BackboneError(expected("model", f"one that runs `{name}`", "a pass without it"))


def split(
    model: nn.Module,
    batch: Any,
    *,
    layers: str | Sequence[str] = "last",
    last_layer: str | None = None,
    places: Places | None = None,
) -> Backbone:
    """Find the layer that produces the network's output, by running one batch, and check that it does.

    Args:
        model: any module that maps a batch to one output vector an input, or one at every position: the logits, or
            something with `.logits`.
        batch: inputs on the model's device, in any form the model takes.
        layers: "last" for the penultimate features alone, "auto" to tap earlier stages as well, or names of modules.
        last_layer: name of the last layer, if it should not be found.
        places: where logits are in the output, if not in a place that is known.

    Raises:
        BackboneError: no linear layer computes the output, or the model is not a function of its input.
    """
    model = unwrap(model)
    places = places or Places()
    samples = rows_are_samples(batch) and _takes_few(model, batch)
    few = first_samples(batch, PROBE_SAMPLES) if samples else batch
    names = dict(model.named_modules())
    if last_layer is not None and not isinstance(last_layer, str):
        got = f"a {type(last_layer).__name__}"
        raise BackboneError(expected("last_layer", "the name of a layer, such as 'fc'", got))
    if last_layer is not None and (last_layer not in names or not is_last_layer(names[last_layer])):
        _refuse_name(last_layer, names)
    ran: list[Ran] = []
    ends: list[tuple[str, nn.Module, Call]] = []

    def watch(name: str, module: nn.Module):
        wanted = is_last_layer(module) if last_layer is None else name == last_layer

        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            left, entered = tensor_in(output), tensor_in(inputs)
            if left is not None and left.ndim > 1:
                ran.append(Ran.of(name, module, entered, left))
            if wanted and isinstance(output, Tensor) and entered is not None:
                ends.append((name, module, (entered.detach().clone(), output.detach().clone())))

        return hook

    def watch_size(name: str, module: nn.Module):
        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            left = tensor_in(output)
            if left is not None and left.ndim > 1:
                sizes.append((name, len(left)))

        return hook

    sizes: list[tuple[str, int]] = []
    logits = _watched(model, names, watch, few, places)
    size = size_of(few) if samples or not logits.ndim else len(logits)
    if logits.ndim == 0 or len(logits) != size:
        got = f"shape {tuple(logits.shape)}"
        raise BackboneError(expected("model(batch)", f"one output for each of {size} inputs", got))
    fewer = first_samples(few, max(size - 1, 1)) if samples else few
    again = _watched(model, names, watch_size, fewer, places)
    _check_repeats(model, logits, again)
    if samples and len(sizes) == len(ran):  # samples come first in what gives fewer for fewer inputs
        ran = [r for r, (_, n) in zip(ran, sizes, strict=True) if r.left[0] == size and n == size_of(fewer)]
    else:
        ran = [r for r in ran if r.left[0] == size]
    ending = find_ending(ends, logits)
    if ending is None:
        raise refusal(model, ends, logits, last_layer)
    several = len(few) if isinstance(few, tuple) and len(few) > 1 else None
    backbone = Backbone(model, ending, several=several, forms=forms_of(few) if samples else (), places=places)
    with torch.no_grad():
        backbone(few)  # which checks that the layer does not run again after it made the output
    backbone = _with_taps(backbone, few, layers, ran)
    with torch.no_grad():
        backbone.channels_last = prefers_channels_last(backbone, model, few)
    return backbone


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside `torch.compile` and data-parallel wrappers, which ignore hooks added later."""
    while True:
        if isinstance(model, torch.jit.ScriptModule):
            got = "TorchScript, which cannot be watched running"
            raise BackboneError(expected("model", "a network in Python", got))
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _with_taps(backbone: Backbone, few: Any, layers: str | Sequence[str], ran: list[Ran]) -> Backbone:
    """Add the taps that `layers` asks for."""
    if isinstance(layers, str) and layers == "last":
        return backbone
    inputs, last = signal_in(few), backbone.ending.layers
    begun = next((i for i, module in enumerate(ran) if module.name in last), len(ran))
    before = [module for module in ran[:begun] if module.name]
    ran = [module for module in ran if module.name and module.name not in last]
    if isinstance(layers, str):
        if layers != "auto":
            raise BackboneError(expected("layers", "'auto', 'last' or a list of module names", repr(layers)))
        taps = find_taps(before, inputs)
        if inputs is None:
            # Of texts, which are padded: only where it is known which tokens are no padding.
            mask, left = mask_of(few), {module.name: module.left for module in ran}
            taps = [tap for tap in taps if mask is not None and tap.reads == "mean" and fits(mask, left[tap.name])]
    else:
        taps = named_taps(list(layers), ran, inputs, [name for name, _ in backbone.model.named_modules()])
        if backbone.ending.positions:
            taps = position_taps(taps, ran, backbone.grid(few))
        return backbone.with_taps(taps)
    most = MAX_COLUMNS
    if backbone.ending.positions:
        taps, most = position_taps(taps, ran, backbone.grid(few), COARSEST), POSITION_COLUMNS
    with torch.no_grad():
        found = backbone.with_taps(taps)(few)
    return backbone.with_taps(within_columns(_without_repeats(found, backbone.penultimate, taps), most))


def _without_repeats(features: Tensor, width: int, taps: Sequence[Tap]) -> list[Tap]:
    """Leave out what is there already: means that are the penultimate features, and taps that equal an earlier one."""
    kept: list[Tap] = []
    read: list[Tensor] = [features[:, :width]]
    start = width
    for tap in taps:
        columns = features[:, start : start + tap.columns]
        start += tap.columns
        if any(_same(columns, earlier) for earlier in read):
            continue
        read.append(columns)
        half = tap.columns // 2
        if tap.reads == "both" and tap.layout != "vector" and _same(columns[:, :half], features[:, :width]):
            kept.append(Tap(tap.name, tap.layout, half, "deviation"))
        else:
            kept.append(tap)
    return kept


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-5)


@torch.no_grad()
def _takes_few(model: nn.Module, batch: Any) -> bool:
    """Check whether a network takes some rows without the others; the nodes of a graph it does not."""
    try:
        with evaluating(model):
            call(model, first_samples(batch, 2))
    except (RuntimeError, IndexError, ValueError, TypeError):  # who takes none of it says so when it gets all
        return False
    return True


@torch.no_grad()
def _watched(
    model: nn.Module, names: dict[str, nn.Module], watch: Callable[..., Any], inputs: Any, places: Places
) -> Tensor:
    """Run a batch with a hook on every module, for this thread alone, and return the logits."""
    me = caller()
    hooks = []

    def mine(hook: Callable[..., None]):
        return lambda *call: hook(*call) if caller() == me else None

    try:
        for name, module in names.items():
            if not isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
                hooks.append(module.register_forward_hook(mine(watch(name, module))))
        with evaluating(model):
            return logits_of(places.logits_in(call(model, inputs)))
    finally:
        for hook in hooks:
            hook.remove()


def _check_repeats(model: nn.Module, logits: Tensor, again: Tensor) -> None:
    """Refuse a model that is not a function of each input: nothing it says could be stored."""
    same = again.shape[1:] == logits.shape[1:] and again.ndim > 0
    if not same or not torch.allclose(again, logits[: len(again)], rtol=1e-3, atol=1e-4, equal_nan=True):
        got = special_layers(model)
        got = got or "different outputs in two passes in eval mode; look for randomness, or inputs that see each other"
        raise BackboneError(expected("model", "one that returns the same output for the same input", got))


def _refuse_name(name: str, modules: dict[str, nn.Module]) -> None:
    known = [known for known, module in modules.items() if is_last_layer(module)]
    got = f"{name!r}, a {type(modules[name]).__name__}" if name in modules else repr(name)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise BackboneError(expected("last_layer", "the name of a linear layer of the model", got) + hint)
