"""Open a network by name, with the preprocessing that belongs to it.

resnet18, timm:resnet18     of timm, with the weights in --checkpoint; its own resizing and normalisation
folder/                     that `save_pretrained` wrote: of Hugging Face, or of timm, with its own preprocessing
package.module:function     or file.py:function, that returns the network, or (network, transform)
linear                      the last layer alone, with `weight` and `bias` in --checkpoint, for ready features
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repulse._files import read_regular
from repulse._operators import define_missing
from repulse.errors import BackboneError, expected, in_one_line
from repulse.files.batches import Prepare
from repulse.files.columns import Kind
from repulse.files.samples import need, open_image

FORMS = "a name of timm, a folder of Hugging Face, package.module:function, or linear"
READERS = 4
"""Threads that open images at the same time."""


@dataclass(frozen=True)
class Network:
    """A network, and what it takes.

    Attributes:
        model: in eval mode.
        transform: what belongs to it: of one image, of a list of texts, or of rows; None for rows that it takes as
            they are.
        kind: what samples it takes; None if the data decides.
        batched: whether the transform takes a list of images rather than one.
        class_names: names of its outputs, if it knows them.
    """

    model: nn.Module
    transform: Callable[..., Any] | None = None
    kind: Kind | None = None
    batched: bool = False
    class_names: tuple[str, ...] | None = None

    def prepare(self, kind: Kind) -> Prepare:
        """Return what turns the values of samples into inputs."""
        if kind == "images":
            if self.transform is None:
                wanted = "a function that returns (network, transform), for images"
                raise BackboneError(expected("model", wanted, "a network without a transform"))
            return _Images(self.transform, self.batched)
        if kind == "texts":
            if self.transform is None:
                wanted = "a function that returns (network, transform), for texts"
                raise BackboneError(expected("model", wanted, "a network without a transform"))
            return _Texts(self.transform)
        return _Rows(self.transform)


def open_network(name: str, checkpoint: str | Path | None = None) -> Network:
    """Open a network by its name.

    Args:
        name: in one of the forms of this module's first lines.
        checkpoint: file of the weights, where the name does not hold them; a function is called with its path.
    """
    checkpoint = None if checkpoint is None else Path(checkpoint)
    if checkpoint is not None and not checkpoint.exists():
        raise BackboneError(expected("--checkpoint", "a file of weights", f"{checkpoint}, which does not exist"))
    if Path(name).is_dir():
        found = _folder(Path(name))
    elif name == "linear":
        found = _linear(checkpoint)
    elif name.startswith("timm:"):
        found = _timm(name.removeprefix("timm:"), checkpoint)
    elif ":" in name:
        found = _function(name, checkpoint)
    elif importlib.util.find_spec("timm") is not None and name.isidentifier():
        found = _timm(name, checkpoint)
    else:
        raise BackboneError(expected("model", FORMS, repr(name)))
    found.model.eval()
    return found


class _Images:
    """Open images a few at a time, and stack what the transform makes of them."""

    def __init__(self, transform: Callable[..., Any], batched: bool) -> None:
        self.transform, self.batched = transform, batched

    def __call__(self, values: Sequence[Any]) -> Any:
        with ThreadPoolExecutor(min(READERS, os.cpu_count() or 1)) as pool:
            if self.batched:
                return dict(self.transform(list(pool.map(open_image, values)), return_tensors="pt"))
            return torch.stack(list(pool.map(lambda value: self.transform(open_image(value)), values)))


class _Texts:
    def __init__(self, transform: Callable[..., Any]) -> None:
        self.transform = transform

    def __call__(self, values: Sequence[str]) -> Any:
        made = self.transform(list(values))
        return made if isinstance(made, Tensor) else dict(made)


class _Rows:
    def __init__(self, transform: Callable[..., Any] | None) -> None:
        self.transform = transform

    def __call__(self, values: np.ndarray) -> Any:
        rows = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
        return rows if self.transform is None else self.transform(rows)


class _Tokenize:
    """Pad and cut a batch of texts as the tokenizer says."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, texts: list[str]) -> Any:
        return self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")


def _timm(name: str, checkpoint: Path | None) -> Network:
    need("timm", "a network of timm", "timm")
    define_missing()
    import timm
    from timm.data import create_transform, resolve_data_config  # pyright: ignore[reportPrivateImportUsage]
    from timm.models import load_state_dict  # pyright: ignore[reportPrivateImportUsage]

    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=1)
        raise BackboneError(expected("model", FORMS, repr(name)) + (f" Did you mean {near[0]!r}?" if near else ""))
    if checkpoint is None:
        raise BackboneError(expected("--checkpoint", f"the file with the weights of timm's {name}", "none"))
    try:
        weights = load_state_dict(str(checkpoint), device="cpu", weights_only=True)
        layer = timm.get_pretrained_cfg_value(name, "classifier")
        layer = layer[0] if isinstance(layer, tuple | list) else layer
        outputs = len(weights[f"{layer}.weight"])
        model = timm.create_model(name, num_classes=outputs)
        model.load_state_dict(weights)
    except Exception as reason:  # of whatever the file holds
        why = str(reason).strip().splitlines()[0].rstrip(".: ")
        got = f"one on which loading fails: {type(reason).__name__}: {why}"
        raise BackboneError(expected(f"{checkpoint}", f"the weights of timm's {name}", got)) from reason
    transform: Any = create_transform(**resolve_data_config({}, model=model))
    return Network(model, transform, "images")


