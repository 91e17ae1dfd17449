"""Whether calibration data is what the fit has seen already: then nothing can be promised from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from repulse._mapped import row_chunks
from repulse.backbone.batches import first_samples, to_device

if TYPE_CHECKING:
    from repulse.ensemble import Ensemble

FEWEST, LOOKED_AT = 5, 64
"""Inputs that are looked at: at least, and at most."""

MAX_ROWS = 100_000
"""Rows of kept features up to which they are compared."""

SAME = 1e-3
"""Distance of features, relative to their norm, up to which they are those of one input: passes round differently."""

SAID = {
    "validation": "The calibration data is that of `validation=`, on which the fit chose what it could: the promise "
    "holds only about. Calibrate on data that no fit has seen.",
    "train": "The calibration data is the training data, which looks more familiar than anything new: the promise does "
    "not hold. Calibrate on data that no fit has seen.",
}


@torch.no_grad()
def seen_before(ensemble: Ensemble, inputs: Any) -> str | None:
    """Say if inputs are those that the ensemble was fitted or chosen on, as far as its features were kept."""
    kept = ensemble.kept
    if kept is None:
        return None
    few = to_device(first_samples(inputs, LOOKED_AT), next(ensemble.heads.parameters()).device)
    features = ensemble.backbone.run(few).float()
    for name, rows in (("validation", kept.validation), ("train", kept.train)):
        if rows is not None and len(rows) <= MAX_ROWS and len(features) >= FEWEST and _are_among(features, rows):
            return SAID[name]
    return None


def _are_among(features: Tensor, rows: Tensor) -> bool:
    """Tell whether nearly every input is one of the rows, and only one: inputs of few values have many twins."""
    near = SAME * features.norm(dim=1, keepdim=True)
    counts = torch.zeros(len(features), dtype=torch.long, device=features.device)
    for part in row_chunks(rows):
        away = torch.cdist(features, part.to(features), compute_mode="donot_use_mm_for_euclid_dist")
        counts += (away <= near).sum(dim=1)
    return float((counts == 1).float().mean()) >= 0.95
