r"""Kaldi's archives, read and written; nothing in them is ever executed.

    archive:   key ' ' value key ' ' value ...         scp file:  key path:offset  (or path)
    value:     \0B then one of the tokens below, or text
    FM DM      \4 int32 rows  \4 int32 columns  float32 or float64, row after row
    FV DV      \4 int32 size  float32 or float64
    CM         float32 min, range, int32 rows, columns; for each column four uint16 (its quartiles),
               then for each column one uint8 a row: a byte says where between the quartiles (1)
    CM2 CM3    the same head; uint16 or uint8, row after row: x = min + range * v / (2^bits - 1)
    \4         int32 size, then \4 int32 for each: a vector of integers
    text       [ rows of numbers ] or [ numbers ]; without brackets, integers

    v <= 64:   p0  + (p25 - p0)   * v / 64                                                       (1)
    v <= 192:  p25 + (p75 - p25)  * (v - 64) / 128
    else:      p75 + (p100 - p75) * (v - 192) / 63

Other programs write pickled objects, audio and numpy's files into archives. Kaldi itself has no
such entries, and unpickling runs whatever was written; they are refused. A header is compared with
what is left of the file before memory is taken.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hocket.errors import UnreadableError
from hocket.support.inputs import MIB, Unfolded, shown, unfolded

Array = NDArray[Any]
ENTRY_LIMIT: Final = 2048 * MIB  # one matrix or vector, as numbers in memory
TEXT_LIMIT: Final = 64 * MIB  # one value as text: a digit becomes an object of 32 bytes
KEY_LIMIT: Final = 4096  # bytes of a name
_PLACE: Final = re.compile(r"(.*?)(?::(\d{1,18}))?(?:\[([\d:, ]*)\])?", re.DOTALL)
_RANGE: Final = re.compile(r" *(\d{1,9}) *: *(\d{1,9}) *")
_RANGE_TOLERANCE: Final = 3  # frames that a range may reach beyond the end, as in Kaldi
_FOREIGN: Final = {
    **{b"PK": "a pickled object (a program)", b"NP": "an array of numpy"},
    **dict.fromkeys((b"RI", b"fL", b"AU"), "audio"),
}


class Sink(Protocol):
    """A file to write to, zipped or not."""

    def write(self, data: bytes, /) -> Any:
        """Append some bytes."""
        ...

    def tell(self) -> int:
        """Return how many there are."""
        ...


class _Values:
    """The bytes of an archive, in order; how many are left is asked before they are read."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.file: Unfolded = unfolded(path, limit=None)
        self._next = b""
        if offset:
            self.file.skip(offset)

    def take(self, count: int) -> bytes:
        """Return so many bytes, or say that the archive was cut off."""
        left = self.file.left
        if left is not None and count > left + len(self._next):
            raise self.bad(f"{shown(count)} are announced, but the file ends before them")
        data, self._next = self._next[:count], self._next[count:]
        data += self.file.read(count - len(data))
        if len(data) < count:
            raise self.bad("the file was cut off")
        return data

    def peek(self, count: int) -> bytes:
        """Return the next bytes, fewer at the end, without taking them."""
        self._next += self.file.read(max(0, count - len(self._next)))
        return self._next[:count]

    def until(self, ends: bytes, limit: int) -> bytes:
        """Take bytes up to one of some ends, or all; the end is left where it is."""
        taken = bytearray()
        while True:
            block = self.peek(min(max(256, len(taken)), MIB))  # most texts are names, and short
            places = [at for end in ends if (at := block.find(end)) >= 0]
            taken += self.take(min(places, default=len(block)))
            if len(taken) > limit:
                raise self.bad(f"a text goes on for more than {shown(limit)}")
            if places or not block:
                return bytes(taken)

    def skip(self, expected: bytes) -> bool:
        """Take one byte if it is the expected one."""
        there = self.peek(1) == expected
        if there:
            self.take(1)
        return there

    def integer(self) -> int:
        """Take an int32 after its size."""
        size, value = struct.unpack("<bi", self.take(5))
        if size != 4 or value < 0:
            raise self.bad("a size is not a positive int32")
        return int(value)

    def numbers(self, dtype: str, count: int, in_memory: int = 0) -> Array:
        """Take so many numbers; `in_memory`: bytes of each when they are used, if it is more."""
        size = max(np.dtype(dtype).itemsize, in_memory) * count
        if size > ENTRY_LIMIT:
            raise self.bad(f"a matrix of {shown(size)}; the limit is {shown(ENTRY_LIMIT)}")
        return np.frombuffer(self.take(np.dtype(dtype).itemsize * count), dtype)

    def bad(self, why: str) -> UnreadableError:
        """Return the error about this archive."""
        return UnreadableError.of(self.path, f"not an archive of Kaldi's, or damaged: {why}")


