"""Heads around a centre: the network inside the data, nothing outside of it (see `centre.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from repulse.errors import DataError, expected
from repulse.particles.centre import Centre
from repulse.particles.distance import SMALLEST, DistanceColumns, Release, averages_of, coordinates_of
from repulse.particles.growth import ClassGaussians, Growth, measures_of
from repulse.particles.heads import Heads
from repulse.particles.tasks import Task


class CentredHeads(Heads):
    """Heads that carry nothing but disagreement, around the network's own last layer.

    They take features `(B, d)`, compute the distance columns of these, and see both.

    Args:
        heads: how many.
        features: dimension of the features.
        task: what the outputs mean.
        hidden: widths of hidden layers.
        centre: how much of the centre is the network, and how it is scaled.
        known: how many of the first features the network's last layer sees; 0 where there is no network.
        axes: number of axes of the distance columns.
        ends: number of groups of these axes.
        bands: how many of the groups are bands of the axes of all features.
        measures: number of distances with which disagreement grows; 0 where it does not.
        gaussians: number of classes that have a Gaussian.
        leading: number of axes of a Gaussian.
    """

    def __init__(
        self,
        heads: int,
        features: int,
        task: Task,
        hidden: Sequence[int] = (),
        *,
        centre: Centre | None = None,
        known: int = 0,
        axes: int = 1,
        ends: int = 1,
        bands: int = 1,
        measures: int = 0,
        gaussians: int = 0,
        leading: int = 0,
    ) -> None:
        if not 0 < bands <= ends:
            raise DataError(expected("bands", f"from 1 to {ends}", bands))
        super().__init__(heads, features + 1 + ends, task, hidden, torch.Generator())
        self.centre, self.bands = centre or Centre(), bands
        outputs = task.compared_outputs
        empty = {
            "network_weight": (outputs, known),
            "network_bias": (outputs,),
            "distance_shift": (features,),
            "distance_scale": (features,),
            "distance_axes": (features, axes),
            "release_quantiles": (1 + ends,),
            "release_largest": (),
            "growth_usual": (2, measures),
            "class_factors": (gaussians, leading, leading),
            "class_means": (gaussians, leading),
            "class_offsets": (gaussians,),
        }
        for name, shape in empty.items():
            self.register_buffer(name, torch.zeros(shape))
        self.register_buffer("distance_ends", torch.zeros(ends, dtype=torch.int64))
        self.register_buffer("distance_averages", torch.zeros(axes, 1 + ends), persistent=False)
        self.register_load_state_dict_post_hook(_follow_ends)

    network_weight: Tensor
    network_bias: Tensor
    distance_shift: Tensor
    distance_scale: Tensor
    distance_axes: Tensor
    distance_ends: Tensor
    distance_averages: Tensor
    release_quantiles: Tensor
    release_largest: Tensor
    growth_usual: Tensor
    class_factors: Tensor
    class_means: Tensor
    class_offsets: Tensor

    @classmethod
    def around(
        cls,
        fitted: Heads,
        distances: DistanceColumns,
        release: Release,
        network: tuple[Tensor, Tensor] | None,
        centre: Centre,
        task: Task,
        growth: Growth | None = None,
    ) -> CentredHeads:
        """Put fitted heads, which take features and their distance columns, around a centre.

        Args:
            fitted: the heads.
            distances: the distance columns they were fitted with.
            release: by how much to let go of the centre.
            network: weight and bias of the network's last layer, or None.
            centre: what was chosen.
            task: what the outputs mean, once centred.
            growth: by how much the heads' deviations grow with the distance; they stay as they are if not given.
        """
        known = 0 if network is None else network[0].shape[1]
        features, axes = distances.axes.shape
        hidden = [weight.shape[1] for weight in fitted.weights][:-1]
        sizes = {"known": known, "axes": axes, "ends": len(distances.ends), "bands": distances.bands}
        made = cls(fitted.count, features, task, hidden, centre=centre, **sizes)
        made.weights, made.biases = fitted.weights, fitted.biases
        tensors = {
            "distance_shift": distances.shift,
            "distance_scale": distances.scale,
            "distance_axes": distances.axes,
            "distance_ends": distances.ends,
            "release_quantiles": release.quantiles,
            "release_largest": release.largest,
        }
        if growth is not None:
            tensors["growth_usual"] = growth.usual
            if growth.gaussians is not None:
                tensors |= {f"class_{name}": value for name, value in vars(growth.gaussians).items()}
        if network is not None:
            tensors |= {"network_weight": network[0], "network_bias": network[1]}
        device = fitted.biases[0].device
        for name, value in tensors.items():
            kind = value.dtype if value.dtype == torch.int64 else fitted.biases[0].dtype
            setattr(made, name, value.detach().to(device, kind).clone())
        made.follow_ends()
        made.recipe, made.history = fitted.recipe, fitted.history
        return made.requires_grad_(False)

    @property
    def features(self) -> int:
        return len(self.distance_shift)

    @property
    def structure(self) -> dict[str, Any]:
        """Return what the constructor needs, beyond what all heads do, to make room for the same tensors."""
        return {
            "known": self.network_weight.shape[1],
            "axes": self.distance_axes.shape[1],
            "ends": len(self.distance_ends),
            "bands": self.bands,
            "measures": self.growth_usual.shape[1],
            "gaussians": self.class_means.shape[0],
            "leading": self.class_means.shape[1],
        }

    @property
    def distances(self) -> DistanceColumns:
        """Return the distance columns."""
        parts = self.distance_shift, self.distance_scale, self.distance_axes, self.distance_ends
        return DistanceColumns(*parts, self.bands)

    @property
    def release(self) -> Release:
        """Return by how much the centre is let go."""
        return Release(self.release_quantiles, self.release_largest)

    @property
    def gaussians(self) -> ClassGaussians | None:
        """Return the Gaussians of the classes, if there are any."""
        parts = self.class_factors, self.class_means, self.class_offsets
        return ClassGaussians(*parts) if len(self.class_offsets) else None

    def uncentred(self, x: Float[Tensor, "B d"]) -> tuple[Float[Tensor, "n B O"], Tensor | None, Float[Tensor, " B"]]:
        """Return the outputs of the heads, their deviations grown, those of the network if any, and the release.

        The deviations of a regression grow with the release instead (`tasks/regression.py`).
        """
        x = x.to(self.distance_shift.dtype)
        coordinates = coordinates_of(x, self.distance_shift, self.distance_scale, self.distance_axes)
        squares = coordinates.square() @ self.distance_averages
        logs = squares.clamp_min(SMALLEST).log()
        heads = self.raw_outputs(torch.cat([x, logs], dim=1))
        known = self.network_weight.shape[1]
        network = torch.addmm(self.network_bias, x[:, :known], self.network_weight.T) if known else None
        if self.growth_usual.shape[1]:
            heads = torch.lerp(heads.mean(dim=0), heads, self._growth(logs, coordinates).unsqueeze(1))
        return heads, network, self.release(squares)

    def growth(self, x: Float[Tensor, "B d"]) -> Float[Tensor, " B"]:
        """Return the factor by which deviations of heads have grown."""
        if not self.growth_usual.shape[1]:
            return torch.ones_like(x[:, 0])
        return self._growth(self.distances(x), self.distances.coordinates(x))

    def _growth(self, logs: Tensor, coordinates: Tensor) -> Tensor:
        gaussians = self.gaussians
        return Growth(self.growth_usual, gaussians)(measures_of(logs, coordinates, gaussians))

    def forward(self, x: Float[Tensor, "B d"]) -> Float[Tensor, "n B O"]:
        self.check_features(x)
        heads, network, release = self.uncentred(x)
        return self.task.recentred(heads, network, self.centre.let_go(release), self.centre)

    def follow_ends(self) -> None:
        """Compute the averages that belong to the ends of bands, which may be new."""
        self.distance_averages = averages_of(self.distance_ends.tolist(), self.bands).to(self.distance_axes)


def _follow_ends(heads: CentredHeads, _: Any) -> None:
    heads.follow_ends()
