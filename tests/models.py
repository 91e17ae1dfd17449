"""Small models for tests of how networks are split."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from repulse import Recipe
from repulse.backbone.taps import finished

QUICK = Recipe(epochs=1, heads=3, layers="last")
CLASSES = 5


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def images(size=32, seed=0, count=10):
    return normal(count, 3, size, size, seed=seed)


def perceptron(outputs=CLASSES, *after):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs), *after)


def trained_perceptron(x, y, outputs=CLASSES):
    """A perceptron that has learnt its data, the same one each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = perceptron(outputs)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
        for _ in range(100):
            optimiser.zero_grad()
            out = model(x)
            loss = F.cross_entropy(out, y) if outputs > 1 else F.mse_loss(out[:, 0], y)
            loss.backward()
            optimiser.step()
    return model.eval()


@torch.no_grad()
def rebuilt(backbone, inputs):
    return F.linear(backbone(inputs)[:, : backbone.penultimate], *backbone.weights)


def state_of(model):
    """All that must not change: values, modes, gradients and hooks."""
    parts = list(model.modules())
    return (
        {name: value.clone() for name, value in model.state_dict().items()},
        [part.training for part in parts],
        [(len(part._forward_hooks), len(part._forward_pre_hooks), len(part._backward_hooks)) for part in parts],
        [(p.requires_grad, p.grad is None) for p in model.parameters()],
    )


def same_state(before, after):
    values = all(torch.equal(value, after[0][name]) for name, value in before[0].items())
    return values and before[0].keys() == after[0].keys() and before[1:] == after[1:]


class Odd(nn.Module):
    """Layers registered in no good order, and others that run after the head, or never."""

    def __init__(self, *order):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = {
                "head": nn.Linear(8, 3),
                "body": nn.Linear(4, 8),
                "aux": nn.Linear(8, 3),
                "never": nn.Linear(8, 3),
            }
        for name in order or layers:
            self.add_module(name, layers[name])

    def forward(self, x):
        hidden = self.body(x).tanh()
        logits = self.head(hidden)
        self.aux(hidden)
        return logits


def columns_of(tap, output, mask):
    """What a tap gives of a module's output."""
    return torch.cat(finished([tap], [tap.read(output, mask)]), dim=1)
