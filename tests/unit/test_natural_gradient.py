"""The preconditioner against Kaldi's own output, a twin with the full Fisher matrix, and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from reference.natural_gradient_twin import FullFisher, simple

from hocket.errors import ConfigError
from hocket.optim.natural_gradient.online import (
    ORTHONORMAL,
    Fisher,
    OnlineNaturalGradient,
    orthogonalised,
    smoothed,
)
from hocket.optim.natural_gradient.simple import simple_natural_gradient

GOLDEN = Path(__file__).parents[1] / "golden"


def relative(a: Any, b: Any) -> float:
    return float(np.linalg.norm(np.asarray(a) - np.asarray(b)) / np.linalg.norm(np.asarray(b)))


def data(rows: int, dim: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows with a decaying spectrum, as activations have."""
    rng = np.random.default_rng([seed, rows, dim])
    mixing = np.random.default_rng([dim]).normal(size=(dim, dim))
    x = rng.normal(size=(rows, dim)) * 0.7 ** np.arange(dim) @ mixing + 0.3
    return torch.from_numpy(x).to(dtype)


def fisher_of(side: OnlineNaturalGradient) -> Fisher:
    assert side.state is not None
    return side.state


def directions(side: OnlineNaturalGradient) -> torch.Tensor:
    """O of F = O' diag(d) O + rho I."""
    fisher = fisher_of(side)
    _, e = smoothed(fisher.d.numpy(), fisher.rho, side.alpha, fisher.dim)
    return fisher.w.double() / torch.from_numpy(e).sqrt()[:, None]


def orthonormality(side: OnlineNaturalGradient) -> float:
    o = directions(side)
    return float((o @ o.T - torch.eye(len(o), dtype=o.dtype)).abs().max())


# ------------------------------------------------------------------ Kaldi, and the twin


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_kaldi(name: str, dtype: torch.dtype) -> None:
    """The bar is 1e-4; single precision in Kaldi itself is worth about 1e-5."""
    with np.load(GOLDEN / f"natural_gradient_{name}.npz") as file:
        g = dict(file)
    side = OnlineNaturalGradient(
        int(g["rank"]), int(g["update_period"]), float(g["num_samples_history"]), float(g["alpha"])
    )
    for x, y, s in zip(g["x"], g["y"], g["scale"], strict=True):
        x_hat, scale = side.precondition(torch.from_numpy(x).to(dtype))
        assert relative(x_hat, y) < 1e-4
        assert float(scale) == pytest.approx(float(s), rel=1e-5)


@pytest.mark.parametrize(
    ("rows", "dim", "rank", "period"),
    [(32, 12, 4, 4), (6, 20, 8, 1), (40, 9, 20, 3), (5000, 6, 2, 1), (1, 7, 3, 2), (16, 2, 1, 1)],
)
def test_follows_the_full_fisher_matrix(rows: int, dim: int, rank: int, period: int) -> None:
    side = OnlineNaturalGradient(rank, period, 300.0, 2.5)
    twin = FullFisher(dim, rank, period, 300.0, 2.5)
    for step in range(25):
        x = data(rows, dim, step, torch.float64)
        x_hat, scale = side.precondition(x)
        expected, expected_scale = twin.precondition(x.numpy())
        assert relative(x_hat, expected) < 1e-7
        assert float(scale) == pytest.approx(expected_scale, rel=1e-7)
    o, fisher = directions(side), fisher_of(side)
    f = o.T @ torch.diag(fisher.d) @ o + fisher.rho * torch.eye(dim, dtype=torch.float64)
    assert relative(f, twin.f) < 1e-6


def test_float32_follows_float64() -> None:
    sides = [OnlineNaturalGradient(20, 4) for _ in range(2)]
    for step in range(60):
        x = data(64, 50, step)
        single, _ = sides[0].precondition(x)
        double, _ = sides[1].precondition(x.double())
        assert relative(single, double) < 2e-4


@pytest.mark.parametrize(("rows", "dim"), [(12, 5), (5, 12), (8, 8), (2, 3)])
def test_the_simple_form_leaves_each_row_out(rows: int, dim: int) -> None:
    x = data(rows, dim, 0, torch.float64)
    p, scale = simple_natural_gradient(x, 0.7)
    assert relative(scale * p, simple(x.numpy(), 0.7)) < 1e-9
    assert float((scale * p).norm()) == pytest.approx(float(x.norm()))


