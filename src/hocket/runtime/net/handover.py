"""Large tensors of messages within a host: handed over in shared memory instead of sent.

A tensor is written once, into a *slot* of its sender. The receiver uses it there; the slot then
belongs to the receiver, which may also write to it (`Send` moves ownership, contract rule 3). When
the receiver has released the tensor, a byte at the beginning of the slot says so, and the sender
may fill the slot again. A tensor that is sent back to the owner of its slot, or sent on by the
owner, is not written again: two learners that average their models pass one slot back and forth.

Slots are segments without a name: the kernel frees them with the last process. A slot whose holder
is lost is given up.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import Final

import torch

from hocket.runtime.net.shared_memory import AVAILABLE, Segment

SMALLEST: Final = 1 << 16  # bytes; a socket is as fast for less
_HEADER: Final = 64  # bytes before the tensor, the first of them set while somebody holds the slot


@dataclass
class Slot:
    """A segment that this learner owns, and who holds it now."""

    number: int
    segment: Segment
    holder: int
    told: set[int] = field(default_factory=set)  # who has mapped it

    @property
    def capacity(self) -> int:
        """Bytes of the largest tensor that fits."""
        return self.segment.num_bytes - _HEADER

    @property
    def free(self) -> bool:
        """True if no tensor in it is in use."""
        return self.segment.byte(0) == 0


@dataclass
class Lease:
    """A tensor that came in a slot, for as long as this learner holds it."""

    owner: int
    number: int
    num_bytes: int
    given_away: bool = False


class Handover:
    """Hands tensors over: the slots of one learner, and its views of the slots of others."""

    def __init__(self, rank: int, near: frozenset[int]) -> None:
        self._rank = rank
        self._near = near if AVAILABLE else frozenset()
        self._slots: dict[int, Slot] = {}
        self._made = 0
        self._others: dict[tuple[int, int], Segment] = {}  # by owner and number
        self._leases: dict[int, Lease] = {}  # by address
        self._lock = threading.Lock()  # one thread sends, another takes in

    # ------------------------------------------------------------------ sending

    def put(self, tensor: torch.Tensor, to: int, fds: list[int]) -> list[int] | None:
        """Hand a tensor over and return where it is; None if it should travel with the message.

        A descriptor that the receiver still needs is added to `fds`.
        """
        num_bytes = tensor.numel() * tensor.element_size()
        if to not in self._near or num_bytes < SMALLEST:
            return None
        with self._lock:
            lease = self._lease_of(tensor, num_bytes)
            if lease is not None and lease.owner == to:
                lease.given_away = True
                return [to, lease.number, num_bytes, 0]
            if lease is not None and lease.owner == self._rank:
                lease.given_away = True
                slot = self._slots[lease.number]
            else:
                slot = self._filled(tensor, num_bytes)
            slot.holder = to
            fresh = to not in slot.told
            if fresh:
                slot.told.add(to)
                fds.append(slot.segment.fd)
            return [self._rank, slot.number, num_bytes, int(fresh)]

    def _lease_of(self, tensor: torch.Tensor, num_bytes: int) -> Lease | None:
        """Return the lease of a whole tensor, if this learner still holds it."""
        lease = self._leases.get(tensor.data_ptr())
        whole = lease is not None and lease.num_bytes == num_bytes and tensor.is_contiguous()
        return lease if lease is not None and whole and not lease.given_away else None

    def _filled(self, tensor: torch.Tensor, num_bytes: int) -> Slot:
        slot = self._empty(num_bytes)
        slot.segment.set_byte(0, 1)
        raw = tensor.contiguous().view(-1).view(torch.uint8)
        slot.segment.values(_HEADER, num_bytes, torch.uint8).copy_(raw)
        return slot

    def _empty(self, num_bytes: int) -> Slot:
        for slot in [s for s in self._slots.values() if s.free]:
            if slot.capacity >= num_bytes:
                return slot
            self._drop(slot)  # too small now
        self._made += 1
        slot = Slot(self._made, Segment.create(_HEADER + num_bytes), self._rank)
        self._slots[slot.number] = slot
        return slot

    def _drop(self, slot: Slot) -> None:
        del self._slots[slot.number]
        slot.segment.close()

    # ------------------------------------------------------------------ taking in

    def take(self, where: list[int], fds: list[int]) -> torch.Tensor:
        """Return the bytes of a tensor that was handed over; `fds` came with the message."""
        owner, number, num_bytes, fresh = where
        with self._lock:
            if fresh:
                self._others[owner, number] = Segment.open(fds.pop(0), writable=True)
            if owner == self._rank:
                self._slots[number].holder = owner
                segment = self._slots[number].segment
            else:
                segment = self._others[owner, number]
            memory = segment.array(_HEADER, num_bytes)
            address, lease = memory.ctypes.data, Lease(owner, number, num_bytes)
            self._leases[address] = lease
        ended = weakref.finalize(memory, self._ended, address, lease, segment)
        ended.atexit = False
        return torch.from_numpy(memory)

    def _ended(self, address: int, lease: Lease, segment: Segment) -> None:
        """Free a slot whose tensor nobody uses any more; runs in the thread that released it."""
        if self._leases.get(address) is lease:
            del self._leases[address]
        if not lease.given_away:
            segment.set_byte(0, 0)

    # ------------------------------------------------------------------ ends

    def lose(self, rank: int) -> None:
        """Give up the slots that a lost learner holds."""
        with self._lock:
            for slot in [s for s in self._slots.values() if s.holder == rank]:
                self._drop(slot)

    def close(self) -> None:
        """Close all descriptors; memory is freed with the last tensor in it."""
        with self._lock:
            for slot in list(self._slots.values()):
                self._drop(slot)
            for segment in self._others.values():
                segment.close()
            self._others.clear()
