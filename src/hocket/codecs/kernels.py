"""Compiled loops for the codecs, where numba is installed (`pip install hocket[fast]`).

Why numba: the work is memory-bound, and plain torch makes a dozen passes over the vector where one
is enough. numba is kept well, has wheels for every Python that Hocket runs on, needs no
compiler on the machine of the user (as a C++ extension or `torch.compile` would), and keeps what it
compiled on disk. Without it the torch operations do the same, bit for bit, only slower.

The loops walk over one column at a time, which stays in the first-level cache: the vector, the
residual and the code go through memory once. No reordering of sums is allowed (`fastmath` is off).
"""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import numpy as np
import torch


class Kernels(Protocol):
    """What is compiled."""

    def encode_bits(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        weight: float,
        headers: torch.Tensor,
        bodies: torch.Tensor,
    ) -> bool:
        """Take signs and means of every row; False if a mean is not finite."""
        ...

    def decode_bits(
        self,
        headers: torch.Tensor,
        bodies: torch.Tensor,
        out: torch.Tensor,
        scale: float,
        add: bool,
    ) -> None:
        """Put means where bits say, or add them."""
        ...


@cache
def load() -> Kernels | None:
    """Return the compiled loops; None if numba is not installed."""
    try:
        from hocket.codecs import compiled
    except ImportError:
        return None
    loops: Any = compiled
    found = _Compiled(loops)
    found.warm_up()
    return found


class _Compiled:
    """Hands tensors to the loops as numpy arrays, without a copy."""

    def __init__(self, loops: Any) -> None:
        self._loops = loops

    def warm_up(self) -> None:
        """Compile now, or load what was compiled before: not inside the first step."""
        x, headers = torch.zeros(1, 8), torch.zeros(1, 2)
        bodies = torch.zeros(1, 1, dtype=torch.uint8)
        self.encode_bits(x, x.clone(), 1.0, headers, bodies)
        self.decode_bits(headers, bodies, x, 1.0, False)

    def encode_bits(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        weight: float,
        headers: torch.Tensor,
        bodies: torch.Tensor,
    ) -> bool:
        """Take signs and means of every row; False if a mean is not finite."""
        rest = x if residual is None else residual  # not read and not written without feedback
        arrays = (t.detach().numpy() for t in (x, rest, headers, bodies))
        keep = residual is not None
        return bool(self._loops.encode_bits(*arrays, np.float32(weight), keep))

    def decode_bits(
        self,
        headers: torch.Tensor,
        bodies: torch.Tensor,
        out: torch.Tensor,
        scale: float,
        add: bool,
    ) -> None:
        """Put means where bits say, or add them."""
        arrays = (t.detach().numpy() for t in (headers, bodies, out))
        self._loops.decode_bits(*arrays, np.float32(scale), add)
