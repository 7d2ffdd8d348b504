"""The record of a run: `metrics.jsonl`, TensorBoard events, and what the user sees meanwhile.

The schema of `metrics.jsonl` is described in docs/metrics.md and held by a test.
"""

from __future__ import annotations

import json
import math
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

EVENTS = ("train", "eval", "lost", "joined", "checkpoint", "note", "summary")
HEAD = ("event", "time_s", "clock", "frames", "epoch", "rank")


class MetricsFile:
    """Appends one JSON object a line; each line is on disk when the call returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")

    def write(self, event: dict[str, Any]) -> None:
        """Append an event, its common fields first."""
        row = {key: event.get(key) for key in HEAD} | event
        self._file.write(json.dumps(_finite(row), allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _finite(value: Any) -> Any:
    """Replace what JSON has no word for by null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def _evaluations(path: Path) -> list[dict[str, Any]]:
    """Return the evaluations that are recorded already, of a run that is resumed."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if row["event"] == "eval"]


def rewind(run_dir: Path, frames: int) -> None:
    """Drop what was recorded after a checkpoint that is about to be resumed.

    `metrics.jsonl` then reads as one run; the dropped lines go to metrics.abandoned.jsonl.
    """
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return
    kept: list[str] = []
    dropped: list[str] = []
    for line in path.read_text().splitlines(keepends=True):
        try:
            row = json.loads(line)
        except ValueError:  # cut off in the middle by a crash
            dropped.append(line.rstrip("\n") + "\n")
            continue
        later = row["event"] == "summary" or (row["frames"] or 0) > frames
        (dropped if later else kept).append(line)
    if dropped:
        with (run_dir / "metrics.abandoned.jsonl").open("a") as file:
            file.writelines(dropped)
        fresh = path.with_suffix(".partial")
        fresh.write_text("".join(kept))
        os.replace(fresh, path)


# ---------------------------------------------------------------------------- TensorBoard


class EventFile:
    """Writes scalars in TensorBoard's event format: length-delimited, checksummed protobuf.

    Record: uint64 length, masked CRC-32C of it, data, masked CRC-32C of the data. Only three
    messages are needed, so they are encoded by hand and no protobuf library is required.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.hocket.{os.getpid()}"
        self._file = (directory / name).open("ab")
        self._record(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Write one point of one curve."""
        point = _bytes(1, tag.encode()) + _float(2, value)  # Summary.Value
        summary = _bytes(1, point)
        self._record(_double(1, time.time()) + _varint(2, step) + _bytes(5, summary))

    def _record(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        self._file.write(length + _masked_crc(length) + data + _masked_crc(data))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
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


# ---------------------------------------------------------------------------- all together


class Recorder:
    """Sends every event to the metrics file, to TensorBoard, and to whoever shows progress."""

    def __init__(
        self, run_dir: Path | None, *, tensorboard: bool, show: Callable[[dict[str, Any]], None]
    ) -> None:
        self.evaluations = _evaluations(run_dir / "metrics.jsonl") if run_dir else []
        self._metrics = MetricsFile(run_dir / "metrics.jsonl") if run_dir else None
        self._board = EventFile(run_dir / "tensorboard") if run_dir and tensorboard else None
        self._show = show

    def __call__(self, event: dict[str, Any]) -> None:
        """Take one event; `progress` is only shown."""
        self._show(event)
        if event["event"] == "progress":
            return
        if event["event"] == "eval":
            self.evaluations.append(event)
        if self._metrics:
            self._metrics.write(event)
        if self._board and event["event"] in ("train", "eval"):
            prefix = event["event"] if event["rank"] is None else f"train/rank-{event['rank']}"
            for key, value in event.items():
                if key not in HEAD and isinstance(value, int | float):
                    self._board.scalar(f"{prefix}/{key}", float(value), int(event["frames"]))

    def close(self) -> None:
        """Close the files."""
        for file in (self._metrics, self._board):
            if file:
                file.close()
