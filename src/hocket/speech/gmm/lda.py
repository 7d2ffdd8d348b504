"""LDA and MLLT: spliced cepstra in the directions that separate senones, then decorrelated.

LDA. With the covariances W within and B between the classes (senones) of spliced frames,

    W = L L',    L^-1 B L^-1' = U diag(lambda) U',    T = the first rows of U' L^-1         (1)

so that within classes the outputs have unit covariance, and those that separate best are kept.

MLLT. Gaussians with diagonal covariances fit better after a transform A that makes the covariances
as diagonal as possible on average. With beta frames and, over all Gaussians m,

    G_i = sum_m 1 / var_mi  sum_t gamma_m(t) (y(t) - mu_m) (y(t) - mu_m)'                   (2)

A maximises beta log |det A| - 1/2 sum_i a_i G_i a_i'; row by row, with c_i the i-th row of
cofactors,

    a_i = c_i G_i^-1 sqrt(beta / (c_i G_i^-1 c_i'))                                         (3)

References: R. Haeb-Umbach, H. Ney, ICASSP 1992 (LDA); M. Gales, "Semi-tied covariance matrices for
hidden Markov models", IEEE Transactions on Speech and Audio Processing 1999 (MLLT). Kaldi's `tri2b`
is this step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.speech.gmm.alignment import GMMHMM, Pass, aligned_utterances, load_model
from hocket.speech.gmm.front import Front, spliced, whole_splice
from hocket.speech.gmm.gmm import GMM

Doubles = NDArray[np.float64]
ROUNDS: Final = 50  # over all rows of A; eq. 3 is at rest long before
FLOOR: Final = 1e-6  # of W's eigenvalues, relative to their mean: a constant input has none


# ---------------------------------------------------------------------------- LDA


@dataclass
class Scatter:
    """Sums over some frames: by class, and their outer products."""

    count: Doubles  # (classes,)
    first: Doubles  # (classes, dims)
    second: Doubles  # (dims, dims)

    def add_(self, other: Scatter) -> None:
        """Add the sums of other frames."""
        self.count += other.count
        self.first += other.first
        self.second += other.second


def scatter_piece(what: Pass, numbers: Sequence[int]) -> Scatter:
    """Collect the scatter of spliced frames with the existing alignment."""
    model = load_model(what)
    found: Scatter | None = None
    for x, pdfs in aligned_utterances(what, numbers):
        one = scatter(spliced(x).astype(np.float64), pdfs, model.senones.num_pdfs)
        if found is None:
            found = one
        else:
            found.add_(one)
    if found is not None:
        return found
    dims = model.front.transform.shape[1]
    nothing = np.zeros((model.senones.num_pdfs, dims))
    return Scatter(nothing[:, 0].copy(), nothing, np.zeros((dims, dims)))


def scatter(x: Doubles, classes: NDArray[np.int32], num_classes: int) -> Scatter:
    """Return the sums of frames whose classes are known."""
    first = torch.zeros(num_classes, x.shape[1], dtype=torch.float64)
    first.index_add_(0, torch.from_numpy(classes.astype(np.int64)), torch.from_numpy(x))
    count = np.bincount(classes, minlength=num_classes).astype(np.float64)
    return Scatter(count, first.numpy(), x.T @ x)


def lda(total: Scatter, num_outputs: int) -> Doubles:
    """Return T of eq. 1."""
    frames = total.count.sum()
    mean = total.first.sum(0) / frames
    means = total.first / np.maximum(total.count, 1.0)[:, None] - mean
    between = (means.T * (total.count / frames)) @ means
    within = total.second / frames - np.outer(mean, mean) - between
    sizes, axes = np.linalg.eigh((within + within.T) / 2)
    whiten = (axes / np.sqrt(np.maximum(sizes, FLOOR * sizes.mean()))).T  # L^-1, but for a rotation
    _, turn = np.linalg.eigh(whiten @ between @ whiten.T)
    best: Doubles = turn[:, ::-1].T[:num_outputs] @ whiten  # eq. 1
    return best


def lda_front(parts: Iterable[Scatter], num_inputs: int, num_outputs: int) -> Front:
    """Return eq. 1 as what a GMM-HMM sees."""
    parts = iter(parts)
    total = next(parts)
    for part in parts:
        total.add_(part)
    return whole_splice(num_inputs).then(lda(total, num_outputs))


# ---------------------------------------------------------------------------- MLLT


@dataclass
class CovarianceSums:
    """G of eq. 2, (dims, dims, dims), and the frames behind it."""

    g: Doubles
    frames: float

    def add_(self, other: CovarianceSums) -> None:
        """Add what other frames give."""
        self.g += other.g
        self.frames += other.frames


def covariance_piece(what: Pass, numbers: Sequence[int]) -> CovarianceSums:
    """Collect eq. 2 with the existing alignment."""
    model = load_model(what)
    frames, pdfs = [], []
    for x, aligned in aligned_utterances(what, numbers):
        frames.append(model.front(x))
        pdfs.append(aligned)
    dims = model.front.dims
    if not frames:
        return CovarianceSums(np.zeros((dims, dims, dims)), 0.0)
    together = torch.from_numpy(np.concatenate(frames))
    return covariance_sums(model.gmm, together, torch.from_numpy(np.concatenate(pdfs)).long())


def covariance_sums(gmm: GMM, x: torch.Tensor, pdf: torch.Tensor) -> CovarianceSums:
    """Return eq. 2 for frames whose pdf is known."""
    dims = x.shape[1]
    inverse, outer = [], []
    for p, mine, posterior in gmm.posteriors(x, pdf):
        for m in torch.nonzero(posterior.sum(0) > 1e-3).flatten().tolist():
            apart = mine - gmm.mean[p, m]
            outer.append(((apart * posterior[:, m : m + 1]).T @ apart).flatten())
            inverse.append(1 / gmm.variance[p, m])
    g = torch.stack(inverse).double().T @ torch.stack(outer).double()
    return CovarianceSums(g.view(dims, dims, dims).numpy(), float(len(x)))


def mllt(total: CovarianceSums, rounds: int = ROUNDS) -> Doubles:
    """Return A by eq. 3."""
    dims = len(total.g)
    inverse = np.linalg.inv(total.g)
    a = np.eye(dims)
    for _ in range(rounds):
        for row in range(dims):
            cofactors = np.linalg.inv(a)[:, row]  # up to det A, which cancels
            direction = inverse[row] @ cofactors
            a[row] = direction * np.sqrt(total.frames / (cofactors @ direction))  # eq. 3
    return a


def transformed(model: GMMHMM, a: Doubles) -> GMMHMM:
    """Return the model of A y: means move along, variances as if they had been all there was."""
    turn = torch.from_numpy(a.astype(np.float32))
    old = model.gmm
    mixtures = GMM(old.log_weight, old.mean @ turn.T, old.variance @ turn.square().T)
    return GMMHMM(model.senones, mixtures, model.loop, model.front.then(a))
