"""Shared memory that has no name: one process makes it, others map it.

A segment is an anonymous file (`memfd_create`) whose descriptor travels through a Unix socket. The
kernel frees it when the last process that maps it has ended, in whatever way: nothing can be left
behind, not even by `kill -9` of all processes. It does not count against the size of /dev/shm.

For collectives, the segments of others are mapped read-only: a learner that was declared lost and
wakes up again cannot spoil them. What comes in a message belongs to the receiver, which may write
to it.
"""

from __future__ import annotations

import mmap
import os
import warnings

import numpy as np
import torch
from numpy.typing import NDArray

AVAILABLE = hasattr(os, "memfd_create")


class Segment:
    """A piece of memory, and the descriptor that others need to map it."""

    def __init__(self, fd: int, memory: mmap.mmap) -> None:
        self._fd = fd
        self._memory = memory
        self.num_bytes = len(memory)

    @classmethod
    def create(cls, num_bytes: int) -> Segment:
        """Make a segment; its pages are allocated at once."""
        size = max(num_bytes, mmap.PAGESIZE)
        if not AVAILABLE:  # then no other learner reads it: all connect over TCP
            return cls(-1, mmap.mmap(-1, size))
        fd = os.memfd_create("hocket", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        return cls(fd, mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE))

    @classmethod
    def open(cls, fd: int, *, writable: bool = False) -> Segment:
        """Map the segment of another process; `close` closes the descriptor."""
        size = os.fstat(fd).st_size
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if writable else 0)
        return cls(fd, mmap.mmap(fd, size, flags=flags, prot=prot))

    @property
    def fd(self) -> int:
        """The descriptor to send to a reader."""
        return self._fd

    def values(self, offset: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a view of some values; in the segment of another process, only read them."""
        if count == 0:
            return torch.empty(0, dtype=dtype)
        with warnings.catch_warnings():  # torch has no read-only tensors, and says so every time
            warnings.simplefilter("ignore", UserWarning)
            return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset)

    def array(self, offset: int, num_bytes: int) -> NDArray[np.uint8]:
        """Return a view of some bytes; it lives as long as the tensors made of it."""
        return np.frombuffer(self._memory, np.uint8, num_bytes, offset)

    def byte(self, offset: int) -> int:
        """Return the byte at an offset."""
        return self._memory[offset]

    def set_byte(self, offset: int, value: int) -> None:
        """Set the byte at an offset; all processes see it at once."""
        self._memory[offset] = value

    def close(self) -> None:
        """Close the descriptor; the memory is freed with the last view of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
