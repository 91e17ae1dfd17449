"""A problem of images that a test gives: registered under a name, it goes the way of every other problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from repulse.repulsion import PatchShuffle, TrainingData
from repulse_lab.study.problems import Images, Problem, PublishedNetwork


@dataclass(frozen=True, eq=False)
class TinyProblem(Problem):
    """A problem whose images are in memory."""

    given: Images = field(kw_only=True)

    def missing(self, root: Path, networks: Sequence[str] = ()) -> str:
        return ""

    def judged(self, root: Path) -> list[str]:
        return list(self.given.outside)

    def repelled(self, root: Path) -> list[str]:
        return list(self.given.repulsion)

    def files(self, root: Path) -> list[list[str | int]]:
        return []

    def training_set(self, root: Path, progress: bool = False) -> tuple[Tensor, Tensor]:
        return self.given.train, self.given.targets

    def images(self, root: Path) -> Images:
        return self.given


def tiny_problem(images: Images, network: Callable[[str], nn.Module], name: str = "tiny", **more) -> TinyProblem:
    """Return a problem of these images, whose published networks are made from their names."""
    published = {one: PublishedNetwork(one, lambda path: network(path.name)) for one in ("resnet20", "resnet32")}
    shape = (*images.train.shape[1:3], int(images.targets.max()) + 1)
    what = {"sets": list(images.outside), "sources": {}, "published": published, **more}
    return TinyProblem(name, "Tiny", "tiny", shape, images.mean, images.std, **what, given=images)


def pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return three classes, each with its own rows brighter, in so much noise that a network makes some errors."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(3, (count,), generator=generator)
    images = torch.randint(220, (count, 1, 8, 8), generator=generator)
    images[:, 0] += 35 * (torch.arange(8) // 3 == targets.unsqueeze(1)).unsqueeze(2)
    return images.to(torch.uint8), targets


def light_and_static() -> Images:
    """Return rows of light, and static to judge and to repel on."""
    some = torch.randint(256, (220, 1, 8, 8), generator=torch.Generator().manual_seed(9), dtype=torch.uint8)
    outside = {"static": some[:40], "flat": some[40:80, :, :1, :1].expand(-1, -1, 8, 8).contiguous()}
    repulsion = {"more static": some[80:120], "patches": PatchShuffle(4), "training data": TrainingData()}
    people = 1 + some[120:, 0, 0, :3].long()
    return Images(*pictures(240, 0), *pictures(100, 1), outside, repulsion, (0.4,), (0.2,), people)


def trained_network(images: Images, seed: int = 0) -> nn.Module:
    """Return a network of three stages, trained for a moment."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        stages = [nn.Sequential(nn.Conv2d(i, o, 3, s, 1), nn.ReLU()) for i, o, s in ((1, 4, 1), (4, 6, 2), (6, 8, 2))]
        network = nn.Sequential(*stages, nn.Flatten(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(40):
        loss = nn.functional.cross_entropy(network(images.prepared(images.train)), images.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()
