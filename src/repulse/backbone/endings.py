"""How a network's output comes from its last layer: which layer, over which positions, and what comes after it.

A last layer is linear, or a convolution with a kernel of one, which is a linear layer at every position. Its output is
the network's if they are equal as they are, or after the mean over positions, or at one position a sample (the last
token, say); and, after that, through nothing, a softmax, a log-softmax or a sigmoid of each. Distilled
networks average two such layers, which is one layer on both their features. In all these cases a head that takes the
features pooled in the same way can stand in for the layer. If the network has an output at every position, as it is or
interpolated, so have the heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from repulse.backbone.positions import RESIZES, resized
from repulse.errors import BackboneError, expected

POOLINGS = ("none", "mean", "one")
ACTIVATIONS = ("none", "log_softmax", "softmax", "sigmoid")
BY_HAND = (
    "if it multiplies by weights in its own code, or takes a cosine product, let an `nn.Linear` hold these weights (of "
    "a cosine product the normalised ones times the scale, on normalised features), or name another with `last_layer`"
)
"""What to do about a last layer that is no module."""

Call = tuple[Tensor, Tensor]
"""What went into a layer, and what came out."""


@dataclass(frozen=True)
class Ending:
    """The end of a network.

    Attributes:
        layers: name of the last layer, or of the two whose mean the output is.
        pooling: "none", "mean" over the positions at which the layer is applied, or "one" of them for each sample.
        activation: what the network applies afterwards, and the heads undo by taking its place: "none", "log_softmax",
            "softmax" or "sigmoid".
        flat: whether the one output of each sample comes as `(B,)`, not `(B, 1)`.
        positions: where classes are if there is an output at every position: "channels_first" `(B, K, H, W)` or
            "channels_last" `(B, T, K)`; empty if there is one output per input.
        resize: how outputs at positions are interpolated: "nearest", "linear", "linear_aligned"; empty if they are not.
        factor: what the network multiplies the output of the layer by, such as one over a temperature.
    """

    layers: tuple[str, ...]
    pooling: str = "none"
    activation: str = "none"
    flat: bool = False
    positions: str = ""
    resize: str = ""
    factor: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))

    def __str__(self) -> str:
        return " and ".join(f"`{name}`" for name in self.layers)

    def in_words(self) -> str:
        """Describe what is special about the ending; an empty text if nothing is."""
        said = {
            "mean": "applied at every position and averaged",
            "one": "applied at every position, of which one counts",
        }
        words = [said[self.pooling]] if self.pooling in said else []
        if self.positions:
            words.append("applied at every position" + (" and interpolated" if self.resize else ""))
        if len(self.layers) > 1:
            words.append("which are averaged")
        if self.factor != 1:
            words.append(f"times {self.factor:.3g}")
        if self.activation != "none":
            words.append(f"followed by a {self.activation.replace('_', '-')}, which the heads take the place of too")
        return " and ".join(words)


def is_last_layer(module: nn.Module) -> bool:
    """Check whether a module is a linear map of the features at each position."""
    if isinstance(module, nn.Linear):
        return True
    return (
        isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        and set(module.kernel_size) == {1}
        and set(module.stride) == {1}
        and module.padding in ((0,) * len(module.kernel_size), "same", "valid")
        and module.groups == 1
    )


def weights_of(*layers: nn.Module) -> tuple[Float[Tensor, "K d"], Float[Tensor, " K"]]:
    """Return weight and bias of a last layer as a linear one, or of the mean of several on all their features."""
    weights = [layer.weight.detach().flatten(start_dim=1) for layer in layers]  # pyright: ignore
    biases = [
        torch.zeros_like(weight[:, 0]) if layer.bias is None else layer.bias.detach()  # pyright: ignore
        for layer, weight in zip(layers, weights, strict=True)
    ]
    if len(layers) == 1:
        return weights[0].clone(), biases[0].clone()  # pyright: ignore
    return torch.cat(weights, dim=1) / len(layers), torch.stack(biases).mean(dim=0)  # pyright: ignore


def flatten_positions(values: Tensor, layer: nn.Module) -> Float[Tensor, "B P d"]:
    """Return inputs or outputs of a last layer with all positions on one axis, features last."""
    if not isinstance(layer, nn.Linear):
        return values.flatten(start_dim=2).transpose(1, 2)
    return values.unsqueeze(1) if values.ndim == 2 else values.flatten(start_dim=1, end_dim=-2)


def joint_features(inputs: Sequence[Tensor], layers: Sequence[nn.Module]) -> Float[Tensor, "B P d"]:
    """Concatenate the features of all last layers."""
    flat = [flatten_positions(value, layer) for value, layer in zip(inputs, layers, strict=True)]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=2)


def pool(
    ending: Ending, features: Float[Tensor, "B P d"], outputs: Float[Tensor, "B P K"], logits: Tensor
) -> Float[Tensor, "B d"]:
    """Return the features that one head needs: pooled as the network pools the outputs of its layer."""
    if ending.pooling == "none":
        if features.shape[1] != 1:
            got = f"{features.shape[1]}; show `retrofit` a batch of inputs as large as these"
            raise BackboneError(expected(f"positions at {ending}", "one, as in the first batch", got))
        return features[:, 0]
    if ending.pooling == "mean":
        return features.mean(dim=1)
    distance = (activate(ending.activation, outputs) - logits.reshape(logits.shape[0], 1, -1)).abs().amax(dim=-1)
    return features[torch.arange(features.shape[0], device=features.device), distance.argmin(dim=1)]


def activate(activation: str, logits: Tensor) -> Tensor:
    if activation == "log_softmax":
        return logits.log_softmax(dim=-1)
    if activation == "softmax":
        return logits.softmax(dim=-1)
    return logits.sigmoid() if activation == "sigmoid" else logits


def factor_between(activation: str, outputs: Float[Tensor, "B K"], logits: Float[Tensor, "B K"]) -> float:
    """Return the factor on the output of a layer, by least squares, that explains the network's output best."""
    inverse = {"softmax": torch.log, "sigmoid": torch.logit}.get(activation, Tensor.float)
    wanted, given = inverse(logits.double()), outputs.double()
    if "softmax" in activation:  # known up to a constant per row
        wanted, given = (part - part.mean(dim=1, keepdim=True) for part in (wanted, given))
    factor = float((wanted * given).sum() / given.square().sum())
    return factor if math.isfinite(factor) and factor > 0 else 1.0


