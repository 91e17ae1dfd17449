"""ONNX files: the whole ensemble, network included, for runtimes without Python or PyTorch."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repulse._files import explaining_writes, sweep, without_nan, write_whole
from repulse._version import __version__
from repulse.backbone.batches import call, first_samples, inputs_of, map_tensors, size_of, tensors_of, to_device
from repulse.backbone.forms import example_of
from repulse.decide.decision import ACTIONS
from repulse.ensemble import Ensemble
from repulse.errors import BackboneError, DataError, RepulseError, expected

TRACED = 2
"""Number of samples of the example that is traced: one would be taken for the number that all batches have."""


def export(ensemble: Ensemble, path: str | Path, example: Any = None) -> Path:
    """Write an ensemble as an ONNX file: from the network's inputs to the tensors of `ensemble.deploy()`.

    Class names, the fingerprint of the network, the promise of a gate and the version of repulse are in the metadata of
    the file.

    Args:
        ensemble: the ensemble.
        path: of the file; a kill leaves what was there before, or the new.
        example: inputs of any number of samples; not needed if the ensemble knows their shapes from its fit.
    """
    return write(ensemble.deploy(), path, inputs_like(ensemble, example), about(ensemble))


def about(ensemble: Ensemble) -> dict[str, str]:
    """Return what the metadata of an exported ensemble says, as JSON where it is not plain text."""
    found = {
        "repulse_version": __version__,
        "repulse_task": ensemble.heads.task.kind,
        "repulse_network": json.dumps(ensemble.network),
        "repulse_repulsion": ensemble.repulsion,
    }
    if ensemble.has_gate:
        gate = ensemble.gate()
        held = {"foreign_above": gate.thresholds.foreign, "most_doubt": gate.thresholds.doubt}
        said = {"decisions": ACTIONS, "promise": asdict(gate.promise), "basis": asdict(gate.basis), **without_nan(held)}
        found["repulse_gate"] = json.dumps({**said, "in_words": gate.lines()}, allow_nan=False)
    if ensemble.class_names is not None:
        found["class_names"] = json.dumps(list(ensemble.class_names), ensure_ascii=False)
    return found


def inputs_like(ensemble: Ensemble, example: Any = None) -> Any:
    """Return inputs to trace: a few samples of the example, or ones of the shapes that the fit has seen."""
    backbone = ensemble.backbone
    if example is not None:
        inputs = inputs_of(example, "example", several=backbone.several)
    elif backbone.forms:
        inputs = example_of(backbone.forms, TRACED)
    else:
        raise DataError(expected("example", "a batch of inputs, whose shapes this ensemble does not know", "none"))
    if not size_of(inputs):
        raise DataError(expected("example", "at least one sample", "none"))
    inputs = to_device(inputs, next(ensemble.heads.parameters()).device)
    few, size = first_samples(inputs, TRACED), size_of(inputs)
    return few if size > 1 else _twice(few)


def write(module: nn.Module, path: str | Path, inputs: Any, metadata: Mapping[str, str]) -> Path:
    """Write a module that returns a `NamedTuple` of tensors, batch first, as an ONNX file with outputs of these names.

    Args:
        module: traced by `torch.export`.
        path: of the file.
        inputs: to trace it on, in the form in which `call` feeds them; at least two samples.
        metadata: what the file says about itself.
    """
    _check_packages()
    path = Path(path)
    if path.is_dir():
        raise DataError(expected("path", "a file, such as 'model.onnx'", f"the folder {path}"))
    with torch.no_grad():
        outputs = call(module, inputs)._fields
    names = [name if isinstance(inputs, Mapping) else f"input_{name}" for name, _ in tensors_of(inputs)]
    names = ["input"] if isinstance(inputs, Tensor) else names
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which speak of the insides of the exporter
        traced = _traced(module, inputs)
        program: Any = torch.onnx.export(traced, dynamo=True, verbose=False)
    _rename(program.model.graph, names, outputs)
    program.model.metadata_props.update(metadata)
    with explaining_writes(path):
        write_whole(path, program.model_proto.SerializeToString())
        sweep(path)
    return path


def _rename(graph: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Name inputs and outputs of a graph; what happens to have one of these names inside gets another."""
    taken = {*inputs, *outputs}
    for node in graph:
        for value in node.outputs:
            if value.name in taken:
                value.name = f"{value.name}_inside"
    for value, name in zip((*graph.inputs, *graph.outputs), (*inputs, *outputs), strict=True):
        value.name = name


class _Called(nn.Module):
    """A module with one argument, however many its own forward has: `torch.export` knows the shapes of this one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Any) -> Any:
        return call(self.module, inputs)


def _traced(module: nn.Module, inputs: Any) -> torch.export.ExportedProgram:
    shapes = {"inputs": map_tensors(inputs, _free_axes)}  # pyright: ignore[reportArgumentType]
    try:
        return torch.export.export(_Called(module), (inputs,), dynamic_shapes=shapes, strict=False)
    except Exception as reason:  # torch raises many kinds for what it cannot trace
        why = (str(reason).strip().splitlines() or [type(reason).__name__])[0].rstrip(".")
        raise BackboneError(expected("model", "one that `torch.export` can trace", why)) from reason


def _free_axes(value: Tensor) -> dict[int, Any]:
    """Return the axes whose size a caller may choose: the batch, and the length of a text if the network allows it."""
    free: dict[int, Any] = {0: torch.export.Dim.DYNAMIC}
    if value.ndim == 2 and not value.is_floating_point():
        free[1] = torch.export.Dim.AUTO
    return free


def _twice(inputs: Any) -> Any:
    """Repeat the one sample of some inputs."""
    if isinstance(inputs, Tensor):
        return torch.cat([inputs, inputs])
    if isinstance(inputs, Mapping):
        return {key: _twice(value) for key, value in inputs.items()}
    return tuple(_twice(value) for value in inputs)


def _check_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as reason:
        wanted = "installed for an export: `pip install 'repulse[onnx]'`"
        raise RepulseError(expected("onnx and onnxscript", wanted, f"no package {reason.name}")) from reason
