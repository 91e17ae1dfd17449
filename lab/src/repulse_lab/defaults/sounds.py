"""Sounds: spoken digits as log spectrograms, with a small convolutional network."""

from __future__ import annotations

import wave
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from repulse.errors import DataError
from repulse_lab.defaults.images import small_cnn
from repulse_lab.defaults.problem import Problem, Samples, Trained
from repulse_lab.defaults.training import Schedule, trained_network

SECOND = 8000
"""Number of values in a recording: one second."""
KNOWN = 8
"""Digits from 0 that the network knows; the others are its near set."""


def spectrograms(sounds: Tensor) -> Tensor:
    """Compute log spectrograms `(N, 1, 64, 63)` of sounds `(N, 8000)`, roughly of mean 0 and deviation 1."""
    parts = []
    for part in sounds.split(256):
        loudness = torch.stft(
            part, n_fft=256, hop_length=128, window=torch.hann_window(256), center=True, return_complex=True
        ).abs()
        bands = loudness[:, 1:].reshape(len(part), 64, 2, -1).mean(dim=2)[..., :63]
        parts.append(((bands + 1e-3).log() + 3.0) / 2.5)
    return torch.cat(parts).unsqueeze(1)


def recording(path: Path) -> Tensor:
    """Read one second of a recording with 8 kHz, with silence after it where it is shorter."""
    with wave.open(str(path)) as file:
        if file.getframerate() != SECOND or file.getnchannels() != 1 or file.getsampwidth() != 2:
            raise DataError(f"Expected {path} to be mono with 8 kHz and 16 bits.")
        values = np.frombuffer(file.readframes(SECOND), dtype="<i2").astype(np.float32) / 2**15
    return torch.from_numpy(np.pad(values, (0, SECOND - len(values))))


def spoken_digits(seed: int, root: Path, keep: Path) -> Trained:
    """Put together the digits 0 to 7 of six speakers; 8 and 9 are near, environmental sounds and noise are far."""
    paths = sorted((root / "files" / "spoken-digits").glob("*.wav"))
    if not paths:
        raise DataError(f"Expected recordings in {root / 'files' / 'spoken-digits'}, but found none.")
    digit = torch.tensor([int(path.name.split("_")[0]) for path in paths])
    images = spectrograms(torch.stack([recording(path) for path in paths]))
    known = Samples(images[digit < KNOWN], digit[digit < KNOWN])
    order = torch.randperm(known.count, generator=torch.Generator().manual_seed(seed))
    train, validation, test = (known.some(part) for part in order.tensor_split([1500, 1900]))
    with np.load(root / "files" / "environmental_sounds_8khz_1s.npz") as file:
        environment = torch.from_numpy(file["x"].astype(np.float32) / 2**15)
    hiss = 0.1 * torch.randn(500, SECOND, generator=torch.Generator().manual_seed(0))

    def member(number: int) -> nn.Module:
        path = keep / f"{seed}-{number}.safetensors"
        build = partial(small_cnn, (64, 63), KNOWN, 3)
        return trained_network(build, train, Schedule(steps=250, batch=64), 100 * seed + number, path)

    return Trained(
        member(0),
        *(train, validation, test),
        {"digits 8 and 9": Samples(images[digit >= KNOWN])},
        {"environmental sounds": Samples(spectrograms(environment)), "white noise": Samples(spectrograms(hiss))},
        member=member,
    )


PROBLEMS = (
    Problem("spoken-digits", "spoken digits, CNN on spectrograms", "spoken-digits", "reporting", spoken_digits),
)
"""All problems on sounds."""