def recognise(names: Sequence[str], layers: Sequence[nn.Module], ran: Sequence[Call], logits: Tensor) -> Ending | None:
    """Find how the network's `logits` follow from the inputs and outputs of a layer (or of two); None if they do not.

    The layers' own formula is checked too: a hook or a wrapper may have changed what they return.
    """
    inputs, outputs = zip(*(joined for joined in ran), strict=True)
    h = joint_features(inputs, layers)
    z = torch.stack([flatten_positions(value, layer) for value, layer in zip(outputs, layers, strict=True)]).mean(dim=0)
    if logits.numel() != len(logits) * z.shape[-1] or len(z) != len(logits):
        return None
    weight, bias = weights_of(*layers)
    if not nearly_equal(nn.functional.linear(h.float(), weight.float(), bias.float()).to(z.dtype), z):
        return None
    flat = logits.reshape(len(logits), -1)
    names = tuple(names)
    activations = ("none", "sigmoid") if z.shape[-1] == 1 else ("none", "log_softmax", "softmax", "sigmoid")
    for activation in activations:
        if z.shape[1] == 1:
            for factor in (1.0, factor_between(activation, z[:, 0], flat)):
                if nearly_equal(activate(activation, factor * z[:, 0]), flat):
                    return Ending(names, "none", activation, logits.ndim == 1, factor=factor)
            continue
        if nearly_equal(activate(activation, z.mean(dim=1)), flat):
            return Ending(names, "mean", activation, logits.ndim == 1)
        nearest = (activate(activation, z) - flat.unsqueeze(1)).abs().amax(dim=-1).argmin(dim=1)
        if nearly_equal(activate(activation, z[torch.arange(len(z), device=z.device), nearest]), flat):
            return Ending(names, "one", activation, logits.ndim == 1)
    return None


def output_follows(ending: Ending, features: Tensor, weights: tuple[Tensor, Tensor], logits: Tensor) -> bool:
    """Check whether a network's output is what its last layer makes of these features; a traced pass is not checked."""
    if torch.compiler.is_compiling() or not len(features):  # of no inputs, all is
        return True
    weight, bias = weights
    again = activate(ending.activation, nn.functional.linear(features.detach().float(), weight.float(), bias.float()))
    coarse = min((features.dtype, weight.dtype, logits.dtype), key=lambda dtype: dtype.itemsize)
    return nearly_equal(again.to(coarse), logits.detach().reshape(len(features), -1).to(coarse))


def find_ending(ran: Sequence[tuple[str, nn.Module, Call]], logits: Tensor) -> Ending | None:
    """Find the end of a network among the linear layers that ran: the latest whose output it is, or two averaged."""
    for name, layer, call in reversed(ran):
        if found := recognise([name], [layer], [call], logits):
            return found
    latest = [(name, layer, call) for name, layer, call in ran if call[1].shape == logits.shape][-2:]
    if len(latest) == 2 and latest[0][0] != latest[1][0]:
        names, layers, calls = zip(*latest, strict=True)
        if found := recognise(names, layers, calls, logits):
            return found
    return next((found for run in reversed(ran) if (found := recognise_positions(*run, logits))), None)


