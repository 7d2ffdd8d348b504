"""The loops that numba compiles; `hocket.codecs.kernels` says why. Imports fail without numba."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

ZERO = np.float32(0.0)


@numba.njit(cache=True)
def encode_bits(x: Any, residual: Any, headers: Any, bodies: Any, weight: Any, keep: bool) -> bool:
    """Code every row of `x`; see `hocket.codecs.onebit` for the equations."""
    rows, width = x.shape
    num_bytes, half = (width + 7) // 8, (width + 1) // 2
    v = np.full(8 * num_bytes, np.float32(-1.0), dtype=np.float32)  # what is past the end: bit 0
    above = np.empty(half, dtype=np.float32)
    below = np.empty(half, dtype=np.float32)
    for row in range(rows):
        given, rest, body = x[row], residual[row], bodies[row]
        if keep:
            for i in range(width):
                v[i] = given[i] * weight + rest[i]
        else:
            for i in range(width):
                v[i] = given[i] * weight
        count = _first_half(v, above, below, width, half)
        _halve(above, below, half)
        high = above[0] / np.float32(count if count else 1)  # eq. 2
        low = below[0] / np.float32(width - count if count < width else 1)
        headers[row, 0], headers[row, 1] = low, high
        if not (np.isfinite(low) and np.isfinite(high)):
            return False
        if keep:
            for i in range(width):
                value = v[i]
                rest[i] = value - (high if value >= ZERO else low)  # eqs. 3, 4
        for byte in range(num_bytes):
            bits = np.uint8(0)
            for i in range(8):
                bits |= np.uint8(np.uint8(v[8 * byte + i] >= ZERO) << np.uint8(i))  # eq. 1
            body[byte] = bits
    return True


@numba.njit(cache=True, inline="always")
def _first_half(v: Any, above: Any, below: Any, width: int, half: int) -> Any:
    """Part the values by their sign and halve once; return how many are not negative."""
    count = np.int32(0)
    for i in range(width - half):
        a, b = v[i], v[half + i]
        first, second = a >= ZERO, b >= ZERO
        above[i] = (a if first else ZERO) + (b if second else ZERO)
        below[i] = (ZERO if first else a) + (ZERO if second else b)
        count += np.int32(first) + np.int32(second)
    if 2 * half != width:  # the middle one has no partner
        a = v[half - 1]
        above[half - 1] = a if a >= ZERO else ZERO
        below[half - 1] = ZERO if a >= ZERO else a
        count += np.int32(a >= ZERO)
    return count


@numba.njit(cache=True, inline="always")
def _halve(above: Any, below: Any, n: int) -> None:
    """Add up by halving, as `hocket.codecs.onebit` does it with torch."""
    while n > 1:
        half = (n + 1) // 2
        for i in range(n - half):
            above[i] += above[half + i]
            below[i] += below[half + i]
        n = half


@numba.njit(cache=True)
def decode_bits(headers: Any, bodies: Any, out: Any, scale: Any, add: bool) -> None:
    """Write the mean that each bit stands for, or add it."""
    rows, width = out.shape
    full = width // 8
    for row in range(rows):
        low, high = headers[row, 0] * scale, headers[row, 1] * scale
        body, goal = bodies[row], out[row]
        if add:
            for byte in range(full):
                bits = np.uint32(body[byte])
                for i in range(8):
                    value = high if (bits >> np.uint32(i)) & np.uint32(1) else low
                    goal[8 * byte + i] += value
        else:
            for byte in range(full):
                bits = np.uint32(body[byte])
                for i in range(8):
                    value = high if (bits >> np.uint32(i)) & np.uint32(1) else low
                    goal[8 * byte + i] = value
        for i in range(8 * full, width):
            value = high if (np.uint32(body[full]) >> np.uint32(i & 7)) & np.uint32(1) else low
            goal[i] = goal[i] + value if add else value
