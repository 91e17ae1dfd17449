"""A repulsive deep ensemble: five whole networks, kept apart on unlabelled inputs, in a training loop of your own.

python examples/repulsive_deep_ensemble.py
"""

import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.nn.functional import cross_entropy

import repulse

inputs, labels = make_moons(1000, noise=0.1, random_state=0)
x, y = torch.tensor(inputs).float(), torch.tensor(labels)
torch.manual_seed(0)

networks = nn.ModuleList(nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2)) for _ in range(5))
optimizer = torch.optim.Adam(networks.parameters(), lr=1e-2)
for _ in range(500):
    elsewhere = 8 * torch.rand(128, 2) - 4  # where the networks have no business agreeing
    likelihood = sum(cross_entropy(network(x), y) for network in networks)
    outputs = torch.stack([network(elsewhere) for network in networks])
    loss = likelihood + 0.1 * repulse.functional.repulsion(outputs, on="probabilities", compare="pointwise")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    for name, points in (("on the data", x), ("far from it", 3 + torch.rand(500, 2))):
        log_probs = torch.stack([network(points) for network in networks]).log_softmax(dim=-1)
        p = repulse.ClassPrediction(log_probs)
        print(f"{name}: epistemic {p.epistemic.mean():.3f} nats, aleatoric {p.aleatoric.mean():.3f} nats")
