"""The arithmetic that both runtimes share, so that their results agree bit for bit.

Pure functions; none awaits, none communicates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from hocket.core.flat import Flat, Parts


def shares(weights: Sequence[float]) -> list[float]:
    """Normalise weights to sum to one; equal shares when nobody has any weight.

    A single contributor gets exactly 1.0, so the mean over one learner is its vector, bit for bit.
    """
    total = sum(weights)
    if total <= 0.0:
        return [1.0 / len(weights)] * len(weights)
    return [w / total for w in weights]


def weighted_sum(vectors: Sequence[Flat], shares: Sequence[float], out: Flat | None = None) -> Flat:
    """Sum of share * vector, in the order given (rank order), in a new vector or in `out`.

    Vectors with share 0 are skipped, not multiplied: a dry learner's NaN must not spread.
    """
    total: Flat | None = None
    for x, share in zip(vectors, shares, strict=True):
        if share == 0.0:
            continue
        total = torch.mul(x, share, out=out) if total is None else total.add_(x, alpha=share)
    if total is None:
        raise ValueError("all shares are zero")
    return total


def finite(vector: Flat | Parts) -> bool:
    """True if no value is infinite or not a number."""
    return vector.finite() if isinstance(vector, Parts) else bool(torch.isfinite(vector).all())


def clip_coefficient(vector: Flat, max_norm: float) -> float:
    """Return the factor that brings the norm down to `max_norm`, or 1.0 if it is within.

    As torch.nn.utils.clip_grad_norm_, with its 1e-6 against division by zero.
    """
    norm = torch.linalg.vector_norm(vector)
    return min(1.0, float(max_norm / (norm + 1e-6)))  # in float32, bit for bit as torch


def stable_seed(*parts: int | str) -> int:
    """A 63-bit seed from a key; the same on every machine, process and Python version."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
