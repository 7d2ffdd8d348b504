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

from hocket.errors import require

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

    def cut(self, count: int) -> list[range]:
        """Cut the vector between parameters into so many ranges, the largest as small as can be.

        Limits on a layer's step, and its codes, need the layer whole, so no parameter is divided.
        """
        require(
            1 <= count <= len(self.entries),
            f"a model of {len(self.entries)} parameters cannot be cut into {count} parts: "
            "parameters are not divided",
        )
        ends = [*(e.offset for e in self.entries[1:]), self.size]
        low, high = -(-self.size // count), self.size
        while low < high:  # the smallest room in which `count` parts suffice
            middle = (low + high) // 2
            low, high = (low, middle) if _parts_of(ends, middle) <= count else (middle + 1, high)
        return _ranges(ends, low, count)

    def part(self, place: range) -> Layout:
        """Return the layout of a range that was cut out, counted from its beginning."""
        inside = [e for e in self.entries if place.start <= e.offset < place.stop]
        moved = tuple(Entry(e.name, e.shape, e.offset - place.start) for e in inside)
        return Layout(moved, len(place))

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

    def part(self, place: range) -> Parts:
        """Return a range that was cut between parameters, counted from its beginning."""
        inside = [(at - place.start, p) for at, p in self.pieces if place.start <= at < place.stop]
        return Parts(len(place), inside)

    def join(self) -> Flat:
        """Lay the vector out in memory of its own."""
        device = self.pieces[0][1].device if self.pieces else None
        return self.write_(torch.empty(self.size, device=device))

    def finite(self) -> bool:
        """True if no value is infinite or not a number."""
        return all(bool(torch.isfinite(piece).all()) for _, piece in self.pieces)


def _parts_of(ends: list[int], room: int) -> int:
    """Return how many parts of at most `room` values are needed; too many if one does not fit."""
    parts, begun, last = 1, 0, 0
    for end in ends:
        if end - last > room:
            return len(ends) + 1
        if end - begun > room:
            parts, begun = parts + 1, last
        last = end
    return parts


def _ranges(ends: list[int], room: int, count: int) -> list[range]:
    """Fill parts of at most `room` values one after the other; each gets a parameter at least."""
    found: list[range] = []
    begun = last = 0
    for number, end in enumerate(ends):
        ahead, parts_left = len(ends) - number, count - len(found) - 1
        if last > begun and (end - begun > room or ahead <= parts_left):
            found.append(range(begun, last))
            begun = last
        last = end
    return [*found, range(begun, last)]
