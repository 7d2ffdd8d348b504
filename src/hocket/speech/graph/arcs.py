"""Transducers as tables of arcs, for numpy: a Python loop over the arcs would take minutes.

Transducers are read and written in OpenFst's file format for `vector` and `standard` arcs:

    int32 magic, two strings, int32 version, int32 flags, uint64 properties,
    int64 start, int64 states, int64 arcs
    for each state:  float32 final cost, int64 arcs
    for each arc:    int32 input label, int32 output label, float32 cost, int32 next state
"""

from __future__ import annotations

import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import kaldifst
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Costs = NDArray[np.float64]

EPSILON: Final = 0
_MAGIC: Final = 2125659606
_HEADER: Final = struct.Struct("<iQqqq")  # flags and what follows them


@dataclass(frozen=True)
class Arcs:
    """All arcs of a transducer, in any order, and its states' final costs (inf: not final)."""

    start: int
    final: Costs  # (states,)
    source: Ints  # (arcs,), like all below
    ilabel: Ints
    olabel: Ints
    cost: Costs
    target: Ints

    @property
    def num_states(self) -> int:
        """How many states there are; they are numbered from 0."""
        return len(self.final)

    @classmethod
    def of(cls, fst: Any) -> Arcs:
        """Return the table of a kaldifst transducer."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "fst"
            fst.write(str(path))
            data = path.read_bytes()
        at = 4
        for _ in range(2):  # the names of the types
            at += 4 + struct.unpack_from("<i", data, at)[0]
        _, _, start, states, _ = _HEADER.unpack_from(data, at + 4)
        words = np.frombuffer(data[at + 4 + _HEADER.size :], np.int32)
        counts, places = _arc_counts(words, states)
        rows = np.repeat(places + 3, counts) + 4 * _within(counts)
        return cls(
            start,
            words[places].view(np.float32).astype(np.float64),
            np.repeat(np.arange(states), counts),
            words[rows].astype(np.int64),
            words[rows + 1].astype(np.int64),
            words[rows + 2].view(np.float32).astype(np.float64),
            words[rows + 3].astype(np.int64),
        )

    def fst(self) -> Any:
        """Return the table as a kaldifst transducer."""
        order = np.argsort(self.source, kind="stable")
        counts = np.bincount(self.source, minlength=self.num_states)
        places = 3 * np.arange(self.num_states) + 4 * (np.cumsum(counts) - counts)
        words = np.zeros(3 * self.num_states + 4 * len(order), np.int32)
        words[places] = self.final.astype(np.float32).view(np.int32)
        words[places + 1] = counts
        rows = np.repeat(places + 3, counts) + 4 * _within(counts)
        words[rows] = self.ilabel[order]
        words[rows + 1] = self.olabel[order]
        words[rows + 2] = self.cost[order].astype(np.float32).view(np.int32)
        words[rows + 3] = self.target[order]
        head = struct.pack("<i", _MAGIC)
        for name in (b"vector", b"standard"):
            head += struct.pack("<i", len(name)) + name
        head += struct.pack("<i", 2)  # version
        head += _HEADER.pack(
            0, 3, self.start, self.num_states, len(order)
        )  # 3: "expanded, mutable"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "fst"
            path.write_bytes(head + words.tobytes())
            return kaldifst.StdVectorFst.read(str(path))


def _arc_counts(words: NDArray[np.int32], states: int) -> tuple[Ints, Ints]:
    """Return each state's number of arcs, and where its record begins."""
    counts, places, at = [], [], 0
    view = memoryview(words.data)
    for _ in range(states):
        count = view[at + 1]  # the upper half of the int64 is 0: no state has 2^31 arcs
        counts.append(count)
        places.append(at)
        at += 3 + 4 * count
    return np.array(counts, dtype=np.int64), np.array(places, dtype=np.int64)


def _within(counts: Ints) -> Ints:
    """Number the arcs of each state from 0."""
    numbers: Ints = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return numbers