def recognise_positions(name: str, layer: nn.Module, ran: Call, logits: Tensor) -> Ending | None:
    """Find how outputs at every position follow from those of a layer; None if they do not."""
    inputs, outputs = ran
    if logits.ndim < 3 or len(outputs) != len(logits):
        return None
    weight, bias = weights_of(layer)
    h, z = (flatten_positions(value, layer) for value in (inputs, outputs))
    if not nearly_equal(nn.functional.linear(h.float(), weight.float(), bias.float()).to(z.dtype), z):
        return None
    maps = with_channels_first(outputs, layer)
    for positions in ("channels_first", "channels_last"):
        wanted = logits if positions == "channels_first" else logits.movedim(-1, 1)
        if wanted.shape[1] != maps.shape[1]:
            continue
        found = {"": maps.reshape(wanted.shape)} if maps.numel() == wanted.numel() else {}
        if not found and maps.ndim == wanted.ndim:
            found = {resize: resized(maps.float(), wanted.shape[2:], resize) for resize in RESIZES}
        for activation in ACTIVATIONS:
            for resize, value in found.items():
                seen = activate(activation, value.movedim(1, -1)).to(logits.dtype)
                if nearly_equal(seen, wanted.movedim(1, -1)):
                    return Ending((name,), "none", activation, positions=positions, resize=resize)
    return None


def with_channels_first(values: Tensor, layer: nn.Module) -> Float[Tensor, "B c ..."]:
    """Return inputs or outputs of a last layer with their channels on the second axis."""
    return values.movedim(-1, 1) if isinstance(layer, nn.Linear) else values


def _describe_rest(outputs: Float[Tensor, "B P K"], logits: Tensor) -> str:
    """Describe what a network does to the output of its last layer, if it is one of the usual things."""
    flat = logits.reshape(len(logits), -1)
    if outputs.shape[1] == 1 and outputs[:, 0].shape == flat.shape:
        z = outputs[:, 0]
        if nearly_equal(z, flat):
            return "a hook or wrapper"
        for words, value in (("a ReLU", z.relu()), ("one sigmoid an output", z.sigmoid()), ("a tanh", z.tanh())):
            if nearly_equal(value, flat):
                return words
    return "something else"


def refusal(
    model: nn.Module, ran: Sequence[tuple[str, nn.Module, Call]], logits: Tensor, wanted: str | None
) -> BackboneError:
    """Return the error that says why a network is refused: what was found, and what to do."""
    shape = tuple(logits.shape)
    if what := special_layers(model):
        return BackboneError(expected("the model's output", "that of a linear layer, or its softmax", what))
    if logits.ndim > 2 and logits.numel() > len(logits) * logits.shape[1]:
        return BackboneError(
            expected(
                "model(batch)",
                "the output of a linear layer or 1x1 convolution, for each input or at every position, interpolated "
                "(if at all) to the nearest or linearly",
                f"{shape}, which no such layer gave; let the model return the output of its last one",
            )
        )
    if not ran:
        found = f"one that ran none; {BY_HAND}" if wanted is None else f"a pass that did not run `{wanted}`"
        return BackboneError(expected("model", "a network that ends in a linear layer", found))
    if not bool(torch.isfinite(logits).all()):
        return BackboneError(expected("the model's output", "finite", "NaN or infinite values"))
    name, layer, (_, outputs) = ran[-1]
    size = weights_of(layer)[0].shape[0]
    if logits.numel() != len(logits) * size:
        got = f"`{name}` with {size} outputs as the last one to run, and {shape} from the model"
    else:
        got = f"{_describe_rest(flatten_positions(outputs, layer), logits)} after `{name}`, the last one to run"
    hint = "name another with `last_layer`" if wanted is None else "leave out `last_layer` to have it found"
    hint = f"; let the model return the logits of that layer, or {hint}"
    if wanted is None and logits.numel() != len(logits) * size:
        hint = f"; {BY_HAND}"
    return BackboneError(expected("the model's output", "that of a linear layer, or its softmax", got + hint))


def special_layers(model: nn.Module) -> str | None:
    """Say what to do about layers that compute something else than their weights say; None if there are none."""
    for name, module in model.named_modules():
        if "quantized" in type(module).__module__ or "quant" in type(module).__name__.lower():
            return f"quantised layers (`{name}`); retrofit the network first, or leave its last layer in floating point"
        if any("lora" in key.lower() for key in (*module._parameters, *module._modules)):
            return f"an adapter beside `{name}`; merge it into the layer first (`merge_and_unload()` of peft does)"
    return None


def nearly_equal(a: Tensor, b: Tensor) -> bool:
    """Check for equality up to rounding, relative to the largest number: untrained layers have small outputs."""
    share = 3e-2 if a.dtype in (torch.float16, torch.bfloat16) else 1e-3
    return a.shape == b.shape and bool((a.float() - b.float()).abs().amax() <= share * b.float().abs().amax())
