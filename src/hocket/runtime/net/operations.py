"""What each collective does in its phases, through shared memory or through sockets.

Members of the same host read a member's contribution in its segment; to other hosts it travels in
the frame. The work of a reduction is divided: each member reduces one stripe, in rank order. So a
sum is the same bit for bit on any member, and as fast as in a ring.

Contributions alternate between two places. The place of collective n is written again for n+2, and
by then all members have posted n+1, so none still reads n.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch

from hocket.core.flat import Flat, Parts
from hocket.core.numerics import shares, weighted_sum
from hocket.core.packing import Buffer
from hocket.errors import ContractError
from hocket.runtime.net.agreement import Ranks
from hocket.runtime.net.links import MAX_BODY, MAX_LOCAL_BODY, Frame
from hocket.runtime.net.shared_memory import Segment

KINDS = (
    "AllReduce",
    "MeanGradient",
    "CodedMean",
    "Broadcast",
    "AllToAll",
    "Evaluate",
    "Gather",
    "Wait",
)
ROW = 6  # numbers that each member sends with every collective
_POST = struct.Struct("<qqqq" + "d" * ROW)  # kind, size, places of data and result; the row
_ALIGN = 64  # bytes: stripes begin at cache lines
INLINE = MAX_LOCAL_BODY - _POST.size  # what fits into a frame within a host


def stripes(size: int, parts: int) -> list[tuple[int, int]]:
    """Cut `size` values into stripes that begin at cache lines; the last may be shorter."""
    lines = -(-size * 4 // _ALIGN)
    step = -(-lines // parts) * (_ALIGN // 4)
    return [(min(size, i * step), min(size, (i + 1) * step)) for i in range(parts)]


class GroupMemory:
    """The memory a group exchanges vectors through: this learner's segment, views of others'."""

    def __init__(self, rank: int, near: frozenset[int]) -> None:
        self.rank = rank
        self.near = near
        self._own: Segment | None = None
        self._capacity = 0  # bytes of each of three places: two for contributions, one for results
        self._others: dict[int, Segment] = {}
        self._told: set[int] = set()  # who has the descriptor of the current segment
        self._turn = 0

    def next_place(self, num_bytes: int) -> int:
        """Return where the next contribution goes; a larger segment is made if it does not fit."""
        if num_bytes > self._capacity:
            if self._own is not None:
                self._own.close()
            self._capacity = -(-num_bytes // 4096) * 4096
            self._own = Segment.create(3 * self._capacity)
            self._told.clear()
        return (1 - self._turn) * self._capacity

    def advance(self) -> None:
        """Use the other place for the next contribution."""
        self._turn = 1 - self._turn

    @property
    def result_place(self) -> int:
        """Where this learner's stripe of a result goes."""
        return 2 * self._capacity

    def own(self, place: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a view of this learner's own segment."""
        assert self._own is not None
        return self._own.values(place, count, dtype)

    def of(self, rank: int, place: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a view of the segment of any member on this host."""
        segment = self._own if rank == self.rank else self._others[rank]
        assert segment is not None
        return segment.values(place, count, dtype)

    def fd_for(self, rank: int) -> int:
        """Return the descriptor that a member still needs, or -1."""
        if self._own is None or rank not in self.near or rank in self._told:
            return -1
        self._told.add(rank)
        return self._own.fd

    def tell_again(self) -> None:
        """Send all members the descriptor again: what was sent before may have been ignored."""
        self._told.clear()

    def opened(self, frame: Frame) -> None:
        """Take in a member's new segment, if one came with its frame."""
        if frame.fd >= 0:
            self.forget(frame.source)
            self._others[frame.source] = Segment.open(frame.fd)
            frame.fd = -1

    def forget(self, rank: int) -> None:
        """Close the segment of a member."""
        if rank in self._others:
            self._others.pop(rank).close()

    def close(self) -> None:
        """Unmap all segments; the kernel frees each with its last user."""
        for rank in list(self._others):
            self.forget(rank)
        if self._own is not None:
            self._own.close()


class Collective:
    """The base: a row of numbers from each member, and a check that all do the same."""

    num_phases = 2

    def __init__(self, memory: GroupMemory, kind: str, size: int, row: Sequence[float]) -> None:
        self._memory = memory
        self._kind = kind
        self._size = size
        self._row = [*row, *([0.0] * (ROW - len(row)))]
        self._width = len(row)
        self._place = 0
        self.members: Ranks = ()
        self.rows: list[list[float]] = []
        self._places: dict[int, tuple[int, int]] = {}
        self._bodies: dict[int, memoryview] = {}

    @property
    def me(self) -> int:
        """The index of this learner among the members."""
        return self.members.index(self._memory.rank)

    def begin(self, members: Ranks) -> None:
        """Start, or start again, among these members."""
        if self.members:
            self._memory.tell_again()
        self.members = members

    def sends(self, phase: int, to: int) -> tuple[Buffer, int]:
        """Send the row and the data in phase 0; later phases say that all has been received."""
        if phase > 0:
            return b"", -1
        places = self._place, self._memory.result_place
        head = _POST.pack(KINDS.index(self._kind), self._size, *places, *self._row)
        return b"".join([head, *self._data(to)]), self._memory.fd_for(to)

    def _data(self, to: int) -> list[Buffer]:
        """Return the data that one member gets in the frame itself."""
        return []

    def receives(self, phase: int, frames: dict[int, Frame]) -> None:
        """Take in the rows of all members."""
        self.rows, self._bodies = [], {}
        for rank in self.members:
            if rank == self._memory.rank:
                self.rows.append(self._row[: self._width])
                self._places[rank] = self._place, self._memory.result_place
                continue
            kind, size, place, result_place, *row = self._posted_by(rank, frames[rank])
            self._check(rank, kind, size)
            try:
                self._memory.opened(frames[rank])
            except (OSError, ValueError) as error:
                raise self._unreadable(rank, error) from error
            self.rows.append(list(row[: self._width]))
            self._places[rank] = place, result_place
            self._bodies[rank] = memoryview(frames[rank].body)[_POST.size :]

    def _posted_by(self, rank: int, frame: Frame) -> tuple[Any, ...]:
        """Return the numbers with which a member begins a collective."""
        if len(frame.body) < _POST.size:
            raise self._unreadable(rank, f"{len(frame.body)} bytes instead of {_POST.size} or more")
        return _POST.unpack_from(frame.body)

    def _unreadable(self, rank: int, why: object) -> ContractError:
        return ContractError(
            f"rank {self._memory.rank} cannot read what rank {rank} sent for its {self._kind} "
            f"({why}): it may run another version of Hocket"
        )

    def _check(self, rank: int, kind: int, size: int) -> None:
        """Raise an error that names a learner which is out of step."""
        if not 0 <= kind < len(KINDS):
            raise self._unreadable(rank, f"collective {kind}")
        if (KINDS[kind], size) != (self._kind, self._size):
            raise ContractError(
                f"rank {self._memory.rank} issued {self._kind} of {self._size} values while "
                f"rank {rank} issued {KINDS[kind]} of {size}: a group's collectives must come "
                "in the same order on all members (contract rule 7)"
            )

    def answer(self) -> Any:
        """Return the rows of all members, in rank order."""
        return self.rows


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor."""
    return memoryview(tensor.detach().view(-1).view(torch.uint8).numpy().data)


class PostedCollective(Collective):
    """A collective in which members put data where the others can read it."""

    def _post(self, data: torch.Tensor) -> None:
        """Put a contribution where members of this host read it."""
        self._place = self._memory.next_place(data.numel() * data.element_size())
        if data.numel():
            self._posted = self._memory.own(self._place, data.numel(), data.dtype)
            self._posted.copy_(data.reshape(-1))

    def _read(
        self, rank: int, offset: int, count: int, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Return some values of a member's contribution; a frame holds only these values."""
        place = self._places[rank][0] + offset
        return self._values_of(rank, place, self._bodies.get(rank), count, dtype)

    def _values_of(
        self, rank: int, place: int, body: memoryview | None, count: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return values of a member: in its segment if it is near, else in the frame it sent."""
        try:
            if rank in self._memory.near:
                return self._memory.of(rank, place, count, dtype)
            return _from_body(body or memoryview(b""), count, dtype)
        except (ValueError, KeyError, OverflowError) as error:
            raise self._unreadable(rank, error) from error

    def answer(self) -> Any:
        """Return the result; the place is free for the collective after next."""
        self._memory.advance()
        return self._answer()

    def _answer(self) -> Any:
        raise NotImplementedError


def _from_body(body: memoryview, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the values at the beginning of a frame's body, without a copy."""
    if not count:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(body, dtype=dtype, count=count)


class ReduceVectors(PostedCollective):
    """A weighted sum of the members' vectors. A weight is the first number of a row."""

    def __init__(
        self,
        memory: GroupMemory,
        kind: str,
        x: Flat | Parts,
        row: Sequence[float],
        *,
        all_near: bool,
    ) -> None:
        size = x.size if isinstance(x, Parts) else x.numel()
        super().__init__(memory, kind, size, row)
        # Within a host all read the stripes in shared memory once all are done. Between
        # hosts they travel, so one more round says that they have arrived.
        self.num_phases = 2 if all_near else 3
        self._post_vector(x)
        self._stripe: torch.Tensor | None = None
        self._arrived: dict[int, memoryview] = {}

    def _post_vector(self, x: Flat | Parts) -> None:
        if isinstance(x, Parts):  # laid out where the others read it, without a copy in between
            self._place = self._memory.next_place(self._size * 4)
            self._posted = x.write_(self._memory.own(self._place, self._size))
        else:
            self._post(x.detach())

    def begin(self, members: Ranks) -> None:
        """Divide the work among these members."""
        super().begin(members)
        self._cuts = stripes(self._size, len(members))

    def _data(self, to: int) -> list[Buffer]:
        if to in self._memory.near:
            return []
        first, last = self._cuts[self.members.index(to)]
        return [as_bytes(self._posted[first:last])] if last > first else []

    def sends(self, phase: int, to: int) -> tuple[Buffer, int]:
        """Send this learner's stripe of the sum to members of other hosts."""
        if phase != 1 or to in self._memory.near:
            return super().sends(phase, to)
        assert self._stripe is not None
        return (as_bytes(self._stripe) if self._stripe.numel() else b""), -1

    def receives(self, phase: int, frames: dict[int, Frame]) -> None:
        """Phase 0: reduce this learner's stripe. Phase 1: take in the stripes of the others."""
        if phase == 0:
            super().receives(phase, frames)
            self._reduce()
        else:
            self._arrived = {r: memoryview(f.body) for r, f in frames.items()}

    def _reduce(self) -> None:
        first, last = self._cuts[self.me]
        self._stripe = self._memory.own(self._memory.result_place, last - first)
        if last > first:
            parts = [self._read(r, first * 4, last - first) for r in self.members]
            weighted_sum(parts, shares([row[0] for row in self.rows]), out=self._stripe)

    def _answer(self) -> tuple[Parts, list[list[float]]]:
        """Return the stripes where they are; the next reduction overwrites them."""
        cuts = [(r, a, b) for r, (a, b) in zip(self.members, self._cuts, strict=True) if b > a]
        return Parts(self._size, [(a, self._stripe_of(r, b - a)) for r, a, b in cuts]), self.rows

    def _stripe_of(self, rank: int, count: int) -> torch.Tensor:
        place = self._places[rank][1]
        return self._values_of(rank, place, self._arrived.get(rank), count, torch.float32)


class BroadcastVector(PostedCollective):
    """The root's vector, for all members."""

    def __init__(self, memory: GroupMemory, x: Flat, root: int) -> None:
        super().__init__(memory, "Broadcast", x.numel(), [])
        self._root = root
        if root == memory.rank:
            self._post(x.detach())

    def _data(self, to: int) -> list[Buffer]:
        if self._root != self._memory.rank or to in self._memory.near:
            return []
        return [as_bytes(self._posted)]

    def _answer(self) -> Flat | None:
        if self._root not in self.members:
            return None
        return self._read(self._root, 0, self._size).clone()


class ExchangeStripes(PostedCollective):
    """Stripe s goes to member s; the answer is what each member had for this learner."""

    def __init__(self, memory: GroupMemory, members: Ranks, given: Sequence[torch.Tensor]) -> None:
        super().__init__(memory, "AllToAll", sum(s.numel() for s in given), [])
        self._all = members
        self._given = [s.detach().contiguous().cpu() for s in given]
        self._width_of = [s.numel() * s.element_size() for s in self._given]
        laid = [s.view(-1).view(torch.uint8) for s in self._given]
        self._post(torch.cat(laid))

    def _offset(self, rank: int) -> int:
        return sum(self._width_of[: self._all.index(rank)])

    def _data(self, to: int) -> list[Buffer]:
        return [] if to in self._memory.near else [as_bytes(self._given[self._all.index(to)])]

    def _answer(self) -> list[torch.Tensor]:
        mine = self._given[self._all.index(self._memory.rank)]
        offset = self._offset(self._memory.rank)
        read = [self._read(r, offset, mine.numel(), mine.dtype) for r in self.members]
        return [part.view(mine.shape).clone() for part in read]


class GatherBytes(PostedCollective):
    """Bytes from each member; a few travel in the frame, many through shared memory."""

    def __init__(self, memory: GroupMemory, data: bytes) -> None:
        super().__init__(memory, "Gather", 0, [float(len(data))])
        self._own_data = data
        if len(data) > INLINE:
            self._post(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def _data(self, to: int) -> list[Buffer]:
        shared = to in self._memory.near and len(self._own_data) > INLINE
        return [] if shared else [self._own_data]

    def _answer(self) -> list[bytes]:
        return [self._of(r, row[0]) for r, row in zip(self.members, self.rows, strict=True)]

    def _of(self, rank: int, announced: float) -> bytes:
        if rank == self._memory.rank:
            return self._own_data
        if not 0 <= announced <= MAX_BODY:
            raise self._unreadable(rank, f"{announced} bytes")
        length = int(announced)
        if len(self._bodies[rank]) >= length:
            return bytes(self._bodies[rank][:length])
        return bytes(self._read(rank, 0, length, torch.uint8).numpy())
