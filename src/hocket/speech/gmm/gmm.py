"""Diagonal Gaussian mixtures, one per pdf, trained by maximum likelihood on aligned frames.

    log p(x | pdf) = log sum_m w_m N(x; mu_m, var_m)                                    (1)

All mixtures have the same number of slots; an unused slot has weight 0. The exponent is linear in
(x, x^2), so the likelihoods of a whole utterance under all Gaussians are one matrix product:

    log w N = c + x . (mu / var) - x^2 . (1 / (2 var))                                  (2)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.errors import UnreadableError
from hocket.support.arrays import read_arrays

VARIANCE_FLOOR: Final = 0.01  # of normalised features
MIN_OCCUPANCY: Final = 8.0  # frames; a Gaussian with fewer is dropped
SPLIT_DISTANCE: Final = 0.4  # standard deviations between the two halves of a Gaussian, as in HTK
SPLIT_POWER: Final = 0.25  # Gaussians go to pdfs in proportion to their frames to this power
NEGLIGIBLE: Final = -50.0  # exp of less is a denormal number, which takes ten times as long
NEVER: Final = -1e30  # log weight of an unused slot; -inf would make NaN of 0 * inf


@dataclass
class Moments:
    """Sums over some frames, per pdf and slot: posteriors, and posteriors times x and x^2."""

    count: torch.Tensor  # (P, M) float64
    first: torch.Tensor  # (P, M, D)
    second: torch.Tensor  # (P, M, D)
    log_likelihood: float = 0.0
    frames: int = 0

    def add_(self, other: Moments) -> None:
        """Add the moments of other frames."""
        self.count += other.count
        self.first += other.first
        self.second += other.second
        self.log_likelihood += other.log_likelihood
        self.frames += other.frames


@dataclass(frozen=True)
class Densities:
    """The factors (P, M, 2D) and constants (P, M) of eq. 2."""

    linear: torch.Tensor
    constant: torch.Tensor

    def log_likelihoods(self, x: torch.Tensor, pdfs: torch.Tensor | None = None) -> torch.Tensor:
        """Return eq. 1 for every frame and pdf (or those asked for): (T, P)."""
        linear, constant = self.linear, self.constant
        if pdfs is not None:
            linear, constant = linear[pdfs], constant[pdfs]
        # Slots come before pdfs: the sum over slots then adds whole vectors, which is faster.
        linear, constant = linear.transpose(0, 1), constant.T
        both = torch.cat([x, x.square()], dim=1)
        scores = torch.addmm(constant.flatten(), both, linear.flatten(0, 1).T)
        scores = scores.view(len(x), *constant.shape)
        top = scores.amax(1, keepdim=True)
        scores = (scores - top).clamp_(min=NEGLIGIBLE).exp_()
        return scores.sum(1).log_().add_(top[:, 0])


@dataclass(frozen=True)
class GMM:
    """The mixtures of all pdfs; immutable."""

    log_weight: torch.Tensor  # (P, M)
    mean: torch.Tensor  # (P, M, D)
    variance: torch.Tensor  # (P, M, D)

    @property
    def num_gaussians(self) -> int:
        """How many slots are in use."""
        return int((self.log_weight > NEVER / 2).sum())

    def densities(self, weights: torch.Tensor | None = None) -> Densities:
        """Return eq. 2's factors; `weights` (D,) lets some features count for less than others."""
        w = torch.ones(self.mean.shape[2]) if weights is None else weights
        mean, variance = self.mean, self.variance
        exponent = mean.square() / variance + variance.log() + math.log(2 * math.pi)
        constant = self.log_weight - 0.5 * (w * exponent).sum(-1)
        return Densities(torch.cat([w * mean / variance, -0.5 * w / variance], dim=-1), constant)

    def accumulate(self, x: torch.Tensor, pdf: torch.Tensor) -> Moments:
        """Collect moments of frames whose pdf is known."""
        dims = self.mean.shape[2]
        moments = self.no_moments()
        for p, both, posterior, total in self._by_pdf(x, pdf):
            sums = (posterior.T @ both).double()
            moments.count[p] += posterior.sum(0).double()
            moments.first[p] += sums[:, :dims]
            moments.second[p] += sums[:, dims:]
            moments.log_likelihood += float(total.double().sum())
        moments.frames = len(x)
        return moments

    def posteriors(
        self, x: torch.Tensor, pdf: torch.Tensor
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Yield each pdf that has frames, these frames, and the posteriors (n, M) of its slots."""
        dims = self.mean.shape[2]
        for p, both, posterior, _ in self._by_pdf(x, pdf):
            yield p, both[:, :dims], posterior

    def _by_pdf(
        self, x: torch.Tensor, pdf: torch.Tensor
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield a pdf, its frames (x, x^2), the posteriors of its slots, log-likelihoods."""
        linear, constant = self._own.linear, self._own.constant
        order = torch.argsort(pdf, stable=True)
        x, pdf = x[order], pdf[order]
        both = torch.cat([x, x.square()], dim=1)
        used, counts = torch.unique_consecutive(pdf, return_counts=True)
        start = 0
        for p, n in zip(used.tolist(), counts.tolist(), strict=True):
            mine = both[start : start + n]
            scores = torch.addmm(constant[p], mine, linear[p].T)
            total = torch.logsumexp(scores, dim=1, keepdim=True)
            yield p, mine, (scores - total).clamp_(min=NEGLIGIBLE).exp_(), total
            start += n

    @cached_property
    def _own(self) -> Densities:
        return self.densities()

    def no_moments(self) -> Moments:
        """Return moments of no frames."""
        shape = self.mean.shape
        return Moments(
            torch.zeros(shape[:2], dtype=torch.float64),
            torch.zeros(shape, dtype=torch.float64),
            torch.zeros(shape, dtype=torch.float64),
        )

    def save(self, path: Path) -> None:
        """Write as npz."""
        np.savez(
            path,
            log_weight=self.log_weight.numpy(),
            mean=self.mean.numpy(),
            variance=self.variance.numpy(),
        )

    @classmethod
    def load(cls, path: Path) -> GMM:
        """Read what `save` wrote."""
        kinds = {"log_weight": 2, "mean": 3, "variance": 3}
        arrays = read_arrays(path, {k: ("float", ndim) for k, ndim in kinds.items()})
        weight, mean, variance = (torch.from_numpy(arrays[k]) for k in kinds)
        if mean.shape[:2] != weight.shape or mean.shape != variance.shape:
            raise UnreadableError.of(path, "its arrays have shapes that do not fit together")
        return cls(weight, mean, variance)


def single_gaussians(count: NDArray[np.float64], first: NDArray[np.float64],
                     second: NDArray[np.float64]) -> GMM:  # fmt: skip
    """Return one Gaussian per pdf; a pdf with too few frames gets the moments of all frames."""
    whole = np.maximum(count.sum(), 1.0)
    mean_all = first.sum(0) / whole
    variance_all = second.sum(0) / whole - mean_all**2
    n = np.maximum(count, 1.0)[:, None]
    mean = np.where(count[:, None] >= MIN_OCCUPANCY, first / n, mean_all)
    variance = np.where(
        count[:, None] >= MIN_OCCUPANCY, second / n - (first / n) ** 2, variance_all
    )
    variance = np.maximum(variance, VARIANCE_FLOOR)
    return GMM(
        torch.zeros(len(count), 1),
        torch.from_numpy(mean.astype(np.float32))[:, None],
        torch.from_numpy(variance.astype(np.float32))[:, None],
    )


def update(gmm: GMM, moments: Moments) -> GMM:
    """Re-estimate by maximum likelihood (the M step).

    A Gaussian with too few frames is dropped; a pdf that would lose all of them keeps its mixture.
    """
    count = moments.count[..., None]
    enough = moments.count >= MIN_OCCUPANCY
    mean = moments.first / count.clamp(min=1.0)
    variance = (moments.second / count.clamp(min=1.0) - mean.square()).clamp(min=VARIANCE_FLOOR)
    total = moments.count.sum(1, keepdim=True)
    seen = enough.any(1, keepdim=True)  # else the pdf keeps what it had
    weight = (moments.count / total.clamp(min=1.0)).log().float()
    weight = torch.where(enough, weight, torch.full_like(weight, NEVER))
    weight = weight - torch.logsumexp(weight, dim=1, keepdim=True)
    keep = enough[..., None]
    return GMM(
        torch.where(seen, weight.clamp(min=NEVER), gmm.log_weight),
        torch.where(keep, mean.float(), gmm.mean),
        torch.where(keep, variance.float(), gmm.variance),
    )


def split(gmm: GMM, occupancy: torch.Tensor, num_gaussians: int) -> GMM:
    """Split the heaviest Gaussians of each pdf until there are about `num_gaussians` in all.

    A pdf's share grows with its frames to the power of 1/4, and a Gaussian is split only while both
    halves have enough frames. The halves lie 0.4 standard deviations apart.
    """
    share = occupancy.clamp(min=1.0) ** SPLIT_POWER
    target = (share * (num_gaussians / share.sum())).round().clamp(min=1)
    target = torch.minimum(target, (occupancy / (2 * MIN_OCCUPANCY)).floor().clamp(min=1))
    used = gmm.log_weight > NEVER / 2
    slots = max(int(target.max()), int(used.sum(1).max()))
    num_pdfs, _, dims = gmm.mean.shape
    weight = torch.full((num_pdfs, slots), NEVER)
    mean = torch.zeros(num_pdfs, slots, dims)
    variance = torch.ones(num_pdfs, slots, dims)
    signs = torch.ones(dims)
    signs[1::2] = -1.0  # moves the halves apart in all features, not in one
    for p in range(num_pdfs):
        rows = used[p].nonzero().flatten()
        k = len(rows)
        weight[p, :k], mean[p, :k] = gmm.log_weight[p, rows], gmm.mean[p, rows]
        variance[p, :k] = gmm.variance[p, rows]
        while k < int(target[p]):
            heaviest = int(weight[p, :k].argmax())
            step = 0.5 * SPLIT_DISTANCE * variance[p, heaviest].sqrt() * signs
            weight[p, heaviest] -= math.log(2)
            weight[p, k], variance[p, k] = weight[p, heaviest], variance[p, heaviest]
            mean[p, k] = mean[p, heaviest] + step
            mean[p, heaviest] -= step
            k += 1
    return GMM(weight, mean, variance)
