"""The call: check what is given, compute features once, search, print."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from repulse.backbone.batches import size_of, training_batch
from repulse.backbone.reading import first_batch, length_of
from repulse.errors import CacheWarning, FitWarning, RepulsionError, check_positive_integer, expected
from repulse.recipe import Recipe, check_recipe
from repulse.repulsion import FeatureSource, Source
from repulse.retrofit import AUTO, retrofit
from repulse.suggest.search import Search
from repulse.suggest.suggestion import NOWHERE, Suggestion


def suggest(
    model: nn.Module,
    data: Iterable[Any],
    *,
    candidates: Mapping[str, Any] | Sequence[Any] | None = None,
    validation: Iterable[Any] | None = None,
    recipe: Recipe | None = None,
    samples: int = 10_000,
    last_layer: str | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> Suggestion:
    """Compare sources of repulsion samples, strengths and layers without out-of-distribution labels.

    First every source at the strength of the recipe; then the best of them at 0.3 and 3 times that strength; then, if
    there are taps, without them. Prints a table, unless `progress` is off.

    Examples:
        >>> network = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
        >>> batches = [(torch.randn(64, 2), torch.randint(2, (64,))) for _ in range(4)]
        >>> found = suggest(network, batches, recipe=Recipe(epochs=1), progress=False)
        >>> found.trials[0].source, len(found.trials) > 3
        ('nowhere', True)

    Args:
        model: as `retrofit` takes it.
        data: as `retrofit` takes it.
        candidates: sources, or for each name a source or a loader of unlabelled inputs, to compare besides what
            `repulsion="auto"` chooses and the parts that it is made of.
        validation: labelled batches that the network was not trained on; without them, every fifth training row is kept
            from the heads and judges them.
        recipe: what to start from; `Recipe()` if not given.
        samples: how many training samples are used at most, evenly spaced batches of them.
        last_layer: as `retrofit` takes it.
        device: as `retrofit` takes it.
        progress: show a bar, and print the table at the end.
    """
    recipe = check_recipe(recipe)
    check_positive_integer("samples", samples)
    if recipe.space != "function":
        raise RepulsionError(expected("recipe.space", "'function', where sources matter", repr(recipe.space)))
    given = _named(candidates)
    with tempfile.TemporaryDirectory(prefix="repulse-") as folder:
        some = Some(data, samples)
        with warnings.catch_warnings():
            for category in (FitWarning, CacheWarning):  # trials may fail, and the folder is ours
                warnings.simplefilter("ignore", category)
            options: Any = {"recipe": recipe, "last_layer": last_layer, "device": device, "cache": folder}
            base = retrofit(model, some, validation=validation, repulsion=None, progress=False, **options)
            search = Search.of(base, some, validation, recipe, given, Path(folder))
            found = search.run(progress)
    if progress:
        tqdm.write(str(found))
    return found


def _named(candidates: Mapping[str, Any] | Sequence[Any] | None) -> dict[str, Any]:
    if candidates is None:
        return {}
    if isinstance(candidates, Mapping):
        named = {str(name): source for name, source in candidates.items()}
    elif isinstance(candidates, Sequence) and not isinstance(candidates, str):
        named = {repr(source): source for source in candidates}
        if not all(isinstance(source, Source | FeatureSource) for source in candidates):
            got = "something else; name loaders in a mapping, `{'photographs': loader}`"
            raise RepulsionError(expected("candidates", "a list of sources", got))
    else:
        raise RepulsionError(expected("candidates", "a mapping or a list of sources", type(candidates).__name__))
    for name in (NOWHERE, AUTO):
        if name in named:
            raise RepulsionError(expected("candidates", f"named otherwise than {name!r}, which is tried anyway", name))
    return named


class Some:
    """Evenly spaced batches of some data, with no more than a number of samples; otherwise like the data itself."""

    def __init__(self, data: Iterable[Any], samples: int) -> None:
        self._data, self._samples = data, samples
        self._every = 1
        count = length_of(data)
        if count:
            size = size_of(training_batch(first_batch(data, 0), 0)[0])
            self._every = max(1, count * size // samples)

    def __iter__(self) -> Iterator[Any]:
        left = self._samples
        for i, batch in enumerate(self._data):
            if i % self._every == 0 and left > 0:
                left -= size_of(training_batch(batch, i)[0])
                yield batch

    def __getattr__(self, name: str) -> Any:  # its generators are set and put back by whoever reads it
        return getattr(self._data, name)
