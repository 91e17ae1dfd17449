"""A bench on which methods are compared: the features of every set, by one network, computed once for all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from tqdm import tqdm

from repulse._files import write_whole
from repulse._modes import evaluating
from repulse.backbone import Backbone, split
from repulse.backbone.fingerprint import digest_of, fingerprint_of, settings_of
from repulse.baselines import LastLayer
from repulse.particles.scaling import TAP_SCALE, Scaling
from repulse.repulsion import Source
from repulse_lab.data.images import normalise
from repulse_lab.jobs.job import digest_of_code

BATCH = 128
"""Images that go through a network at once; more are slower, for they leave the cache of the processor."""

SAMPLES = 10_000
"""Training images from which a source makes repulsion samples."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images of a problem, as bytes.

    Attributes:
        train: to fit on.
        targets: their classes.
        test: to judge on.
        test_targets: their classes.
        outside: sets that are out of distribution.
        repulsion: where to repel: other images, or a source that makes them from the training images.
        mean: of the normalisation that the network wants.
        std: likewise.
        human: for each test image, how many people chose each class.
    """

    train: Tensor
    targets: Tensor
    test: Tensor
    test_targets: Tensor
    outside: Mapping[str, Tensor]
    repulsion: Mapping[str, Tensor | Source]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    human: Tensor | None = None

    def prepared(self, batch: Tensor) -> Tensor:
        """Bytes as the network takes them, in the memory layout in which convolutions are fastest."""
        return normalise(batch, self.mean, self.std).contiguous(memory_format=torch.channels_last)


class OnDemand:
    """Features that are computed when they are asked for: few methods repel on all sets there are.

    Args:
        make: for each set, what computes its features.
    """

    def __init__(self, make: Mapping[str, Callable[[], Tensor]]) -> None:
        self._make = {name: cache(function) for name, function in make.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._make[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._make)

    def __len__(self) -> int:
        return len(self._make)


@dataclass(frozen=True, eq=False)
class View:
    """What a method is given: features of every set, and the last layer on them.

    Attributes:
        train: training features.
        test: test features.
        outside: features of the sets that are out of distribution.
        repulsion: features of the sets to repel on.
        taps: how many of the last columns are taps.
        make_layer: the last layer on these features, the network's own or one that is fitted.
    """

    train: Tensor
    test: Tensor
    outside: Mapping[str, Tensor]
    repulsion: OnDemand
    taps: int
    make_layer: Callable[[], LastLayer]

    @cached_property
    def layer(self) -> LastLayer:
        """From these features to logits."""
        return self.make_layer()


@dataclass(eq=False)
class Bench:
    """Features of all images of a problem by one network.

    Args:
        images: of the problem.
        network: trained.
        cache: folder in which features are kept, each set under a digest of all it depends on.
        progress: show bars.
    """

    images: Images
    network: nn.Module
    cache: Path | None = None
    progress: bool = True
    _views: dict[str, View] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        few = self.images.prepared(self.images.train[:4])
        self.backbone: Backbone = split(self.network, few, layers="auto")
        pick = torch.randperm(len(self.images.train), generator=torch.Generator().manual_seed(0))[:SAMPLES]
        self._some = self.images.train[pick]

    def view(self, layers: str = "last") -> View:
        """Features as methods see them.

        Args:
            layers: "last" for the penultimate features and the network's own last layer. "auto" for these and the
                taps, at the scales that heads see them at; the network has no last layer for those, so one is fitted.
        """
        if layers not in self._views:
            self._views[layers] = self._last() if layers == "last" else self._tapped()
        return self._views[layers]

    def features(self, images: Tensor, source: Source | None = None) -> Tensor:
        """Features of images, or of what a source makes of them, from the cache if they are there."""
        about = [fingerprint_of(self.network), [tap.name for tap in self.backbone.taps], digest_of(images)]
        about += [self.images.mean, self.images.std, settings_of(source), digest_of_code("repulse.backbone")]
        about += [] if source is None else [digest_of_code("repulse.repulsion")]
        key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]
        path = None if self.cache is None else self.cache / f"{key}.safetensors"
        if path is not None and path.is_file():
            return load_file(path)["features"]
        features = self._compute(images, source) if source else self._each_once(images)
        if path is not None:
            write_whole(path, save({"features": features}))
        return features

    def _each_once(self, images: Tensor) -> Tensor:
        """Features of images of which some come several times: an ambiguous digit comes once for each of its labels."""
        places: dict[bytes, int] = {}
        place = [places.setdefault(image.tobytes(), len(places)) for image in images.numpy()]
        if len(places) == len(images):
            return self._compute(images, None)
        different = torch.frombuffer(bytearray(b"".join(places)), dtype=images.dtype).view(-1, *images.shape[1:])
        return self._compute(different, None)[place]

    @torch.no_grad()
    def _compute(self, images: Tensor, source: Source | None) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        parts = []
        bar = tqdm(images.split(BATCH), desc="features", delay=2.0, disable=not self.progress, leave=False)
        with evaluating(self.network):
            for part in bar:
                batch = self.images.prepared(part)
                parts.append(self.backbone(batch if source is None else source.sample(batch, generator)))
        return torch.cat(parts)

    def _all(self, change: Callable[[Tensor], Tensor], layer: LastLayer | None, taps: int) -> View:
        images = self.images
        train = change(self.features(images.train))

        def repelled(name: str) -> Tensor:
            x = images.repulsion[name]
            return change(self.features(self._some, x) if isinstance(x, Source) else self.features(x))

        outside = {name: change(self.features(x)) for name, x in images.outside.items()}
        make = (lambda: layer) if layer else lambda: LastLayer.fit(train, images.targets, self.backbone.outputs, taps)
        repulsion = OnDemand({name: partial(repelled, name) for name in images.repulsion})
        return View(train, change(self.features(images.test)), outside, repulsion, taps, make)

    def _last(self) -> View:
        weight, bias = (t.detach() for t in self.backbone.weights)
        return self._all(lambda x: x[:, : self.backbone.penultimate].contiguous(), LastLayer(weight, bias), 0)

    def _tapped(self) -> View:
        taps = self.backbone.width - self.backbone.penultimate
        return self._all(Scaling.of(self.features(self.images.train), taps, TAP_SCALE), None, taps)
