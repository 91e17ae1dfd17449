"""Draw the reasons of one doubt: the input, the votes, the ledger, the nearest training inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from repulse.decide.ledger import CONSTANT
from repulse.evaluation.plots import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from repulse.decide.reason import Reason

Draw = Callable[["Axes"], None]


def plot(reason: Reason, image: Any = None, training: Any = None) -> Figure:
    """Draw the reasons of one input in a row; see `Reason.plot`."""
    from matplotlib.figure import Figure

    draws: list[Draw] = []
    if image is not None:
        draws.append(lambda axes: _picture(axes, image, str(reason.label)))
        if reason.map is not None:
            draws.append(lambda axes: _map(axes, image, reason.map))
    if reason.votes:
        draws.append(lambda axes: _bars(axes, reason.votes, "heads that prefer", PALETTE[0]))
    if reason.shares:
        shares = {name: share for name, share in reason.shares.items() if name != CONSTANT}
        draws.append(lambda axes: _bars(axes, shares, "share of the disagreement", PALETTE[1]))
    if reason.nearest and training is None:
        near = {f"{n.target} (no. {n.index})": n.distance for n in reason.nearest}
        draws.append(lambda axes: _bars(axes, near, "distance, 1 is usual", PALETTE[2]))
    pictures = [] if training is None else [(n, _image_of(training[n.index])) for n in reason.nearest]
    for neighbour, shown in pictures:
        caption = f"{neighbour.target}, {neighbour.distance:.1f} x usual"
        draws.append(lambda axes, shown=shown, caption=caption: _picture(axes, shown, caption))
    shown = (image is not None) * (1 + (reason.map is not None))
    wide = [1.0] * shown + [1.7] * (len(draws) - len(pictures) - shown) + [1.0] * len(pictures)
    figure = Figure(figsize=(1.7 * sum(wide), 2.4), layout="constrained")
    panels = figure.subplots(1, len(draws), squeeze=False, gridspec_kw={"width_ratios": wide})[0]
    for axes, draw in zip(panels, draws, strict=True):
        draw(axes)
    figure.suptitle(reason.text.split(";")[0], fontsize=9, x=0.01, ha="left")
    return figure


def _bars(axes: Axes, values: dict[str, Any], title: str, colour: str) -> None:
    names = [name if len(name) <= 22 else f"{name[:10]}…{name[-10:]}" for name in values]
    places = range(len(names))
    axes.barh(places, list(values.values()), color=colour)
    axes.set_yticks(places, names, fontsize=7)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _picture(axes: Axes, image: Any, caption: str) -> None:
    values = torch.as_tensor(image).detach().cpu().float()
    if values.ndim == 3 and values.shape[0] in (1, 3):
        values = values.movedim(0, -1)
    values = values.squeeze(-1) if values.ndim == 3 else values
    low, high = float(values.min()), float(values.max())
    axes.imshow(((values - low) / max(high - low, 1e-12)).numpy(), cmap="gray" if values.ndim == 2 else None)
    axes.set_title(caption, fontsize=8)
    axes.axis("off")


def _map(axes: Axes, image: Any, shares: Any) -> None:
    """Lay the share of each position over an image in grey: red adds to the disagreement, blue holds it back."""
    values = torch.as_tensor(image).detach().cpu().float()
    _picture(axes, values.mean(dim=0) if values.ndim == 3 else values, "where it sits")
    left, right, bottom, top = axes.get_images()[0].get_extent()
    most = max(float(torch.tensor(shares).abs().max()), 1e-12)
    axes.imshow(shares, cmap="RdBu_r", vmin=-most, vmax=most, alpha=0.55, extent=(left, right, bottom, top))


def _image_of(sample: Any) -> Any:
    return sample[0] if isinstance(sample, tuple | list) else sample
