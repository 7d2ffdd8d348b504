"""Shared memory that has no name: one process makes it, others map it.

A segment is an anonymous file (`memfd_create`) whose descriptor travels through a Unix socket. The
kernel frees it when the last process that maps it has gone, however that one ended: nothing can be
left behind, not even by `kill -9` of everybody. It does not count against the size of /dev/shm.

What collectives work on is mapped read-only: a learner that was declared lost and wakes up again
cannot spoil it. What comes in a message belongs to its receiver, who may write to it.
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
    def open(cls, fd: int, *, writable: bool = False) -> Segment:
        """Map another's segment; the descriptor is closed with it."""
        size = os.fstat(fd).st_size
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if writable else 0)
        return cls(fd, mmap.mmap(fd, size, flags=flags, prot=prot))

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

    def array(self, offset: int, num_bytes: int) -> NDArray[np.uint8]:
        """Return a view of some bytes; it lives as long as the tensors made of it."""
        return np.frombuffer(self._memory, np.uint8, num_bytes, offset)

    def byte(self, offset: int) -> int:
        """Return one byte."""
        return self._memory[offset]

    def set_byte(self, offset: int, value: int) -> None:
        """Set one byte, at once for everybody."""
        self._memory[offset] = value

    def close(self) -> None:
        """Give the descriptor back; the memory goes when the last view of it has gone."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