def test_the_simple_form_at_its_limits() -> None:
    one = torch.tensor([[1.0, 2.0]])
    assert torch.equal(simple_natural_gradient(one)[0], one)
    p, scale = simple_natural_gradient(torch.zeros(4, 3))
    assert torch.equal(p, torch.zeros(4, 3))
    assert float(scale) == 1
    bad = torch.ones(4, 3)
    bad[1, 1] = float("nan")
    assert not bool(torch.isfinite(simple_natural_gradient(bad)[0]).all()), "and nothing is raised"


# ------------------------------------------------------------------ what must hold of any data


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    dim=st.integers(2, 24),
    rank=st.integers(1, 30),
    exponent=st.floats(-6, 6),
    seed=st.integers(0, 1000),
)
def test_identities(rows: int, dim: int, rank: int, exponent: float, seed: int) -> None:
    side = OnlineNaturalGradient(rank, 1, 100.0)
    size = 10.0**exponent
    for step in range(6):
        x = data(rows, dim, seed + step, torch.float64) * size
        before = None if side.state is None else (directions(side), fisher_of(side).d.clone())
        trace = 0.0 if side.state is None else fisher_of(side).trace()
        rho = 0.0 if side.state is None else fisher_of(side).rho
        off = 0.0 if side.state is None else orthonormality(side)
        x_hat, scale = side.precondition(x)
        assert float(scale * x_hat.norm()) == pytest.approx(float(x.norm()), rel=1e-9)
        assert orthonormality(side) < ORTHONORMAL
        fisher = fisher_of(side)
        assert fisher.rho > 0
        assert bool((fisher.d > 0).all())
        if before is None:
            continue
        o, d = before
        f = o.T @ torch.diag(d) @ o + rho * torch.eye(dim, dtype=torch.float64)
        g = f + side.alpha / dim * trace * torch.eye(dim, dtype=torch.float64)
        beta, _ = smoothed(d.numpy(), rho, side.alpha, dim)
        assert relative(x_hat, beta * x @ torch.linalg.inv(g)) < 1e-6 + 10 * off  # the F of before
        eta = side.eta(rows)
        kept = eta / rows * float((x**2).sum()) + (1 - eta) * trace
        assert fisher.trace() >= kept * (1 - 1e-6)  # equal, or raised by a floor


def test_the_trace_is_kept_when_no_floor_is_active() -> None:
    side = OnlineNaturalGradient(3, 1, 100.0)
    twin = FullFisher(8, 3, 1, 100.0, 4.0)
    rng = np.random.default_rng(0)
    for step in range(12):
        x = torch.from_numpy(rng.normal(size=(50, 8)) * np.linspace(1, 2, 8))
        trace = 0.0 if side.state is None else fisher_of(side).trace()
        side.precondition(x)
        twin.precondition(x.numpy())
        if step:
            assert not twin.floored
            eta = side.eta(50)
            kept = eta / 50 * float((x**2).sum()) + (1 - eta) * trace
            assert fisher_of(side).trace() == pytest.approx(kept, rel=1e-9)


def test_converges_to_the_leading_eigenvalues() -> None:
    """On stationary data F finds the top of the spectrum and the whole trace."""
    side = OnlineNaturalGradient(10, 1, 2000.0)
    rng = np.random.default_rng(1)
    sizes = 3.0 * 0.8 ** np.arange(60)
    basis, _ = np.linalg.qr(rng.normal(size=(60, 60)))
    for _ in range(400):
        side.precondition(torch.from_numpy((rng.normal(size=(128, 60)) * sizes) @ basis))
    fisher = fisher_of(side)
    top = (fisher.d + fisher.rho).sort(descending=True).values.numpy()
    np.testing.assert_allclose(top[:6], sizes[:6] ** 2, rtol=0.06)
    assert fisher.trace() == pytest.approx(float((sizes**2).sum()), rel=0.03)


def test_large_directions_shrink_and_small_ones_grow() -> None:
    side = OnlineNaturalGradient(1, 1)
    x = torch.randn(256, 6, generator=torch.Generator().manual_seed(0))
    x[:, 2] *= 10
    for _ in range(5):
        x_hat, scale = side.precondition(x)
    ratio = (scale * x_hat).norm(dim=0) / x.norm(dim=0)
    assert ratio[2] < 1
    assert bool((ratio[[0, 1, 3, 4, 5]] > 1).all())


