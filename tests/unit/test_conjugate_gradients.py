"""Conjugate gradients and their preconditioners: exact facts, in float64."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from hocket.strategies.conjugate_gradients import (
    ConjugateGradients,
    Pairs,
    diagonal,
    identity,
    lbfgs,
)

DIM = 12


def problem(seed: int = 0, spread: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    """A positive definite matrix whose eigenvalues span 10^spread, and a gradient."""
    rng = np.random.default_rng(seed)
    axes, _ = np.linalg.qr(rng.normal(size=(DIM, DIM)))
    matrix = (axes * np.logspace(0, spread, DIM)) @ axes.T
    return torch.from_numpy(matrix), torch.from_numpy(rng.normal(size=DIM))


def run(cg: ConjugateGradients, matrix: torch.Tensor, most: int) -> ConjugateGradients:
    while not cg.ended and cg.steps < most:
        cg.step_(matrix @ cg.wanted)
    return cg


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_it_reaches_the_minimum_in_as_many_steps_as_dimensions(damping: float, start: bool) -> None:
    matrix, g = problem(spread=1.0)  # directions stay conjugate up to rounding times its condition
    cg = ConjugateGradients(g, damping, identity)
    if start:
        begin = torch.ones(DIM).double()
        cg.start_from(begin, matrix @ begin)
    for _ in range(DIM):  # Martens' rule would end it a step before
        cg.step_(matrix @ cg.wanted)
    last = cg.iterates()[-1]
    damped = matrix + damping * torch.eye(DIM).double().double()
    best = torch.linalg.solve(damped, -g)
    torch.testing.assert_close(last.direction, best, rtol=1e-7, atol=1e-9)
    assert last.value == pytest.approx(float(g @ best + 0.5 * best @ damped @ best), rel=1e-10)


def test_q_is_the_models_value_and_falls_with_every_step() -> None:
    matrix, g = problem()
    cg = run(ConjugateGradients(g, 0.1, identity), matrix, 9)
    for one in cg.iterates():
        d = one.direction
        q = g @ d + 0.5 * d @ matrix @ d + 0.05 * d @ d
        assert one.value == pytest.approx(float(q))
    assert sorted(cg._values, reverse=True) == cg._values


def test_iterates_are_kept_at_powers_of_1_3() -> None:
    """1.3^k, rounded up: 1, 2, 3, 4, 5, 7, 9, 11, 14, 18, 24, 31; and the last."""
    matrix, g = torch.eye(400).double() * torch.linspace(1, 9000, 400), torch.ones(400).double()
    cg = ConjugateGradients(g, 0.0, identity)
    for _ in range(29):
        cg.step_(matrix @ cg.wanted)
    assert [one.step for one in cg.iterates()] == [1, 2, 3, 4, 5, 7, 9, 11, 14, 18, 24, 29]


def test_martens_rule_looks_at_q_over_the_last_k_steps() -> None:
    cg = ConjugateGradients(torch.ones(3).double(), 1.0, identity)
    cg._values = [-1.0] * 10
    assert not cg._stalls()  # i = 10 is not above k = 10
    cg._values = [-1.0] * 11
    assert cg._stalls()
    cg._values = [-1.0, *[-1.006] * 10]  # 0.6 % better than 10 steps before: above 10 * 5e-4
    assert not cg._stalls()
    cg._values = [-1.0, *[-1.004] * 10]
    assert cg._stalls()
    cg._values = [0.5] * 20
    assert not cg._stalls()  # only below zero
    cg._values = [-1.0] * 185 + [-1.0085] * 15  # k = 20: asked for 1 %
    assert cg._stalls()


def test_it_ends_where_there_is_nothing_to_gain() -> None:
    assert ConjugateGradients(torch.zeros(3), 1.0, identity).ended
    assert not ConjugateGradients(torch.zeros(3), 1.0, identity).iterates()
    hollow = ConjugateGradients(torch.ones(2), 0.0, identity)
    hollow.step_(-hollow.wanted)  # negative curvature
    assert hollow.ended
    assert not hollow.iterates()
    broken = ConjugateGradients(torch.ones(2), 0.0, identity)
    broken.step_(torch.full((2,), float("nan")))
    assert broken.ended


def test_the_exact_diagonal_solves_a_diagonal_problem_at_once() -> None:
    """With power 1 it would in one step; Martens' 0.75 leaves a spread of 10^(spread/4)."""
    scale = torch.logspace(0, 4, DIM).double()
    g = torch.ones(DIM).double()
    plain = run(ConjugateGradients(g, 0.0, identity), torch.diag(scale), 6).iterates()[-1]
    martens = run(ConjugateGradients(g, 0.0, diagonal(scale, 0.0)), torch.diag(scale), 6)
    best = -0.5 * float((g * g / scale).sum())
    assert best <= martens.iterates()[-1].value < 0.999 * best
    assert plain.value > 0.9 * best


