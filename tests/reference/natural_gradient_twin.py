"""Natural gradient with the whole Fisher matrix, in float64, from the equations of the paper.

Nothing is clever here: F is D x D, inverses are inverses, and the power step is a product. Shared
with the code under test: the constants.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, np.dtype[np.float64]]


class FullFisher:
    """F = O' diag(d) O + rho I, formed in full."""

    def __init__(self, dim: int, rank: int, period: int, history: float, alpha: float) -> None:
        self.dim, self.rank = dim, min(rank, dim - 1)
        self.period, self.history, self.alpha = period, history, alpha
        self.o = np.zeros((self.rank, dim))
        for r in range(self.rank):
            self.o[r, r :: self.rank] = 1.0
            self.o[r, r] = 1.1
            self.o[r] /= np.linalg.norm(self.o[r])
        self.d = np.full(self.rank, 1e-10)
        self.rho = 1e-10
        self.calls = 0
        self.floored = False  # did the last update use a floor?

    @property
    def f(self) -> Matrix:
        return self.o.T @ np.diag(self.d) @ self.o + self.rho * np.eye(self.dim)

    def transform(self, x: Matrix) -> Matrix:
        """beta X G^-1 with G = F + alpha/D tr(F) I."""
        trace = float(np.trace(self.f))
        g = self.f + self.alpha / self.dim * trace * np.eye(self.dim)
        beta = self.rho * (1 + self.alpha) + self.alpha * float(self.d.sum()) / self.dim
        result: Matrix = beta * x @ np.linalg.inv(g)
        return result

    def learn(self, x: Matrix) -> None:
        eta = min(0.9, 1 - math.exp(-len(x) / self.history))
        t = eta / len(x) * x.T @ x + (1 - eta) * self.f
        ot = self.o @ t
        c, u = np.linalg.eigh(ot @ ot.T)
        c, u = c[::-1], u[:, ::-1]
        lowest = (self.rho * (1 - eta)) ** 2
        sizes = np.sqrt(np.maximum(c, lowest))
        rho = (np.trace(t) - sizes.sum()) / (self.dim - self.rank)
        floor = max(1e-10, 5e-4 * sizes.max())
        self.floored = bool((c < lowest).any() or rho < floor or (sizes - rho < floor).any())
        self.o = np.diag(1 / sizes) @ u.T @ ot
        self.d = np.maximum(sizes - rho, floor)
        self.rho = max(float(rho), floor)
        q, _ = np.linalg.qr(self.o.T)  # rounding only: the rows are orthonormal by construction
        signs = np.sign((q.T * self.o).sum(1))
        self.o = signs[:, None] * q.T

    def precondition(self, x: Matrix) -> tuple[Matrix, float]:
        if self.calls == 0:
            for _ in range(3 if len(x) > self.rank else 1):
                self.learn(x)
        x_hat = self.transform(x)
        scale = float(np.linalg.norm(x) / np.linalg.norm(x_hat))
        if self.calls <= 10 or (self.calls - 10) % self.period == 0:
            self.learn(x)
        self.calls += 1
        return x_hat, scale


def simple(x: Matrix, alpha: float) -> Matrix:
    """Each row with the inverse of the others' scatter, one inverse per row."""
    n, d = x.shape
    smoothing = alpha / (n * d) * float((x**2).sum())
    rows = []
    for i in range(n):
        others = np.delete(x, i, axis=0)
        rows.append(np.linalg.solve(smoothing * np.eye(d) + others.T @ others / (n - 1), x[i]))
    p = np.stack(rows)
    result: Matrix = p * np.linalg.norm(x) / np.linalg.norm(p)
    return result
