"""The method as pure functions, for training loops of your own."""

from repulse.particles.forces import gaussian_process_prior, kernel_matrix, mix_driving, repulsion
from repulse.prediction import entropy, expected_entropy, mean_log_probs, mutual_information

__all__ = [
    "entropy",
    "expected_entropy",
    "gaussian_process_prior",
    "kernel_matrix",
    "mean_log_probs",
    "mix_driving",
    "mutual_information",
    "repulsion",
]
