"""Where the heads should disagree: sources of repulsion samples.

Every source has one method, `sample(batch, generator) -> inputs`: it is given a batch of training inputs in the
model's own input space, and returns as many inputs of the same shape, in that space, that carry no label the heads
could agree on.
"""

from repulse.repulsion.dead_leaves import DeadLeaves
from repulse.repulsion.patch_shuffle import PatchShuffle
from repulse.repulsion.phase_scramble import PhaseScramble
from repulse.repulsion.source import Mixture, Source, TrainingData
from repulse.repulsion.synthetic import Mixup, Noise, UniformBox
from repulse.repulsion.synthetic_images import SyntheticImages
from repulse.repulsion.warps import Shear, Swirl

__all__ = [
    "DeadLeaves",
    "Mixture",
    "Mixup",
    "Noise",
    "PatchShuffle",
    "PhaseScramble",
    "Shear",
    "Source",
    "Swirl",
    "SyntheticImages",
    "TrainingData",
    "UniformBox",
]