def _folder(folder: Path) -> Network:
    try:
        config = dict(json.loads(read_regular(folder / "config.json")))
        architecture = str((config.get("architectures") or ["nothing"])[0])
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as reason:
        wanted = "a folder that `save_pretrained` wrote, with config.json in it"
        raise BackboneError(expected("model", wanted, f"{folder}")) from reason
    if "architecture" in config:
        return _timm_folder(folder)
    if "Classification" not in architecture:  # its last layer would be made up
        got = f"{architecture} in {folder}"
        raise BackboneError(expected("model", "a classifier, whose last layer is trained", got))
    need("transformers", "a network of Hugging Face", "hf")
    define_missing()
    import transformers

    texts = not (folder / "preprocessor_config.json").exists()
    local: dict[str, Any] = {"local_files_only": True}
    try:
        model = getattr(transformers, architecture).from_pretrained(str(folder), **local)
        loader = transformers.AutoTokenizer if texts else transformers.AutoImageProcessor
        processor = loader.from_pretrained(str(folder), **local)
    except (OSError, ValueError, AttributeError, KeyError, ImportError) as reason:
        why = str(reason).strip().splitlines()[0].rstrip(".: ")
        raise BackboneError(expected(f"{folder}", "a whole network with its preprocessing", why)) from reason
    transform = _Tokenize(processor) if texts else processor
    known = model.config.id2label
    names = tuple(str(known[i]) for i in range(len(known)))
    invented = names == tuple(f"LABEL_{i}" for i in range(len(names)))
    return Network(model, transform, "texts" if texts else "images", not texts, None if invented else names)


def _timm_folder(folder: Path) -> Network:
    need("timm", "a network of timm", "timm")
    define_missing()
    import timm
    from timm.data import create_transform, resolve_data_config  # pyright: ignore[reportPrivateImportUsage]

    try:
        model = timm.create_model(f"local-dir:{folder}", pretrained=True)
    except (OSError, ValueError, RuntimeError, AssertionError) as reason:
        why = (str(reason).strip().splitlines() or [type(reason).__name__])[0].rstrip(".: ")
        raise BackboneError(expected(f"{folder}", "a whole network of timm", why)) from reason
    names = (getattr(model, "pretrained_cfg", None) or {}).get("label_names")
    transform: Any = create_transform(**resolve_data_config({}, model=model))
    return Network(model, transform, "images", class_names=tuple(names) if names else None)


def _function(name: str, checkpoint: Path | None) -> Network:
    where, _, function = name.rpartition(":")
    try:
        found = getattr(_module(where), function)
        made = found() if checkpoint is None else found(checkpoint=checkpoint)
    except Exception as reason:  # of code that is not ours
        wanted = "a function that returns the network"
        raise BackboneError(expected(f"{name}", wanted, in_one_line(reason))) from reason
    model, transform = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module) or not (transform is None or callable(transform)):
        got = f"({', '.join(type(part).__name__ for part in made)})" if isinstance(made, tuple) else type(made).__name__
        raise BackboneError(expected(f"what {name} returns", "a network, or (network, transform)", got))
    return Network(model, transform)


def _module(where: str) -> Any:
    """Import a module by name, from the current folder too, or from a file."""
    if not where.endswith(".py"):
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        return importlib.import_module(where)
    path = Path(where).resolve()
    name = f"repulse_opened_{path.stem}"
    if getattr(sys.modules.get(name), "__file__", None) == str(path):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise FileNotFoundError(f"there is no {where}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pickles look for it
    spec.loader.exec_module(module)
    return module


def _linear(checkpoint: Path | None) -> Network:
    if checkpoint is None:
        raise BackboneError(expected("--checkpoint", "a file with `weight` and `bias` of the last layer", "none"))
    try:
        if checkpoint.suffix == ".npz":
            with np.load(checkpoint, allow_pickle=False) as file:
                weight, bias = (torch.from_numpy(file[name]).float() for name in ("weight", "bias"))
        else:
            from safetensors.torch import load_file

            weights = load_file(checkpoint)
            weight, bias = weights["weight"].float(), weights["bias"].float()
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": bias})
    except Exception as reason:  # of whatever the file holds
        wanted = "a .safetensors or .npz file with `weight` (K, d) and `bias` (K,)"
        raise BackboneError(expected(f"{checkpoint}", wanted, in_one_line(reason))) from reason
    return Network(nn.Sequential(nn.Identity(), layer), kind="rows")
