"""Pitch and the degree of voicing, as Kaldi's tracker finds them by default.

Ghahremani, BabaAli, Povey, Riedhammer, Trmal, Khudanpur: "A pitch extraction algorithm tuned for
automatic speech recognition", ICASSP 2014. For every frame t and lag L,

    Phi(t, L) = <v_0, v_L> / sqrt(|v_0|^2 |v_L|^2 + ballast)                            (1)

is the normalised cross-correlation (NCCF) of the 25 ms from t on with the 25 ms that come L later,
on the signal low-passed at 1 kHz and sampled at 4 kHz. It is interpolated at lags that lie 0.5 %
apart, from 1/400 to 1/50 s, and the lags of all frames are chosen together to minimise

    sum over t of  1 - Phi(t, L_t) (1 - soft_min_f0 L_t)  +  penalty (log L_t/L_(t-1))^2   (2)

Because of the ballast in eq. 1, quiet frames prefer no lag and follow their neighbours, so every
frame has a pitch. The NCCF that is returned has no ballast.

`processed` makes features of this: a function of the NCCF that is roughly normal, log pitch minus
its mean over 1.5 s weighted by the probability of voicing, and the slope of log pitch.

Differences: Kaldi processes the file in pieces and takes the ballast's energy from the first one;
here it is that of the whole file. Kaldi adds random noise to the slope; here there is none.
Reference: feat/pitch-functions.cc, resample.cc of kaldi-asr/kaldi.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, floor, log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hocket.speech.features.low_pass import low_passed, windowed_sinc

RATE: Final = 4000  # Hz, after a low-pass at CUTOFF
CUTOFF: Final = 1000.0
LOW_PASS_ZEROS, UPSAMPLE_ZEROS = 1, 5  # of the sinc, on each side
WINDOW, SHIFT = 100, 40  # samples at RATE: 25 ms every 10 ms
MIN_HZ, MAX_HZ, SOFT_MIN_HZ = 50.0, 400.0, 10.0
BALLAST: Final = 7000.0
STEP: Final = 0.005  # between neighbouring lags, relative
PENALTY: Final = 0.1
MEAN_REACH: Final = 75  # frames on each side, of the mean that is subtracted from log pitch
POV_SCALE, PITCH_SCALE, SLOPE_SCALE = 2.0, 2.0, 10.0

Array = NDArray[np.float64]
_REACH: Final = UPSAMPLE_ZEROS / (2 * RATE)
FIRST_LAG = ceil(RATE * (1 / MAX_HZ - _REACH))
LAST_LAG = floor(RATE * (1 / MIN_HZ + _REACH))


def raw_pitch(samples: Array, sample_rate: int) -> Array:
    """Return (frames, 2): NCCF, and pitch in Hz."""
    x = low_passed(samples, sample_rate, RATE, CUTOFF, LOW_PASS_ZEROS)
    num_frames = max(0, (len(x) - WINDOW) // SHIFT + 1)
    if num_frames == 0:
        return np.zeros((0, 2))
    inner, norm = correlations(x, num_frames)
    ballast = BALLAST * (float(np.var(x)) * WINDOW) ** 2
    for_pitch = _nccf(inner, norm + ballast) @ interpolation()
    chosen = best_lags(for_pitch)
    voicing = _nccf(inner, norm) @ interpolation()
    return np.stack([voicing[np.arange(num_frames), chosen], 1 / lags()[chosen]], axis=1)


def correlations(x: Array, num_frames: int) -> tuple[Array, Array]:
    """Return <v_0, v_L> and |v_0|^2 |v_L|^2 for each frame and each whole lag, (frames, lags)."""
    padded = np.concatenate([x, np.zeros(WINDOW + LAST_LAG)])
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW + LAST_LAG)[::SHIFT]
    frames = frames[:num_frames] - frames[:num_frames, :WINDOW].mean(1, keepdims=True)
    shifted = np.lib.stride_tricks.sliding_window_view(frames, WINDOW, axis=1)
    shifted = shifted[:, FIRST_LAG : LAST_LAG + 1]
    here = frames[:, :WINDOW]
    inner: Array = np.einsum("tw,tlw->tl", here, shifted, optimize=True)
    energy = np.concatenate([np.zeros((num_frames, 1)), np.cumsum(frames**2, axis=1)], axis=1)
    later = energy[:, WINDOW:] - energy[:, :-WINDOW]
    norm = (here**2).sum(1, keepdims=True) * later[:, FIRST_LAG : LAST_LAG + 1]
    return inner, np.maximum(norm, 0.0)


def _nccf(inner: Array, squared: Array) -> Array:
    """Return eq. 1; 0 where there is no energy."""
    found: Array = np.divide(inner, np.sqrt(squared), out=np.zeros_like(inner), where=squared > 0)
    return found


@lru_cache(maxsize=1)
def lags() -> Array:
    """Return the lags that are tried, in seconds."""
    count = floor(log(MAX_HZ / MIN_HZ) / log(1 + STEP)) + 1
    found: Array = (1 + STEP) ** np.arange(count, dtype=np.float64) / MAX_HZ
    return found


@lru_cache(maxsize=1)
def interpolation() -> Array:
    """Return the (whole lags, lags) matrix that interpolates the correlation."""
    whole = np.arange(FIRST_LAG, LAST_LAG + 1) / RATE
    return windowed_sinc(lags()[None] - whole[:, None], RATE / 2, UPSAMPLE_ZEROS) / RATE


def best_lags(nccf: Array) -> NDArray[np.int64]:
    """Minimise eq. 2 over all paths (Viterbi); return the number of each frame's lag."""
    local = (1 - nccf * (1 - SOFT_MIN_HZ * lags())).astype(np.float32)
    number = np.arange(local.shape[1])
    jump = PENALTY * log(1 + STEP) ** 2 * (number[:, None] - number) ** 2  # eq. 2, second term
    jump = jump.astype(np.float32)
    cost, through = local[0], np.empty_like(jump)
    came_from = []
    for row in local[1:]:
        before = np.add(cost, jump, out=through).argmin(1)
        came_from.append(before)
        cost = row + through[number, before]
        cost -= cost.min()  # else float32 loses precision over a long file
    path = [int(cost.argmin())]
    for before in reversed(came_from):
        path.append(int(before[path[-1]]))
    return np.array(path[::-1], dtype=np.int64)