# ---------------------------------------------------------------------------- reading


def read_archive(path: Path) -> Iterator[tuple[str, Array]]:
    """Yield the names and values of an archive, zipped or not."""
    values = _Values(path)
    with values.file:
        while values.peek(1):
            key = values.until(b" \n\t", KEY_LIMIT)
            if not key or not values.skip(b" "):
                raise values.bad("a name is missing, or nothing follows it")
            try:
                name = key.decode()
            except UnicodeDecodeError:
                raise values.bad("a name is not UTF-8") from None
            yield name, _value(values)


def read_value(where: str) -> Array:
    """Return the value at a place in an archive, as an scp file names it: path:offset[range]."""
    found = _PLACE.fullmatch(where)
    assert found is not None  # it matches any text
    values = _Values(Path(found[1]), int(found[2] or 0))
    with values.file:
        value = _value(values)
    return value if found[3] is None else _cut(values, value, found[3])


def _value(values: _Values) -> Array:
    head = values.peek(2)
    if not head:
        raise values.bad("there is nothing at this place")
    if head != b"\0B":
        if head in _FOREIGN:
            raise values.bad(f"it holds {_FOREIGN[head]}, which Hocket does not read")
        return _text(values)
    values.take(2)
    if values.peek(1) == b"\4":
        size = values.integer()
        pairs = values.numbers("<i1,<i4", size)
        if not (pairs["f0"] == 4).all():
            raise values.bad("a vector has entries that are not int32")
        return pairs["f1"].astype(np.int32)
    token = values.until(b" ", 8)
    values.skip(b" ")
    return _binary(values, token.decode("latin1"))


def _binary(values: _Values, token: str) -> Array:
    if token in ("FV", "DV"):
        return values.numbers("<f4" if token == "FV" else "<f8", values.integer())
    if token in ("FM", "DM"):
        rows, columns = _shape(values, values.integer(), values.integer())
        x = values.numbers("<f4" if token == "FM" else "<f8", rows * columns)
        return x.reshape(rows, columns)
    if token not in ("CM", "CM2", "CM3"):
        raise values.bad(f"the type {token!r} is not known")
    low, extent, rows, columns = struct.unpack("<ffii", values.take(16))
    rows, columns = _shape(values, rows, columns)
    if token == "CM":
        quartiles = values.numbers("<u2", 4 * columns, 8).reshape(columns, 4, 1)
        v = values.numbers("<u1", rows * columns, 4).reshape(columns, rows).astype(np.float32)
        p0, p25, p75, p100 = np.moveaxis(_spread(quartiles, low, extent, 65535), 1, 0)
        with np.errstate(over="ignore", invalid="ignore"):
            lower = p0 + (p25 - p0) * v * (1 / 64)
            middle = p25 + (p75 - p25) * (v - 64) * (1 / 128)
            upper = p75 + (p100 - p75) * (v - 192) * (1 / 63)
            columns_first: Array = np.where(
                v <= 64, lower, np.where(v <= 192, middle, upper)
            )  # eq. 1
        return columns_first.T
    bits = 16 if token == "CM2" else 8
    x = values.numbers(f"<u{bits // 8}", rows * columns, 4).reshape(rows, columns)
    return _spread(x, low, extent, 2**bits - 1)


