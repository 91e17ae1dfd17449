"""What taps add to the time of a prediction: one pass with and without them, as ratios to the network alone.

Networks with random weights; the machine's noise is shared by all columns of a row, which alternate.

    python benchmarks/taps.py
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn
from tqdm import tqdm

from repulse import Recipe, tasks
from repulse.backbone import split
from repulse.ensemble import Ensemble
from repulse.evaluation.table import Column, Table
from repulse.particles.heads import Heads
from repulse_lab.networks.resnet_cifar import ResNetCifar


def networks() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Models and a batch for each; those of timm if it is there."""
    found = {"ResNet-20 (CIFAR), 32 px": (ResNetCifar(20), torch.randn(128, 3, 32, 32))}
    try:
        from repulse._operators import define_missing

        define_missing()
        import timm
    except ImportError:
        return found
    for name, side, size in (("resnet18", 96, 32), ("resnet50", 96, 16), ("vit_tiny_patch16_224", 224, 8)):
        found[f"{name}, {side} px"] = (timm.create_model(name, num_classes=10), torch.randn(size, 3, side, side))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="how often each is timed")
    arguments = parser.parse_args()
    table = Table("network", (Column("features", 0), Column("with taps", 0), Column("last", 3), Column("auto", 3)))
    for name, (model, batch) in tqdm(networks().items(), desc="networks"):
        model.eval()
        runs = {"alone": model}
        widths = []
        for layers in ("last", "auto"):
            backbone = split(model, batch[:4], layers=layers)
            widths.append(backbone.width)
            heads = Heads(Recipe().heads, backbone.width, tasks.Classification(10))
            runs[layers] = Ensemble(backbone, heads).predict
        times: dict[str, list[float]] = {key: [] for key in runs}
        with torch.no_grad():
            for _ in range(arguments.rounds + 2):
                for key, run in runs.items():
                    begun = time.perf_counter()
                    run(batch)
                    times[key].append(time.perf_counter() - begun)
        middle = {key: statistics.median(values[2:]) for key, values in times.items()}
        table.add(name, [[*widths, middle["last"] / middle["alone"], middle["auto"] / middle["alone"]]])
    print(table.text())


if __name__ == "__main__":
    main()
