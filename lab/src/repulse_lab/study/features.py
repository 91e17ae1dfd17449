"""Features of all images of a problem by one network, computed once for every method that is fitted on them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from repulse._modes import evaluating
from repulse._tensors import kept_tensors, write_tensors
from repulse.backbone import Backbone, split
from repulse.backbone.fingerprint import digest_of, fingerprint_of, settings_of
from repulse.baselines import LastLayer
from repulse.particles.scaling import TAP_SCALE, Scaling
from repulse.repulsion import Source
from repulse_lab.jobs.job import Job, Place, Result, digest_of_code, work
from repulse_lab.study.problems import Images, Problem, images_of, problem_of
from repulse_lab.study.training import Network, ambiguous_digits_job, load_network, training_job

BATCH = 128
"""Images that go through a network at once; more are slower, for they leave the cache of the processor."""

SAMPLES = 10_000
"""Number of training images from which a source makes repulsion samples."""


class LazyFeatures:
    """Features that are computed on first use: few methods repel on all sets there are.

    Args:
        make: for each set, the function that computes its features.
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
        outside: features of the out-of-distribution sets.
        repulsion: features of the sets to repel on.
        taps: number of columns, the last ones, that are taps.
        make_layer: function that gives the last layer on these features, the network's own or one that is fitted.
        network: the network's own last layer, which sees the features but not the taps.
    """

    train: Tensor
    test: Tensor
    outside: Mapping[str, Tensor]
    repulsion: LazyFeatures
    taps: int
    make_layer: Callable[[], LastLayer]
    network: LastLayer

    @cached_property
    def layer(self) -> LastLayer:
        """Return the layer from these features to logits."""
        return self.make_layer()


@dataclass(eq=False)
class NetworkFeatures:
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
        example = self.images.prepared(self.images.train[:4])
        self.backbone: Backbone = split(self.network, example, layers="auto")
        pick = torch.randperm(len(self.images.train), generator=torch.Generator().manual_seed(0))[:SAMPLES]
        self._some = self.images.train[pick]

    def view(self, layers: str = "last") -> View:
        """Return features as methods see them.

        Args:
            layers: "last" for the penultimate features and the network's own last layer. "auto" for these and the
                taps, at the scales that heads see them at; the network has no last layer for those, so one is fitted.
        """
        if layers not in self._views:
            self._views[layers] = self._make_view(layers)
        return self._views[layers]

    def of(self, images: Tensor, source: Source | None = None) -> Tensor:
        """Return features of images, or of what a source makes of them, from the cache if they are there."""
        about = [fingerprint_of(self.network), [tap.name for tap in self.backbone.taps], digest_of(images)]
        about += [self.images.mean, self.images.std, settings_of(source), digest_of_code("repulse.backbone")]
        about += [] if source is None else [digest_of_code("repulse.repulsion")]
        key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]
        path = None if self.cache is None else self.cache / f"{key}.safetensors"
        if path is not None and (kept := kept_tensors(path)) is not None:
            return kept["features"]
        features = self._compute(images, source) if source else self._each_once(images)
        if path is not None:
            write_tensors(path, {"features": features})
        return features

    def _each_once(self, images: Tensor) -> Tensor:
        """Compute repeated images once: an ambiguous digit comes once for each of its labels."""
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

    def transform(self, layers: str) -> Callable[[Tensor], Tensor]:
        """Return the function from the features of the backbone to those that methods see; see `view`."""
        if layers == "last":
            return lambda x: x[:, : self.backbone.penultimate].contiguous()
        return Scaling.of(self.of(self.images.train), self.backbone.width - self.backbone.penultimate, TAP_SCALE)

    def _make_view(self, layers: str) -> View:
        images, change = self.images, self.transform(layers)
        network = LastLayer(*(part.detach() for part in self.backbone.weights))
        if isinstance(change, Scaling):
            network = _in_units_of(change, network)
        train, test = change(self.of(images.train)), change(self.of(images.test))
        taps = train.shape[1] - self.backbone.penultimate

        def repelled(name: str) -> Tensor:
            x = images.repulsion[name]
            return change(self.of(self._some, x) if isinstance(x, Source) else self.of(x))

        def layer() -> LastLayer:
            return LastLayer.fit(train, images.targets, self.backbone.outputs, taps) if taps else network

        outside = {name: change(self.of(x)) for name, x in images.outside.items()}
        repulsion = LazyFeatures({name: partial(repelled, name) for name in images.repulsion})
        return View(train, test, outside, repulsion, taps, layer, network)


def _in_units_of(scaling: Scaling, layer: LastLayer) -> LastLayer:
    """Return the layer with the same logits on scaled features: `W x + b = (W s) (x - m) / s + (b + W m)`."""
    width = layer.weight.shape[1]
    shift, scale = scaling.shift[:width], scaling.scale[:width]
    return LastLayer(layer.weight * scale, layer.bias + layer.weight @ shift)


def _seconds(about: Mapping[str, Any]) -> float:
    milliseconds = {"lenet": 0.05, "resnet20": 0.9, "resnet32": 1.4}.get(about["network"]["name"], 0.4)
    return 100 * milliseconds + 10


@work(
    "repulse.backbone",
    "repulse.repulsion",
    "repulse_lab.data.images",
    "repulse_lab.data.cifar",
    "repulse_lab.data.glyphs",
    "repulse_lab.data.scenes",
    "repulse_lab.data.toys",
    "repulse_lab.study.dirty_mnist",
    "repulse_lab.study.problems",
    seconds=_seconds,
)
def compute_features(about: Mapping[str, Any], place: Place) -> Result:
    """Compute features of all sets but those to repel on, which are computed on first use; keep them in files."""
    features = features_of(about["problem"], about["network"], about["seed"], place)
    view = features.view("last")
    correct = view.layer(view.test).argmax(dim=1) == features.images.test_targets
    return {"figures": {"features": float(view.train.shape[1]), "accuracy": 100 * float(correct.double().mean())}}


def features_job(name: str, network: Network, seed: int, data: Path) -> Job:
    """Return the job that computes features by a network, which is trained before unless it is published."""
    return _features_job(problem_of(name), network, seed if network.schedule else 0, data)


@cache
def _features_job(problem: Problem, network: Network, seed: int, data: Path) -> Job:
    about = {"problem": problem.name, "network": network.about, "seed": seed}
    about |= {"judged": problem.judged(data), "repelled": problem.repelled(data), "files": problem.files(data)}
    if network.schedule:
        return Job(compute_features, about, (training_job(problem.name, network.about, seed),))
    about |= {"weights": problem.published[network.name].file}
    return Job(compute_features, about, ambiguous_digits_job(problem.name), ("repulse_lab.networks.resnet_cifar",))


def features_of(name: str, network: Mapping[str, Any], seed: int, place: Place) -> NetworkFeatures:
    """Return the features of a problem by a network, computed or from the files."""
    return _features(problem_of(name), json.dumps(network, sort_keys=True), seed, place)


@lru_cache(maxsize=2)
def _features(problem: Problem, network: str, seed: int, place: Place) -> NetworkFeatures:
    model = load_network(problem.name, json.loads(network), seed, place)
    return NetworkFeatures(images_of(problem, place.data), model, place.keep / "features", place.progress)
