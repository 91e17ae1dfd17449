"""The files of a saved ensemble: written whole, checked when read.

    ensemble.json             the recipe, the task, the network's fingerprint, layers, class names, history, versions,
                              and which heads it speaks of
    heads-<digest>.safetensors  the weights of the heads
    gate-<digest>.safetensors   the calibration data of the gate, if there is one

Heads and gate are written first, under names that no others have, and `ensemble.json` is replaced in one step
afterwards: whenever a save is cut short, the folder holds the old ensemble or the new one. Nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import nn

from repulse._files import read_regular, sealed, sweep, unsealed, write_whole
from repulse._locks import locked
from repulse._schema import mismatch
from repulse._version import __version__
from repulse.backbone.endings import Ending, is_last_layer
from repulse.backbone.fingerprint import architecture_of, weights_of
from repulse.backbone.forms import Form
from repulse.backbone.places import Places
from repulse.backbone.split import Backbone, unwrap
from repulse.backbone.taps import Tap
from repulse.errors import CheckpointError, expected
from repulse.particles.centre import Centre
from repulse.particles.centred import CentredHeads
from repulse.particles.heads import Heads
from repulse.particles.history import Epoch
from repulse.particles.tasks import KINDS, Task
from repulse.recipe import Recipe
from repulse.summary import Summary

KeptGate = tuple[dict[str, Any], dict[str, torch.Tensor]]
"""A gate as plain data and tensors; what they mean is known to `decide.gate` alone."""

FORMAT = 1
METADATA = "ensemble.json"
LOCK = ".lock"
MAX_METADATA = 2**26
"""Bytes of `ensemble.json`, at most: a thousand times what thousands of epochs take."""
FLOATS = (torch.float32, torch.float64)
"""Types of the weights of heads."""


@dataclass(frozen=True)
class Contents:
    """What makes up an ensemble: the arguments of `Ensemble`, which are described there."""

    backbone: Backbone
    heads: Heads
    repulsion: str
    class_names: tuple[str, ...] | None
    network: dict[str, str]
    summary: Summary | None = None
    gate: KeptGate | None = None


@dataclass(frozen=True)
class _SavedHeads:
    file: str
    sha256: str
    count: int
    features: int


@dataclass(frozen=True)
class _SavedStructure:
    centre: Centre
    known: int
    axes: int
    ends: int
    bands: int
    measures: int
    gaussians: int
    leading: int


@dataclass(frozen=True)
class _Saved:
    """What `ensemble.json` holds, each entry as plain JSON of that type; a task and a summary say more themselves."""

    format: int
    versions: dict[str, str]
    heads: _SavedHeads
    centred: _SavedStructure | None
    task: dict[str, Any]
    recipe: Recipe | None
    network: dict[str, str]
    ending: Ending
    several: int | None
    taps: list[Tap]
    repulsion: str
    class_names: list[str] | None
    summary: dict[str, Any] | None
    history: list[Epoch]
    channels_last: bool = False
    inputs: list[Form] | None = None
    places: dict[str, Any] | None = None
    gate: dict[str, Any] | None = None


def save(contents: Contents, folder: str | Path) -> Path:
    """Write the heads of an ensemble, and what is known of them, to a folder."""
    folder = Path(folder)
    heads, backbone = contents.heads, contents.backbone
    if heads.bias.dtype not in FLOATS:
        raise CheckpointError(expected("heads", "float32 or float64", heads.bias.dtype))
    written = {"heads": _as_bytes(heads.state_dict())}
    if contents.gate is not None:
        written["gate"] = _as_bytes(contents.gate[1])
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in written.items()}
    files = {name: f"{name}-{digest[:16]}.safetensors" for name, digest in digests.items()}
    about = {
        "format": FORMAT,
        "versions": {"repulse": __version__, "torch": str(torch.__version__)},
        "heads": {
            "file": files["heads"],
            "sha256": digests["heads"],
            "count": heads.count,
            "features": heads.features,
        },
        "centred": _structure_of(heads),
        "task": {"kind": heads.task.kind, **dataclasses.asdict(heads.task)},
        "recipe": None if heads.recipe is None else dataclasses.asdict(heads.recipe),
        "network": contents.network,
        "ending": dataclasses.asdict(backbone.ending),
        "several": backbone.several,
        "channels_last": backbone.channels_last,
        "taps": [dataclasses.asdict(tap) for tap in backbone.taps],
        "inputs": [dataclasses.asdict(form) for form in backbone.forms],
        "places": backbone.places.to_dict(),
        "repulsion": contents.repulsion,
        "class_names": contents.class_names,
        "summary": None if contents.summary is None else contents.summary.to_dict(),
        "history": [dataclasses.asdict(epoch) for epoch in heads.history],
    }
    if contents.gate is not None:
        about["gate"] = {**contents.gate[0], "file": files["gate"], "sha256": digests["gate"]}
    try:
        text = sealed(about)
    except ValueError as reason:
        raise CheckpointError(expected("the history of the fit", "of finite numbers", reason)) from reason
    try:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(20, "it is a file")
        with _save_lock(folder):
            for name, content in written.items():
                write_whole(folder / files[name], content)
            write_whole(folder / METADATA, text)
            sweep(folder / METADATA)
            for kind in ("heads", "gate"):
                for stale in (*folder.glob(f"{kind}-*.safetensors"), *folder.glob(f".{kind}-*.safetensors.*")):
                    if stale.name != files.get(kind):
                        stale.unlink(missing_ok=True)
    except OSError as reason:
        got = f"{folder}, where {reason.strerror or reason}"
        raise CheckpointError(expected("folder", "a folder that can be written to", got)) from reason
    return folder


def read(folder: str | Path, model: nn.Module, places: Places | None = None) -> Contents:
    """Read what `save` wrote, for the network that the heads were fitted on.

    Args:
        folder: what `save` was given.
        model: the same network with the same weights; it is shared, not copied, and the heads go to its device.
        places: where things are, in place of those that were saved.

    Raises:
        CheckpointError: the folder is not one of `save`, is damaged, was written in another format, or its heads were
            fitted on another network.
    """
    if not isinstance(folder, str | os.PathLike):
        raise CheckpointError(expected("folder", "a path", type(folder).__name__))
    folder = Path(folder)
    about = _read_metadata(folder)
    if not (folder / about["heads"]["file"]).exists():  # a save may have come in between
        about = _read_metadata(folder)
    model = unwrap(model)
    _check_network(about["network"], model)
    try:
        task = dict(about["task"])
        task = KINDS[task.pop("kind")](**_with_tuples(task))
        recipe = None if about["recipe"] is None else Recipe(**_with_tuples(about["recipe"]))
        ending, taps = Ending(**_with_tuples(about["ending"])), [Tap(**tap) for tap in about["taps"]]
        if any(min(tap.columns, tap.group) < 1 for tap in taps):
            raise ValueError("a tap of no columns")
        history = tuple(Epoch(**epoch) for epoch in about["history"])
        hidden = () if recipe is None else recipe.hidden
        numbers = _numbers(about, task, hidden)
        weights = _read_tensors(folder, about["heads"], "heads", numbers)  # as many as it says: there is room
        heads = _empty_heads(about, task, hidden)
        heads.load_state_dict(weights, assign=True)  # of the type they had
        layers = [model.get_submodule(name) for name in ending.layers]
        forms = [Form(**_with_tuples(form)) for form in about.get("inputs") or ()]  # older ones do not say
        places = (places or Places()).restored(about.get("places") or {})
        summary = None if about["summary"] is None else Summary.from_dict(about["summary"])
        gate = about.get("gate")
        gate = None if gate is None else (gate, _read_tensors(folder, gate, "gate"))
    except CheckpointError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, OverflowError) as reason:
        why = (str(reason).splitlines() or [type(reason).__name__])[0].rstrip(".")
        raise CheckpointError(
            expected(str(folder / METADATA), "as `save` wrote it", f"entries that make no sense: {why}")
        ) from reason
    backbone = Backbone(model, ending, taps, about["several"], about.get("channels_last", False), forms, places)
    if not layers or not all(map(is_last_layer, layers)) or backbone.width != heads.features:
        got = f"{backbone.width if layers else 'no last layer'} from this network"
        raise CheckpointError(expected("features", f"{heads.features}, as the heads take", got))
    heads.recipe, heads.history = recipe, history
    heads.requires_grad_(False)
    heads.to(next((p.device for p in model.parameters()), torch.device("cpu")))
    names = None if about["class_names"] is None else tuple(about["class_names"])
    if names is not None and len(names) != (task.class_count or task.compared_outputs):
        wanted = f"{task.class_count or task.compared_outputs}"
        raise CheckpointError(expected(f"class names in {folder / METADATA}", wanted, len(names)))
    return Contents(backbone, heads, about["repulsion"], names, about["network"], summary, gate)


def _structure_of(heads: Heads) -> dict[str, Any] | None:
    """Return what is needed to make room for heads around a centre; None for heads without one."""
    if not isinstance(heads, CentredHeads):
        return None
    return {"centre": dataclasses.asdict(heads.centre), **heads.structure}


def _empty_heads(about: dict[str, Any], task: Task, hidden: tuple[int, ...]) -> Heads:
    """Make room for the tensors of saved heads."""
    count, features = about["heads"]["count"], about["heads"]["features"]
    if about["centred"] is None:
        return Heads(count, features, task, hidden, torch.Generator())  # not the caller's
    structure = dict(about["centred"])
    return CentredHeads(count, features, task, hidden, centre=Centre(**structure.pop("centre")), **structure)


def _numbers(about: dict[str, Any], task: Task, hidden: tuple[int, ...]) -> int:
    """Return how many numbers the heads that a file speaks of have, before there is room for them."""
    count, features = about["heads"]["count"], about["heads"]["features"]
    sizes = [count, features, task.outputs, *hidden]
    structure, others = about["centred"], 0
    if structure is not None:
        known, axes, ends = (structure[name] for name in ("known", "axes", "ends"))
        measures, classes, leading = (structure[name] for name in ("measures", "gaussians", "leading"))
        sizes += [1 + known, axes, ends, 1 + measures, 1 + classes, 1 + leading]
        others = task.compared_outputs * (known + 1) + features * (axes + 2) + 2 * ends + 2
        others += 2 * measures + classes * (leading**2 + leading + 1)
    if min(sizes) < 1:
        raise ValueError("a size below 1")
    widths = [features if structure is None else features + 1 + structure["ends"], *hidden, task.outputs]
    return count * sum((a + 1) * b for a, b in zip(widths, widths[1:], strict=False)) + others


def _read_metadata(folder: Path) -> dict[str, Any]:
    """Read the JSON of a saved ensemble, and check that it is whole, of a known format, and says what it must."""
    path = folder / METADATA
    try:
        text = read_regular(path, MAX_METADATA)
        about = json.loads(text)
    except OSError as reason:
        got = f"{folder}, where {reason.strerror or reason}"
        raise CheckpointError(expected("folder", f"one that `save` wrote, with {METADATA} in it", got)) from reason
    except (ValueError, RecursionError) as reason:
        raise CheckpointError(expected(str(path), "whole", f"something that is no JSON ({reason})")) from reason
    if not isinstance(about, dict) or about.get("format") != FORMAT or isinstance(about.get("format"), bool):
        found = about.get("format") if isinstance(about, dict) else type(about).__name__
        got = f"{found!r}; a newer repulse may read it"
        raise CheckpointError(expected(f"the format of {path}", str(FORMAT), got))
    try:
        about = unsealed(text)
    except ValueError as reason:  # also NaN, or half a character: `save` writes neither
        raise CheckpointError(expected(str(path), "as `save` wrote it", "one that was changed since")) from reason
    wrong = mismatch(about, _Saved, "it") or _mismatch_in_task(about["task"])
    wrong = wrong or _mismatch_in_network(about["network"])
    if wrong is not None:
        got = f"entries that make no sense: {' '.join(wrong.split())}"
        raise CheckpointError(expected(str(path), "as `save` wrote it", got))
    return about


def _mismatch_in_task(task: dict[str, Any]) -> str | None:
    kind = task.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        return f"it.task.kind is {kind!r}"
    return mismatch({name: value for name, value in task.items() if name != "kind"}, KINDS[kind], "it.task")


def _mismatch_in_network(network: dict[str, str]) -> str | None:
    wanted = ["class", "shapes", "weights"]
    return None if sorted(network) == wanted else f"it.network has {sorted(network)}, not {wanted}"


def _as_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    return safetensors.save({name: value.cpu().contiguous() for name, value in tensors.items()})


def _read_tensors(folder: Path, kept: dict[str, Any], what: str, numbers: int | None = None) -> dict[str, torch.Tensor]:
    """Read the tensors of the heads or of the gate, and check that they are the ones that were saved, and as many."""
    path = folder / kept["file"]
    if path.parent != folder or path.name != kept["file"]:
        raise CheckpointError(expected(f"the file of the {what}", "in the folder itself", repr(kept["file"])))
    try:
        content = read_regular(path, None if numbers is None else 8 * numbers + 2**20)
    except OSError as reason:
        raise CheckpointError(expected("folder", f"one with {path.name} in it", reason.strerror or reason)) from reason
    if hashlib.sha256(content).hexdigest() != kept["sha256"]:
        got = f"{len(content)} bytes of something else; it was cut short or changed"
        raise CheckpointError(expected(str(path), f"the {what} that {'were' if what == 'heads' else 'was'} saved", got))
    try:
        tensors = safetensors.load(content)
    except (SafetensorError, KeyError) as reason:
        raise CheckpointError(expected(str(path), "a safetensors file", reason)) from reason
    found = sum(value.numel() for value in tensors.values())
    kinds = {value.dtype for value in tensors.values()}
    if numbers is None:
        return tensors
    if found != numbers or not kinds <= {*FLOATS, torch.int64}:
        got = f"{found:,} of {', '.join(sorted(map(str, kinds)))}"
        raise CheckpointError(expected(str(path), f"{numbers:,} numbers of float32 or float64", got))
    return tensors


def _check_network(saved: dict[str, str], model: nn.Module) -> None:
    """Refuse a network other than the one the heads were fitted on."""
    if not isinstance(model, nn.Module):
        raise CheckpointError(expected("model", "the network the heads were fitted on", type(model).__name__))
    here = architecture_of(model)
    if here["shapes"] != saved["shapes"]:
        got = f"a {here['class']} with other parameters"
        for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            if architecture_of(model, kind)["shapes"] == saved["shapes"]:
                mine = next(p.dtype for p in model.parameters() if p.dtype != kind)
                got = f"the same with parameters of {mine}; they were {kind} when the heads were fitted"
        raise CheckpointError(expected("model", f"the {saved['class']} the heads were fitted on", got))
    if weights_of(model) != saved["weights"]:
        got = "the same architecture with other weights"
        raise CheckpointError(expected("model", f"the {saved['class']} the heads were fitted on", got))


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """Replace lists by tuples, which JSON does not have."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


@contextmanager
def _save_lock(folder: Path) -> Iterator[None]:
    """Allow one save at a time into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, f"is saving to {folder}"):
        yield
