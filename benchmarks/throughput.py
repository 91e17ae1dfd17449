"""Measure images per second of a network with its heads on one thread, and write the table of docs/bulk.md.

    python benchmarks/throughput.py

ResNet-18 and ViT-B/16 of timm with random weights, at 224 px: speed does not depend on what they have learnt.
"""

from __future__ import annotations

import re
import statistics
import time
import warnings
from pathlib import Path

import torch

import repulse
from repulse._operators import define_missing

PAGE = Path(__file__).parents[1] / "docs" / "bulk.md"
NETWORKS = {"ResNet-18": "resnet18", "ViT-B/16": "vit_base_patch16_224"}
BATCH, REPEATS = 8, 7


def main() -> None:
    torch.set_num_threads(1)
    define_missing()
    import timm

    lines = ["| network | images per second, alone | with heads | processor hours per million images |"]
    lines.append("| --- | --- | --- | --- |")
    for name, model in NETWORKS.items():
        torch.manual_seed(0)
        network = timm.create_model(model, num_classes=10).eval()
        images = torch.rand(BATCH, 3, 224, 224)
        data = [(images, torch.arange(BATCH) % 10)]
        recipe = repulse.Recipe(repulsion_samples=BATCH)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ensemble = repulse.retrofit(
                network, data, repulsion=repulse.repulsion.Noise(1.0), recipe=recipe, progress=False
            )
        with torch.no_grad():
            alone, ours = [], []
            for _ in range(REPEATS):  # in turn, so that a busy moment meets both
                alone.append(seconds(lambda network=network, images=images: network(images)))
                ours.append(seconds(lambda e=ensemble, images=images: e.predict(images, progress=False).total))
        before, after = (BATCH / statistics.median(times) for times in (alone, ours))
        lines.append(f"| {name} | {before:.1f} | {after:.1f} | {1e6 / after / 3600:.0f} |")
    table = "\n".join(lines)
    print(table)
    page = PAGE.read_text(encoding="utf-8")
    marked = f"<!-- throughput -->\n\n{table}\n\n<!-- end of throughput -->"
    PAGE.write_text(re.sub(r"<!-- throughput -->.*?<!-- end of throughput -->", marked, page, flags=re.DOTALL))


def seconds(call) -> float:
    """Processor time of one call: what other programs do at the same time is not in it."""
    started = time.process_time()
    call()
    return time.process_time() - started


if __name__ == "__main__":
    main()
