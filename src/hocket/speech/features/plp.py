"""Perceptual linear prediction (Hermansky 1990), as Kaldi computes it by default.

    mel energies -> equal-loudness curve -> cube root (the ear's intensity to loudness)
        -> autocorrelation, by an inverse cosine transform                              (1)
        -> linear prediction of order 12, by Levinson and Durbin                        (2)
        -> cepstrum of the all-pole model, by recursion                                 (3)
        -> lifter, log energy in place of C0

The loops below run over the order of the prediction; all frames are one matrix.
Reference: feat/feature-plp.cc, feature-functions.cc of kaldi-asr/kaldi.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import torch

from hocket.speech.features.spectral import (
    LIFTER,
    NUM_CEPSTRA,
    NUM_MEL_BINS,
    Analysis,
    mel_centres,
    mel_energies,
)

ORDER: Final = 12
MIN_SHARE: Final = 1e-5  # of the error that one step of (2) leaves; less would be rounding error


def plp(frames: torch.Tensor, energy: torch.Tensor, a: Analysis, rate: int) -> torch.Tensor:
    """Return PLP cepstra (T, 13) from windowed frames and their log energies."""
    if len(frames) == 0:
        return frames.new_zeros(0, NUM_CEPSTRA)
    loudness = (mel_energies(frames, a) * equal_loudness(rate)) ** (1 / 3)
    edges = torch.cat([loudness[:, :1], loudness, loudness[:, -1:]], dim=1)
    cepstra = cepstrum(durbin(edges @ inverse_transform()))
    lifter = 1 + 0.5 * LIFTER * torch.sin(math.pi * torch.arange(1, NUM_CEPSTRA) / LIFTER)
    return torch.cat([energy[:, None], cepstra[:, : NUM_CEPSTRA - 1] * lifter], dim=1)


@lru_cache(maxsize=4)
def equal_loudness(sample_rate: int) -> torch.Tensor:
    """Return how loud the ear hears each mel bin's centre (40-phon curve, Hermansky's fit)."""
    hz = mel_centres(sample_rate, NUM_MEL_BINS)
    f2 = hz**2
    return (f2 / (f2 + 1.6e5)) ** 2 * (f2 + 1.44e6) / (f2 + 9.61e6)


@lru_cache(maxsize=1)
def inverse_transform() -> torch.Tensor:
    """Eq. 1 as a (bins + 2, order + 1) matrix."""
    last = NUM_MEL_BINS + 1
    bins = torch.arange(last + 1, dtype=torch.float64)
    bases = torch.cos(math.pi / last * bins[:, None] * torch.arange(ORDER + 1)) / last
    bases[0] /= 2
    bases[-1] /= 2
    return bases


def durbin(r: torch.Tensor) -> torch.Tensor:
    """Eq. 2: predictors (T, order) from autocorrelations (T, order + 1)."""
    error = r[:, 0].clone()
    lp = r.new_zeros(len(r), 0)
    for i in range(r.shape[1] - 1):
        k = (r[:, i + 1] + (lp * r[:, 1 : i + 1].flip(1)).sum(1)) / error  # reflection
        error = error * (1 - k**2).clamp(min=MIN_SHARE)
        lp = torch.cat([lp - k[:, None] * lp.flip(1), -k[:, None]], dim=1)
    return lp


def cepstrum(lp: torch.Tensor) -> torch.Tensor:
    """Eq. 3: c_n = -a_n - sum over m < n of (m / n) c_m a_(n-m)."""
    found = torch.zeros_like(lp)
    for n in range(lp.shape[1]):
        m = torch.arange(1, n + 1, dtype=lp.dtype)
        past = (m * found[:, :n] * lp[:, :n].flip(1)).sum(1)
        found[:, n] = -lp[:, n] - past / (n + 1)
    return found
