"""Changing the sample rate with a Hann-windowed sinc.

    y(n) = sum over m of x(m) h(n / to_rate - m / from_rate) / from_rate                 (1)

h is the impulse response of a low-pass filter. Any two rates are possible, also 11025 and 16000.
"""

from __future__ import annotations

from math import floor
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ZEROS: Final = 16  # of the sinc on each side: the filter falls within 6 % of the cutoff
CUTOFF_SHARE: Final = 0.95  # of the lower of the two Nyquist frequencies
PIECE: Final = 65536  # output samples at a time: an hour of speech fits into memory


def resampled_length(num_samples: int, from_rate: int, to_rate: int) -> int:
    """Return how many samples a signal has after resampling."""
    return -(-num_samples * to_rate // from_rate)


def resample(
    x: Array, from_rate: int, to_rate: int, cutoff: float | None = None, zeros: int = ZEROS
) -> Array:
    """Return the signal at another rate (eq. 1)."""
    cutoff = cutoff or CUTOFF_SHARE * min(from_rate, to_rate) / 2
    length = resampled_length(len(x), from_rate, to_rate)
    taps = np.arange(floor(zeros / cutoff * from_rate) + 1)
    pieces = [np.zeros(0)]
    for start in range(0, length, PIECE):
        at = np.arange(start, min(length, start + PIECE)) * (from_rate / to_rate)
        where = np.ceil(at - zeros / (2 * cutoff) * from_rate).astype(np.int64)[:, None] + taps
        weight = windowed_sinc((where - at[:, None]) / from_rate, cutoff, zeros)
        weight[(where < 0) | (where >= len(x))] = 0.0
        values = x[np.clip(where, 0, len(x) - 1)]
        pieces.append(np.einsum("nt,nt->n", values, weight) / from_rate)
    return np.concatenate(pieces)


def windowed_sinc(t: Array, cutoff: float, zeros: int) -> Array:
    """Return a low-pass filter's impulse response under a Hann window; t in seconds."""
    window = np.where(
        np.abs(t) < zeros / (2 * cutoff), 0.5 * (1 + np.cos(2 * np.pi * cutoff / zeros * t)), 0.0
    )
    response: Array = window * 2 * cutoff * np.sinc(2 * cutoff * t)
    return response
