"""Transducers as tables of arcs, for numpy: a Python loop over the arcs would take minutes.

Transducers are read and written in OpenFst's file format for `vector` and `standard` arcs:

    int32 magic, two strings, int32 version, int32 flags, uint64 properties,
    int64 start, int64 states, int64 arcs
    for each state:  float32 final cost, int64 arcs
    for each arc:    int32 input label, int32 output label, float32 cost, int32 next state

The library reads arcs that lead nowhere without a word, and a search over them reads memory that is
not its own. So a file from the disk is looked at first (`checked`).
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

from hocket.errors import UnreadableError
from hocket.support.inputs import read_bytes, well_formed

Ints = NDArray[np.int64]
Costs = NDArray[np.float64]

EPSILON: Final = 0
_MAGIC: Final = 2125659606
_TYPES: Final = struct.pack("<ii6si8si", _MAGIC, 6, b"vector", 8, b"standard", 2)  # 2: the version
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
            return cls.parse(path)

    @classmethod
    def parse(cls, path: Path) -> Arcs:
        """Return the table of a transducer in a file."""
        data = read_bytes(path)
        if not data.startswith(_TYPES):
            raise UnreadableError.of(path, "not a transducer of type `vector` with `standard` arcs")
        with well_formed(path):
            try:
                flags, _, start, states, _ = _HEADER.unpack_from(data, len(_TYPES))
            except struct.error as error:
                raise ValueError(error) from None
            words = np.frombuffer(data[len(_TYPES) + _HEADER.size :], np.int32)
            if flags != 0 or not 0 <= states <= len(words) // 3:
                raise ValueError(f"{states} states (flags {flags}) in {len(data)} bytes")
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
        head = _TYPES + _HEADER.pack(
            0, 3, self.start, self.num_states, len(order)
        )  # 3: "expanded, mutable"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "fst"
            path.write_bytes(head + words.tobytes())
            return kaldifst.StdVectorFst.read(str(path))

    def checked(self, path: Path, num_words: int) -> Arcs:
        """Return it if a search over it stays inside; `path` is where it comes from."""
        inside = (self.target >= 0) & (self.target < self.num_states)
        labelled = (self.ilabel >= 0) & (self.olabel >= 0) & (self.olabel <= num_words)
        if not (0 <= self.start < self.num_states and inside.all() and labelled.all()):
            raise UnreadableError.of(path, "an arc or the start leads nowhere, or has no word")
        if np.isnan(self.cost).any() or np.isnan(self.final).any():
            raise UnreadableError.of(path, "a cost is not a number")
        return self


def _arc_counts(words: NDArray[np.int32], states: int) -> tuple[Ints, Ints]:
    """Return each state's number of arcs, and where its record begins."""
    counts, places, at = [], [], 0
    view = memoryview(words.data)
    for _ in range(states):
        count = view[at + 1]  # the upper half of the int64 is 0: no state has 2^31 arcs
        if count < 0:
            raise ValueError(f"a state with {count} arcs")
        counts.append(count)
        places.append(at)
        at += 3 + 4 * count
    if at != len(words):
        raise ValueError("it was cut off, or something follows it")
    return np.array(counts, dtype=np.int64), np.array(places, dtype=np.int64)


def _within(counts: Ints) -> Ints:
    """Number the arcs of each state from 0."""
    numbers: Ints = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return numbers
