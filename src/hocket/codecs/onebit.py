"""1-bit SGD: the sign of every value, two means per column, and what was lost goes into the next.

For a column with values v_i = w x_i + r_i (w: frames, r: what was not sent before)

    b_i = [v_i >= 0]                                                                    (1)
    high = mean of the v_i with b_i = 1,   low = mean of the others (0 if there are none)   (2)
    q_i = high if b_i else low                                                          (3)
    r_i <- v_i - q_i                                                                    (4)

Reference: F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-bit stochastic gradient descent and its
application to data-parallel distributed training of speech DNNs", Interspeech 2014.

| symbol    | here            |                                                    |
|-----------|-----------------|----------------------------------------------------|
| b         | bodies          | one bit a value, the first in the lowest bit       |
| low, high | headers         | two float32 per column                             |
| r         | `residual`      | of the sender (r1), of a stripe's owner (r2)       |

A column of 1,024 values is 128 bytes of bits and 8 of means: 1/30.1 of float32.

Sums are taken by halving (value i + value i + n/2, and again), in float32. So their order is
the same in plain torch, on a GPU, and in the compiled loops (`hocket.codecs.kernels`), and all give
the same bits.

Differences from the paper: a column without a value on one side sends 0 for it. AdaGrad after the
exchange is an optimizer here (`optimizer.name = "adagrad"`), double buffering a switch of the
strategy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Final

import torch

from hocket.codecs import kernels
from hocket.codecs.columns import ColumnCoder, ColumnRun
from hocket.core.codec import Coder, Lossy
from hocket.core.flat import Layout


@dataclass(frozen=True)
class OneBit(Lossy):
    """One bit a value, two means a column."""

    name: ClassVar[str] = "onebit"
    summary: ClassVar[str] = "one bit a value and two means a column (Seide et al. 2014)"

    def fitted(self, layout: Layout) -> Coder:
        """Return it for the columns of a layout."""
        return OneBitCoder(layout, float_below=self.float_below, feeds_back=self.error_feedback)


class OneBitCoder(ColumnCoder):
    """Signs and means of columns."""

    encode_copies: ClassVar[float] = 2.6  # compiled; about 60 without
    decode_copies: ClassVar[float] = 0.8

    def __init__(
        self, layout: Layout, *, float_below: int, feeds_back: bool, compiled: bool = True
    ) -> None:
        super().__init__(layout, float_below=float_below, feeds_back=feeds_back)
        self._kernels = kernels.load() if compiled else None
        if self._kernels is not None:
            self.chunk = layout.size  # the loops keep to the cache by themselves

    def header_bytes(self, run: ColumnRun) -> int:
        """Two means."""
        return 8

    def body_bytes(self, run: ColumnRun) -> int:
        """One bit a value, whole bytes a column."""
        return -(-run.width // 8)

    def encode_block_(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        weight: float,
        headers: torch.Tensor,
        bodies: torch.Tensor,
        run: ColumnRun,
    ) -> bool:
        """Take signs and means (eqs. 1 to 4)."""
        if self._kernels is not None and x.device.type == "cpu":
            return self._kernels.encode_bits(x, residual, weight, headers, bodies)
        v = x * weight
        if residual is not None:
            v = v.add_(residual)
        positive = v >= 0  # eq. 1
        counts = positive.sum(dim=1).to(torch.float32)
        high = _sums(torch.where(positive, v, 0.0)) / counts.clamp(min=1)  # eq. 2
        low = _sums(torch.where(positive, 0.0, v)) / (run.width - counts).clamp(min=1)
        torch.stack([low, high], dim=1, out=headers)
        if not bool(torch.isfinite(headers).all()):
            return False
        if residual is not None:
            q = torch.where(positive, high[:, None], low[:, None])  # eq. 3
            torch.sub(v, q, out=residual)  # eq. 4
        bodies.copy_(_packed(positive))
        return True

    def decode_block_(
        self,
        headers: torch.Tensor,
        bodies: torch.Tensor,
        out: torch.Tensor,
        scale: float,
        run: ColumnRun,
        *,
        add: bool,
    ) -> None:
        """Put the means where the bits say (eq. 3)."""
        if self._kernels is not None and out.device.type == "cpu":
            self._kernels.decode_bits(headers, bodies, out, scale, add)
            return
        low, high = (headers * scale).unbind(dim=1)
        values = torch.where(_unpacked(bodies, run.width), high[:, None], low[:, None])
        if add:
            out.add_(values)
        else:
            out.copy_(values)


def _sums(values: torch.Tensor) -> torch.Tensor:
    """Add up every row by halving; `values` is used up. Any number of threads, the same bits."""
    n = values.shape[1]
    while n > 1:
        half = (n + 1) // 2
        values[:, : n - half] += values[:, half:n]
        n = half
    return values[:, 0]


# Eight bytes of 0 or 1 as one number, times this: byte i has gone to bit 56 + i, none on another.
GATHER: Final = sum(1 << (56 - 7 * i) for i in range(8))


def _packed(bits: torch.Tensor) -> torch.Tensor:
    """Put eight bits of a row into a byte; the last byte is filled with zeros."""
    whole = torch.nn.functional.pad(bits, (0, -bits.shape[1] % 8)).view(torch.int64)
    return ((whole * GATHER) >> 56).to(torch.uint8)


@cache
def _spread(device: torch.device) -> torch.Tensor:
    """Return eight bytes of 0 or 1 for every byte, as one number."""
    bits = (torch.arange(256)[:, None] >> torch.arange(8)) & 1
    return bits.to(torch.uint8).view(torch.int64).view(-1).to(device)


def _unpacked(bodies: torch.Tensor, width: int) -> torch.Tensor:
    """Return the bits of every row."""
    numbers = _spread(bodies.device)[bodies.to(torch.int32)]
    return numbers.view(torch.bool)[:, :width]
