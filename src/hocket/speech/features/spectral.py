"""Acoustic features as Kaldi computes them by default, without dither.

    samples -> frames of 25 ms every 10 ms -> no DC, pre-emphasis, Povey window -> power spectrum
            -> triangular mel filters -> logarithm                                        (fbank)
            -> cosine transform, lifter, log energy in place of C0                        (mfcc)
            -> linear prediction, see plp.py                                               (plp)

Samples are on the int16 scale (-32768 .. 32767), as Kaldi reads a wav file. Only whole frames are
kept (`snip_edges`), so a signal shorter than one frame has none. All frames of an utterance are one
matrix; there is no loop over frames. Pitch is in pitch.py; `KINDS` lists all kinds.

Reference: feat/feature-window.cc, mel-computations.cc, feature-mfcc.cc of kaldi-asr/kaldi; checked
against its output (tests/golden).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from hocket.errors import HocketError, nearest

Kind: TypeAlias = Literal["fbank", "mfcc", "plp", "pitch_raw", "pitch", "plp_pitch", "kaldi"]
# What can be extracted. Kind "kaldi": features of any type that Kaldi computed (kaldi_files.py).
KINDS: Final[dict[Kind, str]] = {
    "fbank": "log mel energies (40)",
    "mfcc": "cepstra (13)",
    "plp": "perceptual linear prediction (13)",
    "pitch_raw": "NCCF and pitch in Hz (2)",
    "pitch": "voicing, normalised log pitch, its slope (3)",
    "plp_pitch": "PLP and normalised log pitch with both deltas (42): Zhang et al. 2013",
}

FRAME_S, SHIFT_S = 0.025, 0.010
PREEMPHASIS = 0.97
LOW_HZ = 20.0  # Kaldi's default; the upper end is half the sample rate
NUM_CEPSTRA = 13
NUM_MEL_BINS = 23  # of mfcc and plp
DIMS: Final[dict[Kind, int]] = {
    "fbank": 40, "mfcc": NUM_CEPSTRA, "plp": NUM_CEPSTRA, "pitch_raw": 2, "pitch": 3,
    "plp_pitch": 3 * (NUM_CEPSTRA + 1),
}  # fmt: skip
LIFTER = 22.0
FLOOR = float(np.finfo(np.float32).eps)  # below it the logarithm of a silent frame would be -inf
SAMPLE_RATES = (8000, 16000)


class FeatureError(HocketError):
    """No features can be computed from a signal; the message says why."""


@dataclass(frozen=True)
class Analysis:
    """The constants of one sample rate and one number of mel bins."""

    length: int  # samples of a frame
    shift: int
    fft: int
    window: torch.Tensor  # (length,)
    mel: torch.Tensor  # (fft / 2, bins)


@lru_cache(maxsize=16)
def analysis(sample_rate: int, num_bins: int) -> Analysis:
    """Return the constants for a sample rate and a number of mel bins."""
    length, shift = int(sample_rate * FRAME_S), int(sample_rate * SHIFT_S)
    fft = 1 << (length - 1).bit_length()
    n = torch.arange(length, dtype=torch.float64)
    window = (0.5 - 0.5 * torch.cos(2 * math.pi * n / (length - 1))) ** 0.85  # Povey's
    return Analysis(length, shift, fft, window, mel_filters(sample_rate, fft, num_bins))


def mel(hz: torch.Tensor) -> torch.Tensor:
    """Map Hz to mel."""
    return 1127.0 * torch.log1p(hz / 700.0)


def mel_filters(sample_rate: int, fft: int, num_bins: int) -> torch.Tensor:
    """Triangles of equal width in mel, as a (fft / 2, bins) matrix; the Nyquist bin is left out."""
    centre, width = _mel_grid(sample_rate, num_bins)
    at = mel(torch.arange(fft // 2, dtype=torch.float64) * sample_rate / fft)
    height: torch.Tensor = 1 - (at[:, None] - centre[None]).abs() / width
    return height.clamp(min=0)


def _mel_grid(sample_rate: int, num_bins: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Centres of the triangles, and half their width, in mel."""
    low, high = mel(torch.tensor([LOW_HZ, sample_rate / 2], dtype=torch.float64))
    width = (high - low) / (num_bins + 1)
    return low + width * torch.arange(1, num_bins + 1), width


def mel_centres(sample_rate: int, num_bins: int) -> torch.Tensor:
    """Centres of the triangles in Hz."""
    return 700.0 * torch.expm1(_mel_grid(sample_rate, num_bins)[0] / 1127.0)


def check(samples: ArrayLike, sample_rate: int) -> torch.Tensor:
    """Return the samples as float64, or raise an error that says what is wrong with them."""
    if sample_rate not in SAMPLE_RATES:
        raise FeatureError(
            f"sample rate {sample_rate}: only {' and '.join(map(str, SAMPLE_RATES))} Hz are "
            "supported; resample the audio first"
        )
    x = np.asarray(samples)
    if x.ndim != 1:
        raise FeatureError(f"samples must be one channel (a vector), not of shape {x.shape}")
    x = x.astype(np.float64)
    if not np.isfinite(x).all():
        raise FeatureError("samples hold NaN or infinity: the file is damaged")
    if len(x) and 0 < np.abs(x).max() <= 1.0:
        raise FeatureError(
            "samples lie within -1 .. 1: multiply by 32768, Kaldi's scale is that of int16"
        )
    return torch.from_numpy(x)


