"""Where a vector's columns are, which values travel as they are, and where a code may be cut.

A *column* is what one unit of a layer receives: a contiguous row of its weights (the literature's
word; its matrices lie the other way round). Columns with few values, and biases, travel as float32.

The code of a vector has three sections, each in the order of the vector:

    float32 values as they are | headers, a few float32 for each atom | bodies, bytes of each atom

An *atom* is what a cut must not divide: a column, or a block of columns. So the code of a stripe is
three slices of the code of the whole, and a vector is coded once, whoever will own which stripe.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from hocket.core.codec import CodedSize, Coder, Stripe
from hocket.core.flat import Entry, Flat, Layout
from hocket.errors import NotFiniteError, require

FLOATS = 4096  # float32 values in an atom that is not coded


@dataclass(frozen=True)
class ColumnRun:
    """Atoms of one tensor that lie one after the other and are of the same size."""

    name: str  # of the parameter
    start: int  # of its values, in the vector
    atoms: int
    width: int  # values in an atom
    coded: bool  # false: float32 as they are
    first_atom: int

    @property
    def values(self) -> int:
        """How many there are."""
        return self.atoms * self.width


# A run, and where it lies in a stripe: its values, its float32 or headers, its bodies.
Piece: TypeAlias = tuple[ColumnRun, slice, slice, slice]


class ColumnCoder(Coder):
    """The bookkeeping of columns and sections. A codec adds what it does with a block of atoms."""

    chunk: int = 1 << 16  # values that are coded at once: in torch every operation is a pass

    def __init__(self, layout: Layout, *, float_below: int, feeds_back: bool) -> None:
        self.feeds_back = feeds_back
        self._runs: list[ColumnRun] = []
        for entry in layout.entries:
            width = entry_width(entry)
            columns = entry.num_values // max(1, width)
            self._add(entry.name, entry.offset, columns, width, coded=width >= float_below)
        longest = max((entry_width(entry) for entry in layout.entries), default=0)
        require(
            any(run.coded for run in self._runs),
            f"codec.float_below = {float_below} leaves nothing to code: the longest column of this "
            f"model has {longest} value(s). Lower it, or set codec.name = 'float32'",
        )
        self._lay_out(layout.size)

    @abstractmethod
    def header_bytes(self, run: ColumnRun) -> int:
        """Bytes of an atom's header; a multiple of 4."""

    @abstractmethod
    def body_bytes(self, run: ColumnRun) -> int:
        """Bytes of an atom's body."""

    def atom_values(self, width: int) -> int:
        """Return how many values are coded together, if columns have so many."""
        return width

    @abstractmethod
    def encode_block_(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        weight: float,
        headers: torch.Tensor,
        bodies: torch.Tensor,
        run: ColumnRun,
    ) -> bool:
        """Code atoms, one in each row of every argument; False if a value is not finite."""

    @abstractmethod
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
        """Write what codes say, or add it; one atom in each row."""

    # ------------------------------------------------------------------ laying out

    def _add(self, name: str, start: int, columns: int, width: int, *, coded: bool) -> None:
        """Add the runs of a tensor: atoms of full size, and perhaps a smaller one."""
        if not coded:
            self._add_atoms(name, start, columns * width, FLOATS, coded=False)
            return
        self._add_atoms(name, start, columns * width, self.atom_values(width), coded=True)

    def _add_atoms(self, name: str, start: int, values: int, width: int, *, coded: bool) -> None:
        atoms, rest = divmod(values, width)
        for count, size in ((atoms, width), (1, rest)):
            if count and size:
                before = self._runs[-1].first_atom + self._runs[-1].atoms if self._runs else 0
                self._runs.append(ColumnRun(name, start, count, size, coded, before))
                start += count * size

    def _lay_out(self, size: int) -> None:
        rows = [np.repeat([self._amounts(run)], run.atoms, axis=0) for run in self._runs]
        table = np.concatenate(rows).astype(np.int64)
        ends = np.concatenate([np.zeros((1, 3), dtype=np.int64), np.cumsum(table, axis=0)])
        self._ends = ends  # bytes of each section before each atom
        starts = [run.start + i * run.width for run in self._runs for i in range(run.atoms)]
        self._starts = np.array([*starts, size], dtype=np.int64)
        self.whole = Stripe(0, size, range(len(starts)))
        floats, headers, values = (int(n) for n in ends[-1])
        uncoded = 4 * sum(run.values for run in self._runs)
        self.size = CodedSize(values, headers, floats, uncoded)
        self._cuts: dict[int, list[Stripe]] = {}
        self._known: dict[range, list[Piece]] = {}

    def _amounts(self, run: ColumnRun) -> tuple[int, int, int]:
        if not run.coded:
            return 4 * run.width, 0, 0
        return 0, self.header_bytes(run), self.body_bytes(run)

    def cut(self, parts: int) -> list[Stripe]:
        """Cut where the code has i/parts of its bytes, as nearly as atoms allow."""
        if parts not in self._cuts:
            self._cuts[parts] = self._cut(parts)
        return self._cuts[parts]

    def _cut(self, parts: int) -> list[Stripe]:
        bytes_before = self._ends.sum(axis=1)
        goals = bytes_before[-1] * np.arange(1, parts) / parts
        inner = np.searchsorted(bytes_before, goals - 1e-9).tolist()
        edges = [0, *inner, len(self.whole.atoms)]
        places = [0, *(int(self._starts[edge]) for edge in inner), self.whole.stop]
        return [
            Stripe(places[i], places[i + 1], range(edges[i], edges[i + 1])) for i in range(parts)
        ]

    def stripe(self, place: range) -> Stripe:
        """Return the atoms that begin in a range; it must not divide one."""
        first, last = (int(i) for i in np.searchsorted(self._starts, (place.start, place.stop)))
        return Stripe(place.start, place.stop, range(first, last))

    def sections(self, stripe: Stripe) -> list[slice]:
        """Return three slices of the code of the whole vector."""
        first, last = self._ends[stripe.atoms.start], self._ends[stripe.atoms.stop]
        before = (0, self.size.floats, self.size.floats + self.size.headers)
        return [slice(b + int(f), b + int(t)) for b, f, t in zip(before, first, last, strict=True)]

    # ------------------------------------------------------------------ coding

    def encode_(
        self, x: Flat, residual: Flat | None, stripe: Stripe, weight: float = 1.0
    ) -> torch.Tensor:
        """Code a stripe, tensor by tensor."""
        coded = torch.empty(self.num_bytes(stripe), dtype=torch.uint8, device=x.device)
        floats, headers, bodies = self._split(coded, stripe)
        for run, place, header, body in self._pieces(stripe):
            given = x[place]
            if not run.coded:
                torch.mul(given, weight, out=floats[header])
                finite = bool(torch.isfinite(floats[header]).all())
            else:
                rest = None if residual is None else residual[place]
                finite = all(
                    self.encode_block_(part, kept, weight, heads, codes, run)
                    for part, kept, heads, codes in zip(
                        self._chunks(given, run),
                        self._chunks(rest, run),
                        self._chunks(headers[header], run),
                        self._chunks(bodies[body], run),
                        strict=True,
                    )
                )
            if not finite:
                raise NotFiniteError(
                    f"values of parameter {run.name!r} that are to be coded are infinite or not "
                    "a number"
                )
        return coded

    def decode_(
        self, coded: torch.Tensor, stripe: Stripe, out: Flat, scale: float = 1.0, *, add: bool
    ) -> None:
        """Read a stripe, tensor by tensor; between tensors `out` stays as it is."""
        floats, headers, bodies = self._split(coded, stripe)
        for run, place, header, body in self._pieces(stripe):
            goal = out[place]
            if run.coded:
                for heads, codes, rows in zip(
                    self._chunks(headers[header], run),
                    self._chunks(bodies[body], run),
                    self._chunks(goal, run),
                    strict=True,
                ):
                    self.decode_block_(heads, codes, rows, scale, run, add=add)
            elif add:
                goal.add_(floats[header] * scale)
            else:
                torch.mul(floats[header], scale, out=goal)

    def _chunks(self, values: torch.Tensor | None, run: ColumnRun) -> Sequence[Any]:
        """Cut a run's values, headers or bodies into blocks that stay in the cache of a core."""
        on_cpu = values is None or values.device.type == "cpu"
        rows = max(1, self.chunk // run.width) if on_cpu else run.atoms
        if values is None:
            return [None] * -(-run.atoms // rows)
        return torch.split(values.view(run.atoms, -1), rows)

    def _split(self, coded: torch.Tensor, stripe: Stripe) -> tuple[torch.Tensor, ...]:
        """Return the three sections of a stripe's code."""
        lengths = [s.stop - s.start for s in self.sections(stripe)]
        floats, headers, bodies = torch.split(coded, lengths)
        return floats.view(torch.float32), headers.view(torch.float32), bodies

    def _pieces(self, stripe: Stripe) -> list[Piece]:
        """Return the runs of a stripe; one that its edge divides is shortened."""
        if stripe.atoms not in self._known:
            shared = [self._piece(run, stripe) for run in self._runs]
            self._known[stripe.atoms] = [piece for piece in shared if piece is not None]
        return self._known[stripe.atoms]

    def _piece(self, run: ColumnRun, stripe: Stripe) -> Piece | None:
        first = max(run.first_atom, stripe.atoms.start)
        last = min(run.first_atom + run.atoms, stripe.atoms.stop)
        if first >= last:
            return None
        start = run.start + (first - run.first_atom) * run.width
        inside = ColumnRun(run.name, start, last - first, run.width, run.coded, first)
        begins = start - stripe.start
        a, b = (self._ends[atom] - self._ends[stripe.atoms.start] for atom in (first, last))
        section = 1 if run.coded else 0
        return (
            inside,
            slice(begins, begins + inside.values),
            slice(int(a[section]) // 4, int(b[section]) // 4),
            slice(int(a[2]), int(b[2])),
        )


def entry_width(entry: Entry) -> int:
    """Return how many values a column of a parameter has; a bias is a row of columns of one."""
    columns = entry.shape[0] if len(entry.shape) > 1 else entry.num_values
    return entry.num_values // max(1, columns)


def share_of(values: int, share: float) -> int:
    """Return how many of so many values a share is, one at least."""
    return max(1, min(values, math.floor(values * share + 0.5)))
