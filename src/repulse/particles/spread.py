"""One fit on several processes: each has some of the heads, and all see the same batches.

Likelihood and prior know no other heads, so each process steps its own. Repulsion needs to know where all heads are:
once a step, processes exchange what their heads say on the repulsion batch, as the kernel sees it; each then computes
the kernel of all heads and the gradient of its own. Start `torch.distributed` (as `torchrun` does for
`torch.distributed.init_process_group()`), call the fit in every process with the same features and recipe, and every
process gets the same heads, those that one process would have got.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from repulse.errors import DataError, RecipeError, expected
from repulse.particles.heads import Heads, Particles
from repulse.recipe import Recipe

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Spread:
    """Which of all heads are those of this process.

    Attributes:
        total: number of heads in all processes.
        own: those of this one.
        first: whether this is the process that shows progress.
        wire: device from which tensors can be sent.
    """

    total: int
    own: slice
    first: bool = True
    wire: torch.device = CPU

    @classmethod
    def over_processes(cls, recipe: Recipe) -> Spread:
        """The share of this process, if there are several; otherwise all heads."""
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        if world == 1:
            return cls.alone(recipe.heads)
        if recipe.heads < world:
            raise RecipeError(expected("heads", f"at least {world}, one a process", recipe.heads))
        together = recipe.space == "parameters" or (recipe.space == "function" and recipe.rule == "svgd")
        if together and recipe.strength != 0:
            name, wanted, got = ("space", "'function' or 'none'", recipe.space)
            if recipe.space == "function":
                name, wanted, got = ("rule", "any but 'svgd'", recipe.rule)
            raise RecipeError(expected(name, f"{wanted} in several processes; fit in one of them alone", repr(got)))
        ends = [recipe.heads * (dist.get_rank() + i) // world for i in range(2)]
        sent = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else CPU
        return cls(recipe.heads, slice(*ends), dist.get_rank() == 0, sent)

    @classmethod
    def alone(cls, total: int) -> Spread:
        """All heads in this process."""
        return cls(total, slice(0, total))

    @property
    def several(self) -> bool:
        """Whether there are heads elsewhere."""
        return self.own != slice(0, self.total)

    def fill(self, whole: Tensor) -> None:
        """Fill in the rows of other heads. Zeros are added to every row, which works for shares of any size."""
        if self.several:
            whole[: self.own.start] = 0
            whole[self.own.stop :] = 0
            sent = whole.to(self.wire)
            dist.all_reduce(sent)
            if sent is not whole:
                whole.copy_(sent)

    def gather(self, own: Tensor) -> Tensor:
        """Rows of all heads, without gradient, from those of this process."""
        if not self.several:
            return own
        whole = own.new_empty(self.total, *own.shape[1:])
        whole[self.own] = own.detach()
        self.fill(whole)
        return whole

    def among_all(self, own: Tensor) -> Tensor:
        """Rows of all heads, of which those of this process have a gradient."""
        if not self.several:
            return own
        whole = self.gather(own)
        return torch.cat([whole[: self.own.start], own, whole[self.own.stop :]])

    def add(self, part: Tensor | float) -> Tensor | float:
        """The sum of what each process has a part of."""
        if not self.several:
            return part
        whole = torch.as_tensor(part, dtype=torch.float64).to(self.wire, copy=True)
        dist.all_reduce(whole)
        return whole

    def split(self, heads: Particles) -> Particles:
        """The heads of this process."""
        if not (self.several and isinstance(heads, Heads)):
            return heads
        hidden = [1] * (len(heads.weights) - 1)  # all weights are replaced
        mine = Heads(self.own.stop - self.own.start, 1, heads.task, hidden, torch.Generator())
        for some, every in ((mine.weights, heads.weights), (mine.biases, heads.biases)):
            for i, parameter in enumerate(every):
                some[i] = torch.nn.Parameter(parameter.detach()[self.own].clone())
        return mine

    @torch.no_grad()
    def join(self, mine: Particles, heads: Particles) -> None:
        """Write what all processes have fitted into the heads that `split` took."""
        if self.several:
            for some, every in zip(mine.parameters(), heads.parameters(), strict=True):
                every[self.own] = some
                self.fill(every.detach())

    def agree(self, recipe: Recipe, *columns: Tensor | None) -> None:
        """Refuse processes that were given different things: another recipe, or other features, targets or samples."""
        if not self.several:
            return
        sizes = [(0, 0) if column is None else (len(column), column[:1].numel()) for column in columns]
        known = [zlib.crc32(repr(recipe).encode()), *(size for pair in sizes for size in pair)]
        mine = torch.tensor([*map(float, known), *map(_content, columns)], dtype=torch.float64, device=self.wire)
        ends = torch.stack([mine, -mine])
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        most, apart = ends.abs().amax(dim=0), ends.sum(dim=0)
        if bool((apart[: len(known)] > 0).any() | (apart > 1e-5 * (1 + most)).any()):
            raise DataError(expected("features, targets and recipe", "the same in all processes", "different ones"))

    def take_first(self, *tensors: Tensor) -> None:
        """Replace what may differ by rounding by what the first process has."""
        for tensor in tensors if self.several else ():
            sent = tensor.to(self.wire, copy=True)
            dist.broadcast(sent, 0)
            tensor.copy_(sent)


def _content(column: Tensor | None) -> float:
    """A number that tells some of what is in a column, and in which order."""
    if column is None:
        return 0.0
    rows = torch.arange(0, len(column), max(len(column) // 1000, 1), device=column.device)
    sizes = column[rows].double().nan_to_num(posinf=0.0).abs().reshape(len(rows), -1).mean(dim=1)
    return float((sizes * (1 + rows)).mean()) / len(column)
