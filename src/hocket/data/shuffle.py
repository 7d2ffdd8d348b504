"""A pseudo-random permutation of n things that needs no memory.

`Permutation(n, key)` maps 0 .. n-1 onto itself: `permutation(indices)` returns where each index
goes, without computing the others. Storing the order of 36 million frames would cost each learner
144 MB per epoch.

Construction: write an index as (i, j) with i below a, j below b, where a * b is just above n. Each
half shifts the other by a hash of itself, several times (a Feistel network with addition):

    i <- (i + hash(j, round)) mod a        j <- (j + hash(i, round)) mod b

Each round can be undone, so the whole is a permutation of a * b things. The few results that are
not below n are permuted again until they are (cycle walking).
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
ROUNDS = 4  # each shifts both halves


class Permutation:
    """A pseudo-random permutation of 0 .. n-1, determined by a key."""

    def __init__(self, n: int, key: int) -> None:
        if n < 1:
            raise ValueError(f"a permutation needs at least 1 thing, not {n}")
        self._n = n
        self._a = math.isqrt(n - 1) + 1
        self._b = -(-n // self._a)
        rng = np.random.default_rng(key)
        self._keys = rng.integers(1, 2**63, size=2 * ROUNDS, dtype=np.uint64)

    def __call__(self, indices: Ints) -> Ints:
        """Return where each index goes."""
        result = self._once(indices)
        while (outside := np.flatnonzero(result >= self._n)).size:
            result[outside] = self._once(result[outside])
        return result

    def _once(self, indices: Ints) -> Ints:
        a, b = np.uint64(self._a), np.uint64(self._b)
        i, j = np.divmod(indices.astype(np.uint64), b)
        for number in range(0, 2 * ROUNDS, 2):
            i = (i + _mixed(j ^ self._keys[number])) % a
            j = (j + _mixed(i ^ self._keys[number + 1])) % b
        return (i * b + j).astype(np.int64)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64's finaliser, shifted right so that an addition cannot overflow."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) >> np.uint64(8)
