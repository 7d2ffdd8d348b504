"""Changes to the features of training frames while a minibatch is gathered: nothing is stored.

All act on windows of log mel energies, (n, frames, bins), and draw from one generator, which the
caller keys by epoch and minibatch: the same minibatch is changed alike whoever trains on it.

    speed     played s times as fast, a window reaches s times as far, and what was heard at f / s
              is heard at f: windows are cut at fractional frames and bins, between which values are
              interpolated linearly; s is 1 - speed, 1 or 1 + speed, as in the usual 3-fold copies
    volume    the same number is added to all log energies of a window
    noise     energies add up: log(exp(x) + exp(v)), v a steady noise of random level and slope
    echo      energies of earlier frames linger: E(t) <- E(t) + a E(t - 1), E after the change,
              a decay of 60 dB in the time RT60
    masks     some neighbouring bins, or frames, are replaced by the mean (Park et al. 2019)

References: T. Ko, V. Peddinti, D. Povey, S. Khudanpur, "Audio augmentation for speech recognition",
Interspeech 2015; N. Jaitly, G. Hinton, "Vocal tract length perturbation", ICML workshop 2013; D.
Park et al., "SpecAugment", Interspeech 2019. There, speed is changed in the audio; here, in the
features, which costs next to nothing and needs no copies, but keeps the spectrum's fine structure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hocket.errors import require
from hocket.speech.features.spectral import mel, mel_centres

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
NOISE_RANGE_DB: Final = 20.0  # from the loudest noise to the softest
NOISE_SLOPE: Final = 4.0  # most that log energy rises or falls from the lowest bin to the highest
RT60_S: Final = (0.15, 0.6)  # of rooms, as in `hocket.speech.corpus`
ECHO_DB: Final = (-15.0, -3.0)  # what lingers after the first frame, relative to the direct sound
FRAME_S: Final = 0.01


@dataclass(frozen=True)
class Augmentation:
    """How much training frames are changed; 0 everywhere: not at all."""

    speed: float = 0.0
    volume_db: float = 0.0
    noise_share: float = 0.0  # of the frames
    noise_snr_db: float = 10.0  # at the loudest noise
    echo_share: float = 0.0
    mask_bins: int = 0  # at most
    mask_frames: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.speed < 0.5, f"task.speed must lie in [0, 0.5), not {self.speed}")
        for key in ("noise_share", "echo_share"):
            value = getattr(self, key)
            require(0 <= value <= 1, f"task.{key} must lie between 0 and 1, not {value}")
        for key in ("volume_db", "mask_bins", "mask_frames"):
            value = getattr(self, key)
            require(value >= 0, f"task.{key} must be at least 0, not {value}")

    @property
    def any(self) -> bool:
        """True if something is changed."""
        return self != Augmentation(noise_snr_db=self.noise_snr_db)

    def speeds(self, rng: np.random.Generator, num: int) -> Ints:
        """Draw -1, 0 or 1 for each window: slower, as it is, faster."""
        return rng.integers(-1, 2, num) if self.speed else np.zeros(num, np.int64)

    def energies_(self, x: Floats, level: Floats, rng: np.random.Generator) -> None:
        """Change log energies before they are normalised; `level` (n,): of the speech in them."""
        if self.echo_share:
            chosen = rng.random(len(x)) < self.echo_share
            x[chosen] = with_echo(x[chosen], rng)
        if self.noise_share:
            chosen = rng.random(len(x)) < self.noise_share
            x[chosen] = with_noise(x[chosen], level[chosen], self.noise_snr_db, rng)
        if self.volume_db:
            gain = rng.uniform(-self.volume_db, self.volume_db, len(x)) * (math.log(10) / 10)
            x += gain.astype(np.float32)[:, None, None]

    def spectra_(self, x: Floats, speeds: Ints, sample_rate: int, rng: np.random.Generator) -> None:
        """Change normalised windows: warp the spectra of some, then mask."""
        for way in (-1, 1):
            chosen = np.flatnonzero(speeds == way)
            if len(chosen):
                x[chosen] = x[chosen] @ warp(x.shape[2], 1 + way * self.speed, sample_rate)
        for axis, most in ((2, self.mask_bins), (1, self.mask_frames)):
            if most:
                mask_(x, axis, most, rng)


def with_noise(x: Floats, level: Floats, snr_db: float, rng: np.random.Generator) -> Floats:
    """Add steady noise, between `snr_db` and NOISE_RANGE_DB less, relative to `level`."""
    below = (snr_db + rng.uniform(0, NOISE_RANGE_DB, len(x))) * (math.log(10) / 10)
    slope = rng.uniform(-NOISE_SLOPE, NOISE_SLOPE, len(x))
    bins = np.linspace(-0.5, 0.5, x.shape[2])
    noise = (level - below)[:, None] + slope[:, None] * bins
    louder: Floats = np.logaddexp(x, noise[:, None].astype(np.float32))
    return louder


def with_echo(x: Floats, rng: np.random.Generator) -> Floats:
    """Let energies linger; what was before a window is taken to be like its first frame."""
    decay = np.exp(-6 * math.log(10) * FRAME_S / rng.uniform(*RT60_S, len(x)))[:, None]
    share = 10 ** (rng.uniform(*ECHO_DB, len(x)) / 10)[:, None]
    energy = np.exp(x)
    tail = energy[:, 0] * decay / (1 - decay)
    changed = np.empty_like(x)
    for frame in range(x.shape[1]):
        changed[:, frame] = np.log(energy[:, frame] + share * tail)
        tail = decay * (tail + energy[:, frame])
    return changed


@lru_cache(maxsize=8)
def warp(num_bins: int, speed: float, sample_rate: int) -> Floats:
    """Return the (bins, bins) matrix that moves a row of bins to `speed` times its frequencies."""
    import torch

    centres = mel_centres(sample_rate, num_bins)
    grid = mel(centres).numpy()
    heard = mel(torch.clamp(centres / speed, max=sample_rate / 2)).numpy()
    at = np.interp(heard, grid, np.arange(num_bins))
    low = np.minimum(at.astype(np.int64), num_bins - 2)
    matrix = np.zeros((num_bins, num_bins), np.float32)
    columns = np.arange(num_bins)
    matrix[low, columns] = 1 - (at - low)
    matrix[low + 1, columns] += at - low
    return matrix


def mask_(x: Floats, axis: int, most: int, rng: np.random.Generator) -> None:
    """Replace up to `most` neighbours along an axis of each window by 0, the mean."""
    size = x.shape[axis]
    width = rng.integers(0, min(most, size - 1) + 1, len(x))
    first = rng.integers(0, size - width + 1)
    at = np.arange(size)
    hidden = (at >= first[:, None]) & (at < (first + width)[:, None])
    x[np.broadcast_to(hidden[:, None] if axis == 2 else hidden[:, :, None], x.shape)] = 0.0