def _spread(v: Array, low: float, extent: float, steps: int) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses what is not finite
        x: Array = np.float32(low) + v.astype(np.float32) * np.float32(extent) / np.float32(steps)
    return x


def _shape(values: _Values, rows: int, columns: int) -> tuple[int, int]:
    if rows < 0 or columns < 0 or (rows == 0) != (columns == 0):
        raise values.bad(f"a matrix of {rows} x {columns} values")
    return rows, columns


def _text(values: _Values) -> Array:
    """Read numbers in brackets, or the integers of a line."""
    begin = values.until(b"[\n", TEXT_LIMIT)
    if not values.skip(b"["):
        values.skip(b"\n")
        return _integers(values, begin.split())
    inner = values.until(b"]", TEXT_LIMIT)
    if begin.strip() or not values.skip(b"]") or values.until(b"\n", KEY_LIMIT).strip():
        raise values.bad("brackets that do not match")
    values.skip(b"\n")
    rows = [_floats(values, line.split()) for line in inner.split(b"\n") if line.strip()]
    with np.errstate(over="ignore"):  # the caller refuses what is not finite
        if b"\n" not in inner:
            return np.array(rows[0] if rows else [], np.float32)
        if len({len(row) for row in rows}) > 1:
            raise values.bad("rows of different lengths")
        return np.array(rows, np.float32).reshape(len(rows), -1 if rows else 0)


def _floats(values: _Values, words: list[bytes]) -> list[float]:
    try:
        return [float(word) for word in words]
    except ValueError:
        raise values.bad("a number cannot be read") from None


def _integers(values: _Values, words: list[bytes]) -> Array:
    try:
        found = np.array([int(word) for word in words], np.int64)
    except (ValueError, OverflowError):
        raise values.bad("an integer cannot be read") from None
    if len(found) and not -(2**31) <= found.min() <= found.max() < 2**31:
        raise values.bad("an integer is no int32")
    return found.astype(np.int32)


def _cut(values: _Values, x: Array, text: str) -> Array:
    """Return the rows and columns of a range such as [0:99] or [0:99,0:12]; ends belong to it."""
    for axis, part in enumerate(text.split(",")):
        ends = _RANGE.fullmatch(part)
        if axis >= x.ndim or (ends is None and part.strip() not in ("", ":")):
            raise values.bad(f"the range [{text}] cannot be read")
        if ends is None:
            continue
        start, stop = int(ends[1]), int(ends[2]) + 1
        if not start < stop <= x.shape[axis] + _RANGE_TOLERANCE or start >= x.shape[axis]:
            raise values.bad(f"the range [{text}] is outside a value of shape {list(x.shape)}")
        x = x.take(range(start, min(stop, x.shape[axis])), axis)
    return x


# ---------------------------------------------------------------------------- writing


def write_matrix(file: Sink, name: str, x: NDArray[np.float32]) -> int:
    """Append a matrix; return where its value begins, for an scp file."""
    key = f"{name} ".encode()
    file.write(key)
    at = file.tell()
    rows, columns = x.shape
    file.write(b"\0BFM " + struct.pack("<bibi", 4, rows, 4, columns))
    file.write(np.ascontiguousarray(x, "<f4").tobytes())
    return at


def write_integers(file: Sink, name: str, values: NDArray[np.int32]) -> None:
    """Append a vector of integers, as an alignment is stored."""
    pairs = np.empty(len(values), "<i1,<i4")
    pairs["f0"], pairs["f1"] = 4, values
    file.write(f"{name} ".encode() + b"\0B" + struct.pack("<bi", 4, len(values)) + pairs.tobytes())
