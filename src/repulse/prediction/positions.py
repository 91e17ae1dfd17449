"""What predictions at every position hold: maps of probabilities and uncertainties, of pixels or of tokens.

Members are not kept: ten heads at full resolution are ten times the network's output. What is kept is what they say
together: the mean probabilities, and both parts of the uncertainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from repulse._extras import needs
from repulse._figures import save_picture
from repulse.errors import DataError, check_choice, expected
from repulse.prediction.base import P, Part, Prediction, as_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNLABELLED = -100
"""Target of what has none, as losses of PyTorch have it."""

IGNORED = (UNLABELLED, -1, 255)
"""Targets of positions that take no part: in PyTorch, in many data sets, and in images of labels."""


@dataclass(frozen=True, eq=False, repr=False)
class PositionPrediction(Prediction):
    """Class probabilities at every position of each input.

    Attributes:
        probs: mean member probabilities; classes on the second axis (pixels) or on the last (tokens).
        entropies: mean entropy of the members at each position, `(B, ...)`.
        information: mutual information between class and member at each position, `(B, ...)`.
        count: number of members.
        mask: which positions count, `(B, ...)`; None for all.
    """

    batch_axis: ClassVar[int] = 0
    class_axis: ClassVar[int] = 1

    probs: Tensor
    entropies: Tensor
    information: Tensor
    count: int
    mask: Tensor | None = None

    @property
    def members(self) -> int:
        return self.count

    @property
    def aleatoric(self) -> Tensor:
        """Mean entropy of the members at each position, in nats."""
        return self.entropies

    @property
    def epistemic(self) -> Tensor:
        """Mutual information between class and member at each position, in nats; at most `log n`."""
        return self.information

    @property
    def labels(self) -> Int[Tensor, "B ..."]:
        """The most probable class at each position."""
        return self.probs.argmax(dim=self.class_axis)

    @property
    def confidence(self) -> Float[Tensor, "B ..."]:
        """Probability of the most probable class at each position."""
        return self.probs.amax(dim=self.class_axis)

    @property
    def score(self) -> Float[Tensor, " B"]:
        """How far out-of-distribution each input is: the mean over its positions of their uncertainty."""
        return self.of_inputs("epistemic" if self.members > 1 else "total")

    def of_inputs(self, part: Part) -> Float[Tensor, " B"]:
        """Return the mean over the positions of each input."""
        values: Tensor = getattr(self, part)
        if self.mask is None:
            return values.flatten(1).mean(dim=1)
        return (values * self.mask).flatten(1).sum(dim=1) / self.mask.flatten(1).sum(dim=1).clamp_min(1)

    def log_likelihood(self, targets: Int[Tensor, "B ..."]) -> Float[Tensor, "B ..."]:
        """Compute the log-probability of the target at each position, floored at log 1e-12; zero where ignored."""
        known = self.known(targets)
        index = torch.where(known, targets, 0).unsqueeze(self.class_axis)
        picked = self.probs.gather(self.class_axis, index).squeeze(self.class_axis)
        return torch.where(known, picked.clamp_min(1e-12).log(), 0.0)

    @property
    def target_shape(self) -> tuple[int, ...]:
        return tuple(self.entropies.shape)

    def columns(self, class_names: Sequence[str] | None = None) -> dict[str, Any]:
        """Return means over positions: a row for each input."""
        parts: tuple[Part, ...] = ("aleatoric", "epistemic", "total")
        return {part: as_columns(part, self.of_inputs(part))[part] for part in parts}

    def known(self, targets: Int[Tensor, "B ..."]) -> Tensor:
        """Return which positions have a target that counts: not one of `IGNORED`, and not padding."""
        if tuple(targets.shape) != self.target_shape:
            wanted = f"of shape {self.target_shape}"
            raise DataError(expected("targets", wanted, f"shape {tuple(targets.shape)}"))
        known = is_known(targets, self.probs.shape[self.class_axis], "targets")
        return known if self.mask is None else known & self.mask.bool()


@dataclass(frozen=True, eq=False, repr=False)
class DensePrediction(PositionPrediction):
    """Class probabilities at every pixel `(B, K, H, W)`, step `(B, K, T)` or voxel `(B, K, D, H, W)`.

    Examples:
        >>> probs = torch.full((1, 2, 3, 4), 0.5)
        >>> p = DensePrediction(probs, torch.full((1, 3, 4), 0.6), torch.full((1, 3, 4), 0.1), 10)
        >>> p.epistemic.shape, p.labels.shape, p.score
        (torch.Size([1, 3, 4]), torch.Size([1, 3, 4]), tensor([0.1000]))
    """

    def plot(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        image: Tensor | None = None,
        sample: int = 0,
        class_names: Sequence[str] | None = None,
        path: str | Path | None = None,
    ) -> Figure:
        """Draw the image, the predicted classes, and the aleatoric and epistemic map, side by side.

        Args:
            image: `(C, H, W)`, `(H, W)` or a batch of them; scaled to its own range, so any normalisation will do.
            sample: which input of the prediction, and of a batch of images.
            class_names: for the legend.
            path: where to write the figure, in the format of the suffix.
        """
        with needs("matplotlib", extra="plots"):
            from matplotlib.figure import Figure

        if self.entropies.ndim != 3:
            raise DataError(expected("prediction", "of pixels, (B, K, H, W), for a picture", tuple(self.probs.shape)))
        maps: list[tuple[str, Tensor, dict[str, Any]]] = []
        if image is not None:
            maps.append(("image", _as_picture(image, sample), {}))
        classes = self.probs.shape[1]
        colours = {"cmap": "tab20", "vmin": -0.5, "vmax": max(classes, 20) - 0.5, "interpolation": "nearest"}
        maps.append(("prediction", self.labels[sample], colours))
        maps.append(("aleatoric, nats", self.aleatoric[sample], {"cmap": "viridis", "vmin": 0}))
        maps.append(("epistemic, nats", self.epistemic[sample], {"cmap": "magma", "vmin": 0}))
        height, width = self.entropies.shape[1:]
        figure = Figure(figsize=(3.4 * len(maps), 3.4 * height / width + 0.7), layout="constrained")
        for axes, (title, values, how) in zip(figure.subplots(1, len(maps), squeeze=False)[0], maps, strict=True):
            drawn = axes.imshow(values.detach().cpu().numpy(), **how)
            axes.set_title(title, fontsize=10)
            axes.set_axis_off()
            if "nats" in title:
                figure.colorbar(drawn, ax=axes, shrink=0.8)
            elif title == "prediction" and class_names is not None:
                present = self.labels[sample].unique().tolist()
                patches = [axes.scatter([], [], color=drawn.cmap(drawn.norm(k)), label=class_names[k]) for k in present]
                axes.legend(handles=patches, loc="lower left", fontsize=6, framealpha=0.8)
        if path is not None:
            save_picture(figure, path, dpi=120)
        return figure


@dataclass(frozen=True, eq=False, repr=False)
class TokenPrediction(PositionPrediction):
    """Class probabilities of every token, `(B, T, K)`; `mask` is 0 at padding."""

    class_axis: ClassVar[int] = -1

    def words(
        self, word_ids: Sequence[Sequence[int | None]], pooling: Literal["first", "mean"] = "first"
    ) -> TokenPrediction:
        """Return one prediction per word, `(B, W, K)`; shorter texts are padded, which their mask says.

        Args:
            word_ids: for each text, the number of the word that each token belongs to, None for special tokens: what
                `encoding.word_ids(i)` of a Hugging Face tokenizer returns.
            pooling: "first", the prediction of the first token of a word, where taggers are trained; or "mean" over its
                tokens.
        """
        check_choice("pooling", pooling, ("first", "mean"))
        if len(word_ids) != len(self):
            raise DataError(expected("word_ids", f"{len(self)} lists, one per text", len(word_ids)))
        width = max((1 + max((w for w in ids if w is not None), default=-1) for ids in word_ids), default=0)
        share = self.probs.new_zeros(len(self), width, self.probs.shape[1])
        for i, ids in enumerate(word_ids):
            if len(ids) > share.shape[2]:
                raise DataError(expected(f"word_ids[{i}]", f"of at most {share.shape[2]} tokens", len(ids)))
            for token, word in enumerate(ids):
                if word is not None and not (pooling == "first" and bool(share[i, word].any())):
                    share[i, word, token] = 1.0
        share /= share.sum(dim=2, keepdim=True).clamp_min(1)
        pooled = (share @ values for values in (self.entropies.unsqueeze(2), self.information.unsqueeze(2)))
        entropies, information = (part.squeeze(2) for part in pooled)
        return TokenPrediction(share @ self.probs, entropies, information, self.count, share.any(dim=2))

    @staticmethod
    def aligned(parts: Sequence[P]) -> list[P]:
        """Pad the texts of all parts to the length of the longest."""
        longest = max(part.entropies.shape[1] for part in parts)  # pyright: ignore[reportAttributeAccessIssue]
        return [_padded(part, longest) for part in parts]  # pyright: ignore[reportArgumentType, reportReturnType]


def _padded(part: TokenPrediction, length: int) -> TokenPrediction:
    more = length - part.entropies.shape[1]
    mask = torch.ones_like(part.entropies, dtype=torch.bool) if part.mask is None else part.mask.bool()
    return TokenPrediction(
        F.pad(part.probs, (0, 0, 0, more), value=1 / part.probs.shape[2]),
        F.pad(part.entropies, (0, more)),
        F.pad(part.information, (0, more)),
        part.count,
        F.pad(mask, (0, more)),
    )


def is_known(targets: Tensor, classes: int, name: str) -> Tensor:
    """Return which targets are classes; refuse those that are neither that nor one of `IGNORED`."""
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise DataError(expected(name, "integer classes at every position", f"{targets.dtype}"))
    known = (targets >= 0) & (targets < classes)
    wrong = ~known
    for value in IGNORED:
        wrong &= targets != value
    if bool(wrong.any()):
        ignored = ", ".join(map(str, IGNORED))
        got = f"{int(targets[wrong].reshape(-1)[0])}"
        raise DataError(expected(name, f"from 0 to {classes - 1}, or one of {ignored} where ignored", got))
    return known


def _as_picture(image: Tensor, sample: int) -> Tensor:
    """Return an image as something to draw, in the range from 0 to 1."""
    image = image.detach().float().cpu()
    image = image[sample] if image.ndim == 4 else image
    if image.ndim == 3 and image.shape[0] in (1, 3, 4):
        image = image.movedim(0, 2)
    low, high = float(image.min()), float(image.max())
    image = (image - low) / ((high - low) or 1.0)
    return image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image[..., :3] if image.ndim == 3 else image