# ---------------------------------------------------------------------------- features


def processed(raw: Array) -> Array:
    """Return (frames, 3): voicing, log pitch minus its mean, slope of log pitch."""
    if len(raw) == 0:
        return np.zeros((0, 3))
    nccf, log_pitch = raw[:, 0], np.log(raw[:, 1])
    voicing = (1.0001 - np.clip(nccf, -1, 1)) ** 0.15 - 1
    mean = _running_mean(log_pitch, probability_of_voicing(nccf))
    return np.stack(
        [POV_SCALE * voicing, PITCH_SCALE * (log_pitch - mean), SLOPE_SCALE * _slope(log_pitch)],
        axis=1,
    )


def probability_of_voicing(nccf: Array) -> Array:
    """Return the paper's fit of p(voiced) as a function of the NCCF."""
    n = np.minimum(np.abs(nccf), 1.0)
    r = -5.2 + 5.4 * np.exp(7.5 * (n - 1)) + 4.8 * n - 2 * np.exp(-10 * n)
    r += 4.2 * np.exp(20 * (n - 1))
    probability: Array = 1 / (1 + np.exp(-r))
    return probability


def _running_mean(x: Array, weight: Array) -> Array:
    totals = np.cumsum(np.stack([np.r_[0.0, x * weight], np.r_[0.0, weight]]), axis=1)
    at = np.arange(len(x))
    first = np.maximum(0, at - MEAN_REACH)
    after = np.minimum(len(x), at + MEAN_REACH + 1)
    part = totals[:, after] - totals[:, first]
    mean: Array = part[0] / part[1]
    return mean


def _slope(x: Array) -> Array:
    """Return the slope by regression over two frames on each side."""
    padded = np.pad(x, 2, mode="edge")
    slope: Array = np.convolve(padded, np.arange(2, -3, -1) / 10, mode="valid")
    return slope
