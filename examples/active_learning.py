"""Which digits to label: begin with twenty of scikit-learn's, buy ten at a time, and compare what they are chosen by.

In the pool digits from five on are rare, and so among those drawn at random; doubt finds them. Heads are linear on
pixels and fitted anew at every step. At the end, the labels are kept in a file and taken up again.

    python examples/active_learning.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor

import repulse
from repulse.active.acquire import ActiveLearning

pixels, digits = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
pixels, digits = pixels[order].float() / 16, digits[order]
found = torch.arange(700, len(pixels))
found = found[(digits[found] < 5) | (found % 10 == 0)]
pool, truth = pixels[found], digits[found]  # the labels of the pool are only looked up where they are bought
recipe = repulse.Recipe(epochs=100, lr=0.01)


def train(indices: Tensor, labels: Tensor) -> repulse.Heads:
    return repulse.fit_heads(pool[indices], labels, None, recipe, classes=10, progress=False)


def label(indices: Tensor) -> Tensor:
    return truth[indices]


def accuracy(heads: repulse.Heads) -> float:
    prediction = heads.predict(pixels[:700])
    assert isinstance(prediction, repulse.ClassPrediction)
    return repulse.metrics.accuracy(prediction, digits[:700])


for score in ("random", "total", "epistemic", "batchbald"):
    learning = ActiveLearning(pool, train, score, progress=False)
    learning.tell(range(20), truth[:20])
    curve = [accuracy(learning.predictor)]
    curve += [accuracy(learning.predictor) for _ in learning.run(label, k=10, steps=6)]
    print(f"{score:<10} accuracy with 20, 30, ... 80 labels:", *(f"{100 * share:.1f}" for share in curve))

with tempfile.TemporaryDirectory() as folder:
    path = learning.save(Path(folder) / "labels.json")
    again = ActiveLearning(pool, train, "batchbald", progress=False)
    again.load(path)
print("to label next:", *again.ask(5).indices.tolist())
