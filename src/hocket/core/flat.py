"""A model's parameters as one contiguous vector.

Strategies average, send and update *one* float32 vector per effect, never one per tensor. The
`Layout` says where each parameter lies in it: codecs, preconditioners and per-layer limits read
it. Offsets are multiples of 64 bytes, so that every view is aligned for vector instructions; the
padding between two parameters is always zero, so norms and means may ignore it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn

Flat: TypeAlias = torch.Tensor  # one-dimensional, contiguous, float32

ALIGNMENT_BYTES = 64  # a cache line, and the width of an AVX-512 register
_ALIGNMENT = ALIGNMENT_BYTES // 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter's place in the vector."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def num_values(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """Read-only map from parameters to places in a flat vector."""

    entries: tuple[Entry, ...]
    size: int  # values, padding included

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """Lay out the parameters of `model` that are trained, in their own order."""
        entries, offset = [], 0
        for name, p in model.named_parameters():
            if not p.requires_grad:
                continue
            if p.dtype != torch.float32:
                raise TypeError(
                    f"parameter {name!r} is {p.dtype}; flat vectors are float32: "
                    "build the model in float32 and use autocast for lower precision"
                )
            entries.append(Entry(name, tuple(p.shape), offset))
            offset += -(-p.numel() // _ALIGNMENT) * _ALIGNMENT
        return cls(tuple(entries), offset)

    @property
    def num_parameters(self) -> int:
        """Values without the padding."""
        return sum(e.num_values for e in self.entries)

    def parts(self, tensors: Iterable[torch.Tensor | None]) -> Parts:
        """Take one tensor for each parameter as a vector that is not laid out yet."""
        given = list(tensors)
        device = next((t.device for t in given if t is not None), None)
        made = [
            (e.offset, torch.zeros(e.num_values, device=device) if t is None else t.reshape(-1))
            for e, t in zip(self.entries, given, strict=True)
        ]
        return Parts(self.size, made)

    def zeros(self, device: torch.device | None = None) -> Flat:
        """Return a new vector of zeros."""
        return torch.zeros(self.size, device=device)

    def views(self, flat: Flat) -> list[torch.Tensor]:
        """Every parameter as a view of `flat`, in order."""
        return [flat[e.offset : e.offset + e.num_values].view(e.shape) for e in self.entries]

    def named(self, flat: Flat) -> dict[str, torch.Tensor]:
        """Every parameter as a view of `flat`, by name."""
        return dict(zip((e.name for e in self.entries), self.views(flat), strict=True))

    def pack(self, tensors: Iterable[torch.Tensor | None]) -> Flat:
        """Copy tensors (None counts as zero) into a new vector."""
        given = list(tensors)
        flat = self.zeros(next((t.device for t in given if t is not None), None))
        for view, tensor in zip(self.views(flat), given, strict=True):
            if tensor is not None:
                view.copy_(tensor)
        return flat

    def flatten(self, model: nn.Module) -> Flat:
        """Copy the parameters of `model` into a new vector."""
        return self.pack(p.detach() for p in model.parameters() if p.requires_grad)


@dataclass(frozen=True, slots=True)
class Parts:
    """A flat vector that still lies where it was made, in pieces; between them it is zero.

    Whoever can work on the pieces as they are saves a copy of the whole vector.
    """

    size: int
    pieces: list[tuple[int, torch.Tensor]]  # where each begins, in ascending order

    def write_(self, out: Flat) -> Flat:
        """Lay the vector out in `out`."""
        end = 0
        for offset, piece in self.pieces:
            out[end:offset] = 0.0
            end = offset + piece.numel()
            out[offset:end] = piece
        out[end:] = 0.0
        return out

    def join(self) -> Flat:
        """Lay the vector out in memory of its own."""
        device = self.pieces[0][1].device if self.pieces else None
        return self.write_(torch.empty(self.size, device=device))

    def finite(self) -> bool:
        """True if no value is infinite or not a number."""
        return all(bool(torch.isfinite(piece).all()) for _, piece in self.pieces)