def frames_of(x: torch.Tensor, a: Analysis) -> tuple[torch.Tensor, torch.Tensor]:
    """Return windowed frames (T, length), and each frame's log energy before the window."""
    if len(x) < a.length:
        return x.new_zeros(0, a.length), x.new_zeros(0)
    frames = x.unfold(0, a.length, a.shift)
    frames = frames - frames.mean(1, keepdim=True)
    energy = frames.square().sum(1).clamp(min=FLOOR).log()
    previous = torch.cat([frames[:, :1], frames[:, :-1]], dim=1)  # the first sample is repeated
    return (frames - PREEMPHASIS * previous) * a.window, energy


def mel_energies(frames: torch.Tensor, a: Analysis) -> torch.Tensor:
    """Mel energies (T, bins) of windowed frames."""
    if len(frames) == 0:  # the FFT refuses an empty batch
        return frames.new_zeros(0, a.mel.shape[1])
    spectrum: torch.Tensor = torch.fft.rfft(frames, n=a.fft, dim=1)[:, : a.fft // 2]
    return (spectrum.abs().square() @ a.mel).clamp(min=FLOOR)


@lru_cache(maxsize=8)
def cepstral_matrix(num_bins: int, num_cepstra: int) -> torch.Tensor:
    """Orthonormal DCT-II with the lifter folded in, (bins, cepstra)."""
    k = torch.arange(num_cepstra, dtype=torch.float64)
    n = torch.arange(num_bins, dtype=torch.float64)
    dct = torch.cos(math.pi / num_bins * (n[:, None] + 0.5) * k) * math.sqrt(2 / num_bins)
    dct[:, 0] = math.sqrt(1 / num_bins)
    return dct * (1 + 0.5 * LIFTER * torch.sin(math.pi * k / LIFTER))


def num_dims(kind: Kind, num_bins: int | None = None) -> int:
    """Return how many numbers a frame has; `num_bins` is for fbank only."""
    return num_bins if kind == "fbank" and num_bins else DIMS[kind]


def extract(
    samples: ArrayLike, sample_rate: int, kind: Kind = "fbank", num_bins: int | None = None
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return one utterance's features, float32 (frames, dims); `num_bins` is for fbank only."""
    if kind not in KINDS:
        listed = ", ".join(KINDS)
        raise FeatureError(
            f"unknown kind of features {kind!r}: there are {listed}.{nearest(kind, KINDS)}"
        )
    x = check(samples, sample_rate)
    if kind in ("pitch_raw", "pitch"):
        return _pitch(x, sample_rate, kind).astype(np.float32)
    bins = num_bins or (DIMS["fbank"] if kind == "fbank" else NUM_MEL_BINS)
    a = analysis(sample_rate, bins)
    frames, energy = frames_of(x, a)
    if kind == "fbank":
        features = mel_energies(frames, a).log()
    elif kind == "mfcc":
        features = mel_energies(frames, a).log() @ cepstral_matrix(bins, NUM_CEPSTRA)
        features[:, 0] = energy
    else:
        from hocket.speech.features.plp import plp

        features = plp(frames, energy, a, sample_rate)
    plain = features.to(torch.float32).numpy()
    return _with_pitch(plain, _pitch(x, sample_rate, "pitch")) if kind == "plp_pitch" else plain


def _pitch(x: torch.Tensor, sample_rate: int, kind: Kind) -> NDArray[np.float64]:
    from hocket.speech.features import pitch

    raw = pitch.raw_pitch(x.numpy(), sample_rate)
    return raw if kind == "pitch_raw" else pitch.processed(raw)


def _with_pitch(
    plp: NDArray[np.float32], pitch: NDArray[np.float64]
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return the published input: PLP and normalised log pitch, with deltas.

    The tracker works at 4 kHz and may give one frame more or less: the last one is repeated or cut.
    """
    rows = np.minimum(np.arange(len(plp)), max(0, len(pitch) - 1))
    column = pitch[rows, 1:2] if len(pitch) else np.zeros((len(plp), 1))
    return add_deltas(np.concatenate([plp, column.astype(np.float32)], axis=1))


def add_deltas(
    features: ArrayLike, order: int = 2, window: int = 2
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Append first- and second-order regression coefficients; edge frames are repeated."""
    x = np.asarray(features, dtype=np.float32)
    kernel, parts = np.ones(1), [x]
    slope = np.arange(-window, window + 1) / (2 * sum(j * j for j in range(1, window + 1)))
    for _ in range(order):
        kernel = np.convolve(kernel, slope)
        reach = len(kernel) // 2
        if len(x) == 0:
            parts.append(x)
            continue
        padded = np.pad(x.astype(np.float64), ((reach, reach), (0, 0)), mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, len(kernel), axis=0)
        parts.append((windows @ kernel).astype(np.float32))
    joined: np.ndarray[tuple[int, int], np.dtype[np.float32]] = np.concatenate(parts, axis=1)
    return joined
