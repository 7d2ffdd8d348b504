"""The pitch tracker's low-pass filter: a Hann-windowed sinc that also changes the rate.

    y(n) = sum over m of x(m) h(n / to_rate - m / from_rate) / from_rate                 (1)

h is the filter's impulse response. Kaldi's tracker is defined with this filter, so its values need
it; audio is resampled by soxr (`hocket.speech.input.audio`).
"""

from __future__ import annotations

from math import floor
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
PIECE: Final = 65536  # output samples at a time: an hour of speech fits into memory


def low_passed(x: Array, from_rate: int, to_rate: int, cutoff: float, zeros: int) -> Array:
    """Return the signal at another rate, without what lies above the cutoff (eq. 1)."""
    length = -(-len(x) * to_rate // from_rate)
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
