"""Shared memory that has no name: one process writes it, others may only read it.

A segment is an anonymous file (`memfd_create`) whose descriptor travels through a Unix socket. The
kernel frees it when the last process that maps it has gone, however that one ended: nothing can be
left behind, not even by `kill -9` of everybody. It does not count against the size of /dev/shm.

Readers map it read-only: a learner that was declared lost and wakes up again cannot spoil what
the others work on.
"""

from __future__ import annotations

import mmap
import os
import warnings

import torch

AVAILABLE = hasattr(os, "memfd_create")


class Segment:
    """A piece of memory and the descriptor others need to map it."""

    def __init__(self, fd: int, memory: mmap.mmap) -> None:
        self._fd = fd
        self._memory = memory
        self.num_bytes = len(memory)

    @classmethod
    def create(cls, num_bytes: int) -> Segment:
        """Make a segment of one's own; its pages are there from the start."""
        size = max(num_bytes, mmap.PAGESIZE)
        if not AVAILABLE:  # then nobody can be near enough to read it
            return cls(-1, mmap.mmap(-1, size))
        fd = os.memfd_create("hocket", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        return cls(fd, mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE))

    @classmethod
    def open(cls, fd: int) -> Segment:
        """Map another's segment, to read; the descriptor is closed with it."""
        size = os.fstat(fd).st_size
        return cls(fd, mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ))

    @property
    def fd(self) -> int:
        """The descriptor to send to a reader."""
        return self._fd

    def values(self, offset: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a view of some values. Of another's segment it is for reading only."""
        if count == 0:
            return torch.empty(0, dtype=dtype)
        with warnings.catch_warnings():  # torch has no read-only tensors, and says so every time
            warnings.simplefilter("ignore", UserWarning)
            return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset)

    def close(self) -> None:
        """Give the descriptor back; the memory goes when the last view of it has gone."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