def dense_bfgs(pairs: list[tuple[torch.Tensor, torch.Tensor]], scale: float) -> torch.Tensor:
    """The inverse Hessian's update, as a matrix: H <- (I - r s y') H (I - r y s') + r s s'."""
    h = scale * torch.eye(DIM).double()
    for s, y in pairs:
        r = 1 / (s @ y)
        left = torch.eye(DIM).double() - r * torch.outer(s, y)
        h = left @ h @ left.T + r * torch.outer(s, s)
    return h


@pytest.mark.parametrize("damping", [0.0, 0.7])
def test_lbfgs_is_the_dense_update_for_the_damping_of_now(damping: float) -> None:
    matrix, g = problem(1)
    pairs = run(ConjugateGradients(g, 0.2, identity, most_pairs=5), matrix, 5).pairs
    assert len(pairs.steps) == 5
    ys = [(matrix + damping * torch.eye(DIM).double()) @ s for s in pairs.steps]
    scale = float((pairs.steps[-1] @ ys[-1]) / (ys[-1] @ ys[-1]))
    h = dense_bfgs(list(zip(pairs.steps, ys, strict=True)), scale)
    apply = lbfgs(pairs.steps, pairs.bends, damping)
    v = torch.from_numpy(np.random.default_rng(7).normal(size=DIM))
    torch.testing.assert_close(apply(v), h @ v)
    torch.testing.assert_close(apply(ys[-1]), pairs.steps[-1])  # the secant equation


def test_lbfgs_of_a_whole_run_solves_the_same_problem_in_a_step() -> None:
    matrix, g = problem(2)
    pairs = run(ConjugateGradients(g, 0.1, identity, most_pairs=DIM), matrix, DIM).pairs
    again = ConjugateGradients(g, 0.1, lbfgs(pairs.steps, pairs.bends, 0.1), flexible=True)
    best = torch.linalg.solve(matrix + 0.1 * torch.eye(DIM).double(), -g)
    (first,) = run(again, matrix, 1).iterates()
    torch.testing.assert_close(first.direction, best, rtol=1e-6, atol=1e-8)


def test_the_flexible_form_is_the_usual_one_if_the_matrix_stays() -> None:
    matrix, g = problem(3)
    m = diagonal(matrix.diagonal(), 0.1)
    ends = [
        run(ConjugateGradients(g, 0.1, m, flexible=flexible), matrix, 7).iterates()[-1].direction
        for flexible in (False, True)
    ]
    torch.testing.assert_close(*ends, rtol=1e-7, atol=1e-9)


def test_pairs_without_curvature_are_left_out() -> None:
    s = torch.ones(DIM)
    assert lbfgs([s], [torch.zeros(DIM)], 0.0) is identity
    assert lbfgs([], [], 0.5) is identity
    assert torch.equal(lbfgs([s, s], [torch.zeros(DIM), s], 0.0)(s), lbfgs([s], [s], 0.0)(s))


def test_pairs_are_spread_evenly_over_a_run() -> None:
    pairs = Pairs(4)
    for n in range(1, 41):
        pairs.see(torch.tensor([float(n)]), torch.tensor([0.0]))
    kept = [int(s.item()) for s in pairs.steps]
    assert 2 <= len(kept) <= 4
    assert len({b - a for a, b in pairwise(kept)}) <= 1
    assert kept[-1] > 30
