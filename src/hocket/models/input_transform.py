"""Kaldi's LDA-like input transform: a fixed affine layer in front of the network.

With the mean m, the covariance W within classes and B between them,

    W = L L',    L^-1 B L^-1' = U diag(lambda) U'                                         (1)
    T = diag(sqrt((f + lambda) / (1 + lambda))) U' L^-1,      f = 0.001                   (2)
    T <- T with its singular values capped at 5                                           (3)
    x -> T (x - m)                                                                        (4)

U' L^-1 alone makes the covariance I + diag(lambda), of which I is the part within classes. (2)
makes it f + diag(lambda): a direction keeps its size if it separates classes, and almost vanishes
if it does not, so that the first layer sees at once what matters. No direction is left out.

Reference: Kaldi's `get-feature-transform` ("preconditioning" LDA), in the recipe of D. Povey, X.
Zhang, S. Khudanpur, arXiv:1410.7455.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Floats: TypeAlias = NDArray[np.float64]

WITHIN_CLASS_FACTOR = 0.001  # f
MAX_SINGULAR_VALUE = 5.0
FLOOR = 1e-6  # of W's eigenvalues, relative to their mean: that of a constant input is 0


def scatter(x: Floats, labels: NDArray[np.int64], num_classes: int) -> tuple[Floats, Floats]:
    """Return W and B, the covariances within and between classes."""
    counts = np.bincount(labels, minlength=num_classes).astype(np.float64)
    sums = np.zeros((num_classes, x.shape[1]))
    np.add.at(sums, labels, x)
    mean = x.mean(0)
    means = sums / np.maximum(counts, 1)[:, None] - mean
    between = (means.T * (counts / len(x))) @ means
    centred = x - mean
    within = centred.T @ centred / len(x) - between
    return within, between


def lda_like(within: Floats, between: Floats) -> Floats:
    """Return T of eqs. 1 to 3."""
    sizes, axes = np.linalg.eigh((within + within.T) / 2)
    sizes = np.maximum(sizes, FLOOR * max(float(sizes.mean()), 1e-30))
    whiten = (axes / np.sqrt(sizes)).T  # L^-1, up to a rotation
    ratios, turn = np.linalg.eigh(whiten @ between @ whiten.T)  # eq. 1
    ratios = np.maximum(ratios[::-1], 0.0)
    scale = np.sqrt((WITHIN_CLASS_FACTOR + ratios) / (1 + ratios))
    transform = scale[:, None] * (turn[:, ::-1].T @ whiten)  # eq. 2
    left, values, right = np.linalg.svd(transform)
    capped: Floats = (left * np.minimum(values, MAX_SINGULAR_VALUE)) @ right  # eq. 3
    return capped


def estimate(x: torch.Tensor, labels: torch.Tensor, num_classes: int) -> nn.Linear:
    """Return eq. 4 as a layer that is not trained."""
    frames = x.numpy().astype(np.float64)
    transform = lda_like(*scatter(frames, labels.numpy(), num_classes))
    layer = nn.Linear(x.shape[1], x.shape[1])
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(transform))
        layer.bias.copy_(torch.from_numpy(-transform @ frames.mean(0)))
    return layer.requires_grad_(False)
