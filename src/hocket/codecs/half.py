"""Half precision: two bytes a value, what was rounded off goes into the next.

`bfloat16` has the range of float32 and 8 bits of mantissa. `float16` has 11 bits and a small range,
so every column has a scale, a power of two, that brings its largest value just below 2^15: nothing
overflows, and only what is 2^29 times smaller than the largest is lost for the moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from hocket.codecs.columns import ColumnCoder, ColumnRun
from hocket.core.codec import Coder, Lossy
from hocket.core.flat import Layout

TOP = 15  # the exponent of the largest value in a column: float16 ends at 2^16
LEAST = -100  # exponent below which a column counts as zero: its scale would overflow


@dataclass(frozen=True)
class Float16(Lossy):
    """Two bytes a value, one scale a column."""

    name: ClassVar[str] = "float16"
    summary: ClassVar[str] = "IEEE half precision, 2 bytes a value and a scale a column"

    def fitted(self, layout: Layout) -> Coder:
        """Return it for the columns of a layout."""
        return Float16Coder(layout, float_below=self.float_below, feeds_back=self.error_feedback)


@dataclass(frozen=True)
class BFloat16(Lossy):
    """Two bytes a value."""

    name: ClassVar[str] = "bfloat16"
    summary: ClassVar[str] = "the upper half of float32, 2 bytes a value"

    def fitted(self, layout: Layout) -> Coder:
        """Return it for the columns of a layout."""
        return BFloat16Coder(layout, float_below=self.float_below, feeds_back=self.error_feedback)


class _HalfCoder(ColumnCoder):
    encode_copies: ClassVar[float] = 8.0
    decode_copies: ClassVar[float] = 2.7
    dtype: ClassVar[torch.dtype]

    def body_bytes(self, run: ColumnRun) -> int:
        """Two bytes a value."""
        return 2 * run.width

    def encode_block_(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        weight: float,
        headers: torch.Tensor,
        bodies: torch.Tensor,
        run: ColumnRun,
    ) -> bool:
        """Round, and keep what was rounded off."""
        v = x * weight
        if residual is not None:
            v.add_(residual)
        if not bool(torch.isfinite(v.abs().sum(dim=1)).all()):
            return False
        codes = bodies.view(self.dtype)
        codes.copy_(self._scaled(v, headers))
        said = self._values(codes, headers)
        if not bool(torch.isfinite(said.abs().amax())):  # rounded up, beyond the largest float
            return False
        if residual is not None:
            torch.sub(v, said, out=residual)
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
        """Widen."""
        values = self._values(bodies.view(self.dtype), headers).mul_(scale)
        if add:
            out.add_(values)
        else:
            out.copy_(values)

    def _scaled(self, v: torch.Tensor, headers: torch.Tensor) -> torch.Tensor:
        return v

    def _values(self, codes: torch.Tensor, headers: torch.Tensor) -> torch.Tensor:
        return codes.to(torch.float32)


class Float16Coder(_HalfCoder):
    """Rounds to IEEE half precision, scaled."""

    dtype: ClassVar[torch.dtype] = torch.float16

    def header_bytes(self, run: ColumnRun) -> int:
        """One scale."""
        return 4

    def _scaled(self, v: torch.Tensor, headers: torch.Tensor) -> torch.Tensor:
        exponents = torch.frexp(v.abs().amax(dim=1, keepdim=True)).exponent.clamp(min=LEAST)
        one = torch.ones_like(headers)
        torch.ldexp(one, exponents - TOP, out=headers)
        return v * torch.ldexp(one, TOP - exponents)

    def _values(self, codes: torch.Tensor, headers: torch.Tensor) -> torch.Tensor:
        return codes.to(torch.float32).mul_(headers)


class BFloat16Coder(_HalfCoder):
    """Rounds to the upper half of float32."""

    dtype: ClassVar[torch.dtype] = torch.bfloat16

    def header_bytes(self, run: ColumnRun) -> int:
        """Nothing."""
        return 0
