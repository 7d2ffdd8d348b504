"""Who mixes with whom, and with which weights: pure descriptions, no communication.

A *mixing matrix* T says what a round of averaging does to the learners' models, W <- W T, with one
column per learner. All matrices here are doubly stochastic: rows sum to 1, so a model becomes a
weighted mean of models; columns sum to 1, so the mean over all learners stays as it is.

How fast disagreement goes away is the *spectral gap*, 1 minus the second largest factor by which T
can stretch what is left when the mean is taken out. The fixed ring's gap closes with the square of
the number of learners, that of a ring drawn afresh every round does not; that is why the latter was
invented (Cui et al., ICASSP 2020).

    learners              4      8      16     32     64      128
    fixed ring, lambda_2  0.333  0.805  0.949  0.987  0.9968  0.9992
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from hocket.core.numerics import stable_seed
from hocket.errors import require

Matrix: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Rounds: TypeAlias = Literal["ring", "random_ring", "exponential", "complete"]
ROUNDS: tuple[Rounds, ...] = get_args(Rounds)


# ---------------------------------------------------------------------------- rounds of all


def ring(size: int) -> Matrix:
    """1/3 for oneself and each neighbour; with 1 or 2 learners, equal parts of what there is."""
    mixing = np.zeros((size, size))
    for i in range(size):
        hood = {i, (i - 1) % size, (i + 1) % size}
        for j in hood:
            mixing[j, i] = 1.0 / len(hood)
    return mixing


def random_ring(size: int, round_number: int, seed: int = 0) -> Matrix:
    """The ring along an order drawn afresh every round, the same for all who know the seed."""
    order = list(range(size))
    random.Random(stable_seed(seed, "ring", round_number)).shuffle(order)
    place = np.argsort(order)  # learner i stands at place[i]
    mixing: Matrix = ring(size)[np.ix_(place, place)]
    return mixing


def exponential(size: int, round_number: int) -> Matrix:
    """Half from the learner 1, 2, 4, ... places before, in turn: log2(P) rounds reach all."""
    hops = max(1, (size - 1).bit_length())
    shift = 2 ** (round_number % hops) % size
    mixing = np.zeros((size, size))
    for i in range(size):
        mixing[i, i] += 0.5
        mixing[(i - shift) % size, i] += 0.5
    return mixing


def complete(size: int) -> Matrix:
    """Everybody's mean: an allreduce."""
    return np.full((size, size), 1.0 / size)


def of_round(kind: Rounds, size: int, round_number: int, seed: int = 0) -> Matrix:
    """Return the mixing matrix of a round, by name."""
    require(kind in ROUNDS, f"a round is one of {', '.join(ROUNDS)}, not {kind!r}")
    if kind == "random_ring":
        return random_ring(size, round_number, seed)
    if kind == "exponential":
        return exponential(size, round_number)
    return ring(size) if kind == "ring" else complete(size)


# ---------------------------------------------------------------------------- pairs


def is_active(rank: int, alive: Sequence[int]) -> bool:
    """True if a learner begins exchanges: every other one of the survivors."""
    return alive.index(rank) % 2 == 0


def ring_partners(rank: int, alive: Sequence[int]) -> list[int]:
    """Return the passive neighbours of an active learner on the ring of the survivors.

    On a ring of odd length the first and the last are both active. They do not exchange with one
    another, so it is open there: a line, which mixes more slowly and still connects everybody.
    """
    place = alive.index(rank)
    sides = {(place - 1) % len(alive), (place + 1) % len(alive)}
    return [alive[side] for side in sorted(sides) if side % 2]


def all_partners(rank: int, alive: Sequence[int]) -> list[int]:
    """Return every passive learner."""
    return list(alive[1::2])


# ---------------------------------------------------------------------------- how well they mix


def contraction(matrices: Iterable[Matrix]) -> float:
    """Return the factor by which one round shrinks the variance between learners, on average.

    The largest eigenvalue of the mean of T T^t, with the mean over learners taken out. One matrix:
    the square of its second singular value.
    """
    given = list(matrices)
    size = len(given[0])
    centre = np.eye(size) - complete(size)
    mean = sum((centre @ t @ t.T @ centre for t in given), np.zeros((size, size))) / len(given)
    return float(max(np.linalg.eigvalsh(mean)))


def random_ring_contraction(size: int) -> float:
    """Return `contraction` of a ring drawn afresh every round, in closed form.

    E[T T^t] is the same for all pairs of learners, so it has one eigenvalue c beside that of the
    mean. Its trace is 1 + (P - 1) c; that of T T^t, the sum of the squares of T's entries, is P
    times 3 * (1/3)^2 for every ring. So c = (P/3 - 1) / (P - 1), which tends to 1/3. With up to 3
    learners a ring is everybody's mean: 0.
    """
    return (size / 3 - 1) / (size - 1) if size > 3 else 0.0


def spectral_gap(matrices: Iterable[Matrix]) -> float:
    """Return 1 - sqrt(contraction): for one symmetric matrix, 1 - |lambda_2|."""
    return 1.0 - float(np.sqrt(max(0.0, contraction(matrices))))
