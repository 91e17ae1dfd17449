"""Where the heads should disagree: sources of repulsion samples.

A source in input space has one method, `sample(batch, generator) -> inputs`: it is given a batch of training inputs as
the model takes them, and returns as many inputs of the same shape that carry no label the heads could agree on. A
source in feature space has one method, `sample_features(features, count, generator) -> features`.
"""

from repulse.repulsion.choose import Choice, choose
from repulse.repulsion.class_mixture import ClassMixture
from repulse.repulsion.dead_leaves import DeadLeaves
from repulse.repulsion.difference import Difference
from repulse.repulsion.half_shuffle import HalfShuffle
from repulse.repulsion.mixture import Mixture
from repulse.repulsion.mixup import Mixup
from repulse.repulsion.noise import Noise
from repulse.repulsion.pasted import Pasted
from repulse.repulsion.patch_shuffle import PatchShuffle
from repulse.repulsion.phase_scramble import PhaseScramble
from repulse.repulsion.replaced_words import ReplacedWords
from repulse.repulsion.segment_shuffle import SegmentShuffle
from repulse.repulsion.shear import Shear
from repulse.repulsion.shell import Shell
from repulse.repulsion.signal_phase_scramble import SignalPhaseScramble
from repulse.repulsion.signal_samples import SignalSamples
from repulse.repulsion.source import FeatureSource, Source
from repulse.repulsion.span_mix import SpanMix
from repulse.repulsion.swirl import Swirl
from repulse.repulsion.synthetic_images import SyntheticImages
from repulse.repulsion.table_samples import TableSamples
from repulse.repulsion.text_samples import TextSamples
from repulse.repulsion.training_data import TrainingData
from repulse.repulsion.uniform_box import UniformBox
from repulse.repulsion.wide_box import WideBox
from repulse.repulsion.word_shuffle import WordShuffle

__all__ = [
    "Choice",
    "ClassMixture",
    "DeadLeaves",
    "Difference",
    "FeatureSource",
    "HalfShuffle",
    "Mixture",
    "Mixup",
    "Noise",
    "Pasted",
    "PatchShuffle",
    "PhaseScramble",
    "ReplacedWords",
    "SegmentShuffle",
    "Shear",
    "Shell",
    "SignalPhaseScramble",
    "SignalSamples",
    "Source",
    "SpanMix",
    "Swirl",
    "SyntheticImages",
    "TableSamples",
    "TextSamples",
    "TrainingData",
    "UniformBox",
    "WideBox",
    "WordShuffle",
    "choose",
]