def test_more_smoothing_changes_less_and_updates_have_their_period() -> None:
    x = data(64, 20)
    turned = []
    for alpha in (0.5, 4.0, 100.0):
        side = OnlineNaturalGradient(5, 1, alpha=alpha)
        x_hat, scale = side.precondition(x)
        turned.append(relative(scale * x_hat, x))
    assert turned[0] > turned[1] > turned[2]
    side = OnlineNaturalGradient(5, update_period=4)
    changed = []
    for step in range(24):
        before = None if side.state is None else fisher_of(side).rho
        side.precondition(data(64, 20, step))
        changed.append(before != fisher_of(side).rho)
    assert [step for step, new in enumerate(changed) if new] == [*range(11), 14, 18, 22]


def test_a_shorter_history_forgets_faster() -> None:
    traces = []
    for history in (100.0, 10_000.0):
        side = OnlineNaturalGradient(3, 1, history)
        side.precondition(data(50, 8))
        for step in range(10):
            side.precondition(10 * data(50, 8, step))
        traces.append(fisher_of(side).trace())
    assert traces[0] > 5 * traces[1]


# ------------------------------------------------------------------ the column of ones, units


@pytest.mark.parametrize(("rows", "dim", "rank"), [(64, 20, 6), (4, 9, 20), (16, 1, 3)])
def test_the_column_of_ones_need_not_be_made(rows: int, dim: int, rank: int) -> None:
    made, spared = (OnlineNaturalGradient(rank, 2) for _ in range(2))
    for step in range(15):
        x = data(rows, dim, step, torch.float64)
        whole, s = made.precondition(torch.cat([x, torch.ones(rows, 1, dtype=x.dtype)], 1))
        x_hat, ones_hat, t = spared.precondition_with_ones(x)
        assert relative(x_hat, whole[:, :-1]) < 1e-9
        assert relative(ones_hat, whole[:, -1]) < 1e-9
        assert float(s) == pytest.approx(float(t))
        assert relative(ones_hat, np.ones(rows)) > 1e-3, "the ones are transformed too"


def test_a_unit_stands_for_a_multiple() -> None:
    a, b = OnlineNaturalGradient(4, 1), OnlineNaturalGradient(4, 1)
    for step in range(8):
        y = data(32, 10, step, torch.float64)
        y_hat, s = a.precondition(y / 32, unit=32.0)
        z_hat, t = b.precondition(y)
        assert relative(32 * y_hat, z_hat) < 1e-9
        assert float(s) == pytest.approx(float(t))


def test_rows_may_have_several_dimensions_and_less_precision() -> None:
    side, other = OnlineNaturalGradient(4), OnlineNaturalGradient(4)
    x = data(24, 10)
    assert torch.equal(
        side.precondition(x.view(4, 6, 10))[0].view(24, 10), other.precondition(x)[0]
    )
    x_hat, _ = OnlineNaturalGradient(4).precondition(x.bfloat16())
    assert x_hat.dtype == torch.float32


# ------------------------------------------------------------------ limits


def test_one_dimension_and_no_rows_are_left_alone() -> None:
    side = OnlineNaturalGradient(3)
    x = torch.randn(5, 1)
    assert torch.equal(side.precondition(x)[0], x)
    none, scale = side.precondition(torch.zeros(0, 6))
    assert none.shape == (0, 6)
    assert float(scale) == 1


