"""What a library offers that carries the vectors of collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hocket.core.flat import Flat


class VectorCarrier(Protocol):
    """All learners, as a library knows them."""

    def weighted_sum(self, x: Flat, shares: Sequence[float]) -> Flat:
        """Return the sum of share * vector over all; a share of 0 adds 0, also if x has NaNs."""
        ...

    def broadcast(self, x: Flat, root: int) -> Flat:
        """Return the root's vector."""
        ...
