"""Mixing matrices: doubly stochastic, and as quick to mix as the theory says."""

from __future__ import annotations

import numpy as np
import pytest
from reference import ring_twin

from hocket.core import topology
from hocket.errors import ConfigError

SIZES = [1, 2, 3, 4, 5, 8, 13, 16]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", topology.ROUNDS)
def test_every_matrix_is_doubly_stochastic(kind: topology.Rounds, size: int) -> None:
    for number in range(6):
        mixing = topology.of_round(kind, size, number)
        assert (mixing >= 0).all()
        np.testing.assert_allclose(mixing.sum(0), 1.0, atol=1e-12)
        np.testing.assert_allclose(mixing.sum(1), 1.0, atol=1e-12)


def test_pairs_are_doubly_stochastic_and_leave_others_alone() -> None:
    mixing = ring_twin.pair(5, 1, 3)
    np.testing.assert_array_equal(mixing @ np.arange(5.0), [0, 2, 2, 2, 4])
    np.testing.assert_array_equal(mixing.sum(0), np.ones(5))


@pytest.mark.parametrize(
    ("size", "second"),
    [(4, 0.3333), (8, 0.8047), (16, 0.9493), (32, 0.9872), (64, 0.9968), (128, 0.9992)],
)
def test_the_fixed_ring_mixes_as_its_second_eigenvalue(size: int, second: float) -> None:
    """lambda_2 = 1/3 + 2/3 cos(2 pi / L)."""
    exact = 1 / 3 + 2 / 3 * np.cos(2 * np.pi / size)
    assert second == pytest.approx(exact, abs=1e-4)
    assert 1 - topology.spectral_gap([topology.ring(size)]) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 16, 64])
def test_the_random_ring_mixes_alike_at_any_length(size: int) -> None:
    """The closed form is what sampled matrices tend to; beyond 3 learners it tends to 1/3."""
    drawn = [topology.random_ring(size, n) for n in range(6000 // size * 8)]
    closed = topology.random_ring_contraction(size)
    assert topology.contraction(drawn) == pytest.approx(closed, abs=0.03)
    centre = np.eye(size) - topology.complete(size)
    traces = [np.trace(centre @ t @ t.T @ centre) for t in drawn[:50]]
    np.testing.assert_allclose(traces, (size - 1) * closed, atol=1e-9)  # of every ring, exactly


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_a_turn_of_the_exponential_graph_is_exact_for_powers_of_two(size: int) -> None:
    product = np.eye(size)
    for number in range((size - 1).bit_length()):
        product = product @ topology.exponential(size, number)
    np.testing.assert_allclose(product, topology.complete(size), atol=1e-12)


def test_the_gap_of_all_and_of_nothing() -> None:
    assert topology.spectral_gap([topology.complete(6)]) == pytest.approx(1.0)
    assert topology.spectral_gap([np.eye(6)]) == pytest.approx(0.0)


def test_random_rounds_are_alike_for_all_who_know_the_seed() -> None:
    a, b = topology.random_ring(9, 4, seed=1), topology.random_ring(9, 4, seed=1)
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, topology.random_ring(9, 5, seed=1))
    assert not np.array_equal(a, topology.random_ring(9, 4, seed=2))


@pytest.mark.parametrize("size", range(2, 10))
def test_exchanges_on_the_ring_connect_everybody(size: int) -> None:
    """Active learners with passive neighbours only; an odd ring is open where two active meet."""
    alive = [3 * r for r in range(size)]  # some are lost
    links = {
        (a, p)
        for a in alive
        if topology.is_active(a, alive)
        for p in topology.ring_partners(a, alive)
    }
    assert all(topology.is_active(a, alive) and not topology.is_active(p, alive) for a, p in links)
    assert len(links) == (size if size % 2 == 0 and size > 2 else size - 1)
    reached = {alive[0]}
    for _ in alive:
        reached |= {x for link in links if reached & set(link) for x in link}
    assert reached == set(alive)


def test_one_learner_has_nobody_to_mix_with() -> None:
    assert topology.ring_partners(4, [4]) == []
    assert topology.all_partners(4, [4]) == []


def test_an_unknown_round_is_refused() -> None:
    with pytest.raises(ConfigError, match="not 'star'"):
        topology.of_round("star", 4, 0)  # type: ignore[arg-type]
