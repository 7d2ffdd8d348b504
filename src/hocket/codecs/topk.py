"""Top-k: the largest values of every block, the rest goes into the next.

Of a block of n values v = w x + r (whole columns, at most 65,536 values)

    k = share n, one at least
    S = the k places with the largest |v_i|; of equal ones the first                    (1)
    q_i = v_i for i in S, else 0                                                        (2)
    r_i <- v_i - q_i                                                                    (3)

Reference: A. F. Aji, K. Heafield, "Sparse communication for distributed gradient descent", EMNLP
2017; error feedback as in 1-bit SGD. Values travel as float32, places as 16 bits within the block:
6 bytes a value that is sent, 1/67 of float32 for a share of 1 %.

Differences from the paper: k is taken per block, not over the whole model, so that the size of a
message is known beforehand. The sum of a stripe is thinned out again, with a residual of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from hocket.codecs.columns import ColumnCoder, ColumnRun, share_of
from hocket.core.codec import Coder, Lossy
from hocket.core.flat import Layout
from hocket.errors import require

BLOCK = 1 << 16  # values whose places fit in 16 bits


@dataclass(frozen=True)
class TopK(Lossy):
    """The largest values alone."""

    share: float = 0.01  # of the values of a block that are sent

    name: ClassVar[str] = "topk"
    summary: ClassVar[str] = "the largest values of every block of columns, and their places"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.share <= 0.5, f"codec.share must be above 0 and at most 0.5: {self.share}")

    def fitted(self, layout: Layout) -> Coder:
        """Return it for the columns of a layout."""
        return TopKCoder(
            layout, self.share, float_below=self.float_below, feeds_back=self.error_feedback
        )


class TopKCoder(ColumnCoder):
    """Finds the largest values of blocks."""

    encode_copies: ClassVar[float] = 40.0
    decode_copies: ClassVar[float] = 1.5

    def __init__(self, layout: Layout, share: float, *, float_below: int, feeds_back: bool) -> None:
        self._share = share
        super().__init__(layout, float_below=float_below, feeds_back=feeds_back)

    def atom_values(self, width: int) -> int:
        """As many columns as fit into a block; a longer column is cut into blocks."""
        return BLOCK // width * width or BLOCK

    def _kept(self, run: ColumnRun) -> int:
        return share_of(run.width, self._share)

    def header_bytes(self, run: ColumnRun) -> int:
        """The values."""
        return 4 * self._kept(run)

    def body_bytes(self, run: ColumnRun) -> int:
        """Their places, 16 bits each."""
        return 2 * self._kept(run)

    def encode_block_(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        weight: float,
        headers: torch.Tensor,
        bodies: torch.Tensor,
        run: ColumnRun,
    ) -> bool:
        """Send the largest, keep the rest."""
        v = x * weight
        if residual is not None:
            v.add_(residual)
        places = _largest(v.abs(), self._kept(run))  # eq. 1
        torch.gather(v, 1, places, out=headers)
        if not bool(torch.isfinite(v.abs().sum(dim=1)).all()):
            return False
        bodies.view(torch.int16).copy_(places)  # the upper half of the range wraps around
        if residual is not None:
            residual.copy_(v.scatter_(1, places, 0.0))  # eq. 3
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
        """Put values at their places (eq. 2)."""
        places = bodies.view(torch.int16).to(torch.int64) & (BLOCK - 1)
        if not add:
            out.zero_()
        out.scatter_add_(1, places, headers * scale)


def _largest(sizes: torch.Tensor, k: int) -> torch.Tensor:
    """Return the places of the k largest in every row, in ascending order; of equals the first."""
    least = torch.topk(sizes, k, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
    above, equal = sizes > least, sizes == least
    wanted = k - above.sum(dim=1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(dim=1) <= wanted))
    found = chosen.nonzero()[:, 1]
    # Of NaN nothing is above or equal: whoever called looks at the values.
    return (
        found.view(len(sizes), k)
        if len(found) == len(sizes) * k
        else found.new_zeros((len(sizes), k))
    )