@pytest.mark.parametrize("size", [1e10, 1e12, 1e15])
def test_rows_too_large_for_fourth_powers_leave_the_estimate_alone(size: float) -> None:
    """In float32 their J J' overflows; they are transformed all the same."""
    side = OnlineNaturalGradient(rank=5, update_period=1)
    rng = torch.Generator().manual_seed(0)
    for _ in range(3):
        side.precondition(torch.randn(64, 20, generator=rng))
    assert side.state is not None
    before = side.state.w.clone()
    x_hat, scale = side.precondition(size * torch.randn(64, 20, generator=rng))
    assert bool(torch.isfinite(x_hat).all())
    assert bool(torch.isfinite(scale))
    assert torch.equal(side.state.w, before)
    x_hat, _ = side.precondition(torch.randn(64, 20, generator=rng))
    assert bool(torch.isfinite(x_hat).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_zero_rows_at_the_start_and_later(dtype: torch.dtype) -> None:
    side = OnlineNaturalGradient(4, 1, 10.0)  # a history this short drives eta to its cap
    zeros = torch.zeros(400, 12, dtype=dtype)
    for step in range(40):
        x_hat, scale = side.precondition(zeros)
        assert torch.equal(x_hat, zeros)
        assert float(scale) == 1
        x_hat, _ = side.precondition(data(400, 12, step, dtype))
        assert bool(torch.isfinite(x_hat).all())
    for _ in range(60):
        side.precondition(zeros)
    assert orthonormality(side) < 1e-2
    x_hat, scale = side.precondition(data(400, 12, 1, dtype))
    assert bool(torch.isfinite(x_hat).all())
    assert bool(torch.isfinite(scale))


@pytest.mark.parametrize("kind", ["rank one", "dead columns", "huge", "tiny", "one row"])
def test_float32_stays_stable_on_hard_data(kind: str) -> None:
    side = OnlineNaturalGradient(8, 1)
    for step in range(150):
        x = data(1 if kind == "one row" else 32, 16, step)
        if kind == "rank one":
            x = x[:, :1] * torch.linspace(1, 2, 16)
        elif kind == "dead columns":
            x[:, 3:] = 0
        elif kind in ("huge", "tiny"):
            x = x * (1e6 if kind == "huge" else 1e-9)
        x_hat, scale = side.precondition(x)
        assert bool(torch.isfinite(x_hat).all())
        assert float(scale * x_hat.norm()) == pytest.approx(float(x.norm()), rel=1e-4)
        assert orthonormality(side) < 2e-2, step


def test_a_minibatch_that_is_not_finite_does_not_spoil_the_estimate() -> None:
    side = OnlineNaturalGradient(4, 1)
    side.precondition(data(32, 10))
    before = fisher_of(side).w.clone()
    bad = data(32, 10, 1)
    bad[3, 4] = float("inf")
    side.precondition(bad)
    assert torch.equal(fisher_of(side).w, before)
    assert bool(torch.isfinite(side.precondition(data(32, 10, 2))[0]).all())


def test_a_first_minibatch_that_is_not_finite_is_survived() -> None:
    side = OnlineNaturalGradient(4, 1)
    side.precondition(torch.full((8, 10), float("nan")))
    assert bool(torch.isfinite(side.precondition(data(32, 10, 2))[0]).all())


@pytest.mark.parametrize("damage", [0.05, 0.9, "copied"])
def test_lost_orthogonality_is_mended(damage: Any) -> None:
    o, _ = torch.linalg.qr(torch.randn(10, 4, generator=torch.Generator().manual_seed(0)))
    o = o.T.contiguous()
    e = torch.tensor([0.9, 0.5, 0.2, 0.1], dtype=torch.float64)
    o[1] = o[0] if damage == "copied" else (1 - damage) * o[1] + damage * o[0]
    mended = orthogonalised(e.sqrt().float()[:, None] * o, e.numpy()).double() / e.sqrt()[:, None]
    assert float((mended @ mended.T - torch.eye(4)).abs().max()) < 1e-5


def test_what_is_nearly_orthonormal_is_left_as_it_is() -> None:
    o, _ = torch.linalg.qr(torch.randn(10, 4, generator=torch.Generator().manual_seed(0)))
    w = o.T.contiguous() * 0.5
    assert orthogonalised(w, np.full(4, 0.25)) is w


def test_state_goes_on_bit_for_bit() -> None:
    side, other = OnlineNaturalGradient(4), OnlineNaturalGradient(4)
    for step in range(13):
        side.precondition(data(32, 10, step))
    other.state = Fisher.from_state_dict(fisher_of(side).state_dict())
    for step in range(13, 30):
        x = data(32, 10, step)
        assert torch.equal(side.precondition(x)[0], other.precondition(x)[0])


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"rank": 0}, "rank"),
        ({"update_period": 0}, "update_period"),
        ({"num_samples_history": 0}, "num_samples_history"),
        ({"num_samples_history": 1e30}, "num_samples_history"),
        ({"alpha": 0}, "alpha"),
    ],
)
def test_bad_settings_are_named(bad: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        OnlineNaturalGradient(**bad)
