"""The simple form of natural gradient: computed from each minibatch alone, without a state.

Each row is preconditioned with the scatter of the *other* rows of its minibatch,

    lambda = alpha / (N D) |X|^2                                                           (1)
    p_n = (lambda I + 1/(N-1) sum_{m != n} x_m x_m')^-1 x_n                                (2)

Leaving the row itself out is a rank-one change of one common inverse: with q_n from all rows and
g_n = x_n q_n,

    p_n = q_n (1 + g_n / (N - 1 - g_n))                                                    (3)

It costs O(min(N, D)^3) and was superseded by the online form (`online.py`).

Reference: D. Povey, X. Zhang, S. Khudanpur, arXiv:1410.7455; constants from Kaldi's nnet2.
"""

from __future__ import annotations

import torch

from hocket.optim.natural_gradient.online import as_rows


@torch.no_grad()
def simple_natural_gradient(
    x: torch.Tensor, alpha: float = 4.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return P and the scalar |X| / |P|. A single row is not changed: there are no others."""
    x_ND = as_rows(x)
    num_rows, dim = x_ND.shape
    if num_rows <= 1:
        return x, x_ND.new_ones(())
    square = torch.dot(x_ND.reshape(-1), x_ND.reshape(-1)).clamp(min=1e-20)  # as Kaldi floors it
    smoothing = alpha / (num_rows * dim) * square  # eq. 1
    others = num_rows - 1
    by_columns = num_rows >= dim  # the smaller of the two matrices is factorised
    scatter = (x_ND.T @ x_ND if by_columns else x_ND @ x_ND.T) / others
    scatter.diagonal().add_(smoothing)
    factor = torch.linalg.cholesky_ex(scatter)[
        0
    ]  # infinity and NaN pass through; the step then skips them
    q_ND = torch.cholesky_solve(x_ND.T if by_columns else x_ND, factor)
    q_ND = q_ND.T if by_columns else q_ND
    g_N = (x_ND * q_ND).sum(1, keepdim=True)
    p_ND = q_ND * (1 + g_N / (others - g_N))  # eq. 3
    after = torch.dot(p_ND.reshape(-1), p_ND.reshape(-1))
    scale = torch.where(after == 0, torch.ones_like(after), torch.sqrt(square / after))
    return p_ND.reshape(x.shape), scale
