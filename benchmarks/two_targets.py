"""Two numbers at once, on the UCI power plant: electrical output (MW) and relative humidity (%) of each hour.

Both are predicted from temperature, exhaust vacuum and pressure. The tenth of hours that are hottest are in no fit:
they should be doubted. A small network is trained; half of the held-out hours measure the noise, the other half judges.
The data's copy of UCI energy has one of its two targets only, which is why it is not that.

REPULSE_DATA=... python benchmarks/two_targets.py
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import repulse

NAMES, OUTPUT = ("output, MW", "humidity, %"), Path("files") / "uci" / "power-plant" / "data.txt"


def plant(seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return inputs and targets of each part, inputs in the units of the training data."""
    table = torch.from_numpy(np.loadtxt(Path(os.environ["REPULSE_DATA"]) / OUTPUT)).float()
    hot = table[:, 0] >= table[:, 0].quantile(0.9)
    usual = table[~hot][torch.randperm(int((~hot).sum()), generator=torch.Generator().manual_seed(seed))]
    cut = len(usual) * 7 // 10
    middle = (cut + len(usual)) // 2
    parts = {"train": usual[:cut], "validation": usual[cut:middle], "test": usual[middle:], "hot": table[hot]}
    mean, std = usual[:cut, :3].mean(dim=0), usual[:cut, :3].std(dim=0)
    inputs = {name: (part[:, :3] - mean) / std for name, part in parts.items()}
    return inputs, {name: part[:, [4, 3]] for name, part in parts.items()}


def trained(x: Tensor, y: Tensor, seed: int) -> nn.Module:
    """A perceptron, trained on targets of unit variance, that gives them in their own units."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, y.shape[1]))
    mean, std = y.mean(dim=0), y.std(dim=0)
    adam = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(1500):
        rows = torch.randint(len(x), (256,))
        loss = (network(x[rows]) - (y[rows] - mean) / std).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    with torch.no_grad():
        last = network[-1]
        assert isinstance(last, nn.Linear)
        last.weight *= std.unsqueeze(1)
        last.bias.copy_(last.bias * std + mean)
    return network.eval()


def figures(p: repulse.RegressionPrediction, y: Tensor) -> list[float]:
    return [repulse.metrics.rmse(p, y), repulse.metrics.nll(p, y), 100 * repulse.metrics.interval_coverage(p, y)]


def main() -> None:
    found: dict[str, list[list[float]]] = {}
    ranked: dict[str, list[float]] = {}
    for seed in range(3):
        x, y = plant(seed)
        network = trained(x["train"], y["train"], seed)
        batches = {name: list(zip(x[name].split(512), y[name].split(512), strict=True)) for name in x}
        recipe = repulse.Recipe(task="regression", seed=seed)
        ensemble = repulse.retrofit(
            network, batches["train"], validation=batches["validation"], recipe=recipe, progress=False
        )
        p, hot = ensemble.predict(x["test"]), ensemble.predict(x["hot"])
        assert isinstance(p, repulse.MultiregressionPrediction)
        assert isinstance(hot, repulse.MultiregressionPrediction)
        with torch.no_grad():
            noise = (network(x["validation"]) - y["validation"]).square().mean(dim=0)
            alone = repulse.MultiregressionPrediction(network(x["test"])[None], noise.expand(1, len(x["test"]), 2))
        for k, name in enumerate(NAMES):
            for who, one in (("network, noise", alone), ("repulse", p)):
                found.setdefault(f"{name} | {who}", []).append(figures(one.target(k), y["test"][:, k]))
            each = repulse.metrics.auroc(p.epistemic[:, k], hot.epistemic[:, k])
            ranked.setdefault(f"epistemic, {name}", []).append(each)
        both = repulse.metrics.auroc(p.joint_epistemic, hot.joint_epistemic)
        ranked.setdefault("joint epistemic", []).append(both)
    print("| target | | RMSE | NLL | inside 95 % |\n| --- | --- | --- | --- | --- |")
    for name, rows in found.items():
        rmse, nll, inside = np.mean(rows, axis=0)
        print(f"| {name} | {rmse:.2f} | {nll:.3f} | {inside:.1f} |")
    print("\n| hottest hours by | AUROC |\n| --- | --- |")
    for name, values in ranked.items():
        print(f"| {name} | {100 * np.mean(values):.1f} |")


if __name__ == "__main__":
    main()
