"""Keep an unfinished training in a folder, and bring it back so that it goes on as if nothing had happened.

    training.safetensors    the network, the optimiser's state and, as JSON in the header, which training it is and a
                            record of each epoch that is behind it

One file, replaced in one step after every epoch: whenever the training is killed, it holds the last whole epoch.
Nothing is ever unpickled. Random numbers need no keeping: those of an epoch follow from the seed and its number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors import torch as safetensors
from torch import Tensor, nn

from repulse._files import sweep, write_whole
from repulse.backbone.fingerprint import digest_of, weights_of
from repulse.errors import CheckpointError, expected

FORMAT = 1
FILE = "training.safetensors"


@contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """Allow one training at a time in a folder; a killed one lets go of it."""
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock", timeout=0):
            sweep(folder / FILE)
            yield
    except Timeout as reason:
        got = f"{folder}, where another process is training"
        raise CheckpointError(expected("checkpoint", "a folder of this training alone", got)) from reason
    except OSError as reason:
        got = f"{folder}, where {reason.strerror or reason}"
        raise CheckpointError(expected("checkpoint", "a folder that can be written to", got)) from reason


def keep(
    folder: Path, about: dict[str, Any], records: list[Any], network: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Write everything the training needs to go on."""
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items() if value is not None}
    tensors = {name: value.detach().cpu().contiguous() for name, value in sorted(tensors.items())}
    header = {"format": FORMAT, "training": about, "records": records}
    header |= {"weights": weights_of(network), "digest": digest_of(tensors)}
    content = safetensors.save(tensors, metadata={"about": json.dumps(header, sort_keys=True, allow_nan=False)})
    write_whole(folder / FILE, content)


def bring_back(
    folder: Path, about: dict[str, Any], network: nn.Module, optimizer: torch.optim.Optimizer
) -> list[Any] | None:
    """Put the network and the optimiser where the kept training left them; its records, or None if there is none.

    Raises:
        CheckpointError: the file is damaged, or is of another training than `about` says.
    """
    path = folder / FILE
    if not path.exists():
        return None
    header, tensors = _read(path)
    kept = header["training"]
    other = [name for name in about if name != "weights" and kept.get(name) != about[name]]
    if not other and about["weights"] not in (kept["weights"], header["weights"]):
        other = ["weights"]  # neither those before the first epoch nor those that were kept
    if other:
        got = f"{folder}, of one with other {' and '.join(other)}"
        raise CheckpointError(expected("checkpoint", "a folder of this training, or an empty one", got))
    about["weights"] = kept["weights"]  # where the training began, whichever of the two networks came now
    state = {name.removeprefix("network."): value for name, value in tensors.items() if name.startswith("network.")}
    network.load_state_dict(state)
    _restore(optimizer, tensors)
    return header["records"]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the header and the tensors of a file that is whole and of a known format."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["about"])
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except (SafetensorError, KeyError, ValueError, OSError) as reason:
        raise CheckpointError(expected(str(path), "a training that was kept", f"a damaged file ({reason})")) from reason
    if header.get("format") != FORMAT:
        got = f"{header.get('format')!r}; a newer repulse may read it"
        raise CheckpointError(expected(f"the format of {path}", str(FORMAT), got))
    if header.get("digest") != digest_of(tensors):
        raise CheckpointError(expected(str(path), "as the training wrote it", "one that was changed since"))
    return header, tensors


def _restore(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, value in tensors.items():
        kind, _, rest = name.partition(".")
        if kind == "optimizer":
            index, _, key = rest.partition(".")
            like = parameters[int(index)]
            # In the memory layout of the parameter, as the optimiser made it: arithmetic may depend on it.
            own = torch.empty_like(like).copy_(value) if value.shape == like.shape else value.clone()
            optimizer.state[like][key] = own
