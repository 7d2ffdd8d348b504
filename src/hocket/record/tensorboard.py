"""TensorBoard's event file format, written by hand, without a protobuf library.

A file is a sequence of records:

    uint64 length | masked CRC-32C of the length | data | masked CRC-32C of the data

The data of a record is a protobuf `Event`. The messages that scalars and histograms need are small
enough to be encoded here.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


class EventFile:
    """A new event file in a directory; each call of `scalar` appends one point of one curve."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.hocket.{os.getpid()}"
        self._file = (directory / name).open("ab")
        self._record(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Append the value of the curve `tag` at `step`; a crash afterwards loses nothing."""
        self._summary(_bytes(1, tag.encode()) + _float(2, value), step)

    def histogram(self, tag: str, counts: Mapping[int, int], step: int) -> None:
        """Append how often each whole number was seen; a bucket is one of them, give or take 0.5.

        Buckets without a count are written, too: TensorBoard draws between the limits it is given.
        """
        values = range(min(counts), max(counts) + 1)
        told = {value: float(counts.get(value, 0)) for value in values}
        histogram = (  # HistogramProto
            _double(1, float(values[0]))
            + _double(2, float(values[-1]))
            + _double(3, sum(told.values()))
            + _double(4, sum(v * n for v, n in told.items()))
            + _double(5, sum(v * v * n for v, n in told.items()))
            + _doubles(6, [value + 0.5 for value in values])
            + _doubles(7, list(told.values()))
        )
        self._summary(_bytes(1, tag.encode()) + _bytes(5, histogram), step)

    def _summary(self, value: bytes, step: int) -> None:
        """Append an event with one `Summary.Value`."""
        self._record(_double(1, time.time()) + _varint(2, step) + _bytes(5, _bytes(1, value)))

    def _record(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        self._file.write(length + _masked_crc(length) + data + _masked_crc(data))
        self._file.flush()

    def close(self) -> None:
        """Close the file; every point is on disk already, because each is flushed."""
        self._file.close()


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(field: int, value: int) -> bytes:
    return _number(field << 3) + _number(value)


def _double(field: int, value: float) -> bytes:
    return _number(field << 3 | 1) + struct.pack("<d", value)


def _doubles(field: int, values: Sequence[float]) -> bytes:
    return _bytes(field, struct.pack(f"<{len(values)}d", *values))


def _bytes(field: int, value: bytes) -> bytes:
    return _number(field << 3 | 2) + _number(len(value)) + value


def _float(field: int, value: float) -> bytes:
    return _number(field << 3 | 5) + struct.pack("<f", value)


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # Castagnoli, reflected
        table.append(byte)
    return table


_CRC = _crc_table()


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)
