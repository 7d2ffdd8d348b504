"""Files that somebody else may have written: looked at before they are read, and limited.

An input is a regular file. A pipe could make a program wait for ever, a device could rewind a tape
or never end, so they are refused before they are opened. Sizes are compared with a limit before
memory is taken; a zipped file is unfolded piece by piece, and refused when it grows beyond all
proportion. docs/limits.md lists the limits; a test holds the page to the numbers here.

Everything raises `UnreadableError`: the file and the reason. Callers add what to do about it.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import stat
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from hocket.errors import HocketError, UnreadableError

MIB: Final = 1 << 20
CONFIG_LIMIT: Final = 16 * MIB  # a configuration, or what Hocket notes about a step
TABLE_LIMIT: Final = 4096 * MIB  # tables, cuts, language models, metrics: plain or unfolded
LINE_LIMIT: Final = 16 * MIB  # one line of them; a lhotse cut of many supervisions has megabytes
UNFOLD_RATIO: Final = 200  # text shrinks to a tenth, a silent alignment to a hundredth
UNFOLD_FLOOR: Final = 64 * MIB  # a small file may unfold to this, whatever its ratio

_KINDS: Final = (
    (stat.S_ISDIR, "it is a directory, not a file"),
    (stat.S_ISFIFO, "it is a pipe, not a file: write what comes out of it to a file first"),
    (stat.S_ISSOCK, "it is a socket, not a file"),
    (stat.S_ISCHR, "it is a device, not a file"),
    (stat.S_ISBLK, "it is a device, not a file"),
)
_WRONG_TYPE: Final = (KeyError, IndexError, TypeError, AttributeError)
_WRONG_VALUE: Final = (ValueError, OverflowError, RecursionError)
# A key of so many parts: Python's reader needs time by the square of their number.
_LONG_KEY: Final = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]+[ \t]*\.[ \t]*){64}")
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


# ---------------------------------------------------------------------------- regular files


def file_size(path: Path, limit: int | None = None) -> int:
    """Return the size of a regular file of at most `limit` bytes; anything else is refused."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    return _checked(path, status, limit)


def open_file(path: Path, limit: int | None = None) -> io.BufferedReader:
    """Open a regular file of at most `limit` bytes; it stays one if it is replaced meanwhile."""
    file_size(path, limit)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        file = os.fdopen(descriptor, "rb")
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        _checked(path, os.fstat(descriptor), limit)
    except UnreadableError:
        file.close()
        raise
    return file


def is_there(path: Path) -> bool:
    """True if there is something of this name; a name that cannot exist is no error."""
    try:
        path.stat()
    except (OSError, ValueError):
        return False
    return True


@contextmanager
def well_formed(path: Path) -> Iterator[None]:
    """Name the file if what was read from it turns out to have another structure than it should."""
    try:
        yield
    except HocketError:
        raise
    except (*_WRONG_TYPE, *_WRONG_VALUE) as error:
        reason = f"not what it should be ({type(error).__name__}: {str(error)[:200]})"
        raise UnreadableError.of(path, reason) from error


def _checked(path: Path, status: os.stat_result, limit: int | None) -> int:
    for is_kind, why in _KINDS:
        if is_kind(status.st_mode):
            raise UnreadableError.of(path, why)
    if limit is not None and status.st_size > limit:
        raise too_large(path, status.st_size, limit)
    return status.st_size


def too_large(path: Path, size: int, limit: int) -> UnreadableError:
    """Return the error for a file, or a part of it, above its limit."""
    return UnreadableError.of(path, f"{shown(size)} are more than the limit of {shown(limit)}")


def shown(size: int) -> str:
    """Write a number of bytes for people."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", MIB), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:,.4g} {unit}"
    return f"{size} bytes"


def _unreadable(path: Path, error: Exception) -> UnreadableError:
    missing = isinstance(error, FileNotFoundError)
    return UnreadableError.of(path, getattr(error, "strerror", None) or error, missing=missing)


# ---------------------------------------------------------------------------- whole files


def read_bytes(path: Path, limit: int = TABLE_LIMIT) -> bytes:
    """Return what a file holds."""
    try:
        with open_file(path, limit) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > limit:  # it has grown since it was looked at
        raise too_large(path, len(data), limit)
    return data


def read_text(path: Path, limit: int = TABLE_LIMIT) -> str:
    """Return what a text file holds."""
    return _decoded(path, read_bytes(path, limit))


def _decoded(path: Path, data: bytes, at: int = 0) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError.of(
            path,
            f"not UTF-8 ({error.reason} at byte {at + error.start}): convert it (iconv -t UTF-8)",
        ) from error


def read_json(path: Path, limit: int = CONFIG_LIMIT) -> Any:
    """Return what a JSON file holds."""
    return parse_json(path, read_text(path, limit))


def read_table(path: Path, limit: int = CONFIG_LIMIT) -> dict[str, Any]:
    """Return the one table that a JSON file holds."""
    found = read_json(path, limit)
    if not isinstance(found, dict):
        raise UnreadableError.of(path, "it holds no table")
    return found


def parse_json(path: Path, text: str) -> Any:
    """Return what a text means as JSON; `path` is where it comes from."""
    try:
        found = json.loads(text)
        if _SURROGATE.search(text):  # half a character; only names of files may hold such a thing
            json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except RecursionError:
        raise UnreadableError.of(path, "its tables and lists are nested too deeply") from None
    except ValueError as error:
        raise UnreadableError.of(path, f"not JSON ({error})") from error
    return found


def read_toml(path: Path, limit: int = CONFIG_LIMIT) -> dict[str, Any]:
    """Return the tables of a TOML file."""
    text = read_text(path, limit)
    if _LONG_KEY.search(text):
        raise UnreadableError.of(path, "its tables and lists are nested too deeply")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UnreadableError.of(path, "its tables and lists are nested too deeply") from None
    except ValueError as error:
        raise UnreadableError.of(path, error) from error


# ---------------------------------------------------------------------------- line by line


def lines(path: Path, limit: int = TABLE_LIMIT) -> Iterator[str]:
    """Yield the lines of a text file, zipped or not, without their ends."""
    at = number = 0
    with unfolded(path, limit) as file:
        for line in _split(file.pieces()):
            number += 1
            if len(line) > LINE_LIMIT:
                raise UnreadableError.of(
                    path, f"line {number} is longer than the limit of {shown(LINE_LIMIT)}"
                )
            text = _decoded(path, line, at)
            yield text.removeprefix("\ufeff") if number == 1 else text  # a byte-order mark
            at += len(line) + 1


def _split(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield what lies between the ends of lines; of a line above the limit, a part."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
        if len(rest) > LINE_LIMIT:
            break
    if rest:
        yield rest


def unfolded(path: Path, limit: int | None = TABLE_LIMIT) -> Unfolded:
    """Open a file to read what is in it; if it is zipped (gzip), what it unfolds to."""
    return Unfolded(path, limit)


class Unfolded(io.BufferedIOBase):
    """What a file holds, unfolded piece by piece if it is zipped, up to a limit.

    Three megabytes can unfold to three gigabytes: so a file may become `UNFOLD_RATIO` times as
    large, or as large as `UNFOLD_FLOOR`, and in any case not larger than `limit`.
    """

    def __init__(self, path: Path, limit: int | None) -> None:
        super().__init__()
        self._path = path
        self._raw = open_file(path, limit)
        self._file: IO[bytes] = self._raw
        self.packed_size = os.fstat(self._file.fileno()).st_size
        self.zipped = self._file.read(2) == b"\x1f\x8b"
        self._file.seek(0)
        fair = max(UNFOLD_FLOOR, UNFOLD_RATIO * self.packed_size)
        self._limit = fair if limit is None else min(fair, limit)
        if self.zipped:
            self._file = gzip.GzipFile(fileobj=self._raw)  # type: ignore[assignment]
        self._got = 0

    def pieces(self) -> Iterator[bytes]:
        """Yield all of it, a mebibyte at a time."""
        while piece := self._pull(MIB):
            yield piece

    def read(self, size: int | None = -1, /) -> bytes:
        """Return so many bytes, or fewer at the end; the whole rest is limited, too."""
        wanted = self._left() if size is None or size < 0 else min(size, self._left())
        pieces = []
        while wanted > 0 and (piece := self._pull(min(wanted, MIB))):
            pieces.append(piece)
            wanted -= len(piece)
        return b"".join(pieces)

    @property
    def left(self) -> int | None:
        """How many bytes are left; None if it is zipped, for nobody knows."""
        return None if self.zipped else self.packed_size - self._got

    def skip(self, offset: int) -> None:
        """Go on reading at this byte of the file."""
        if self.zipped:
            raise UnreadableError.of(self._path, "a place in a zipped file: unzip it first")
        self._file.seek(offset)
        self._got = offset

    def _left(self) -> int:
        return self._limit + 1 - self._got

    def _pull(self, size: int) -> bytes:
        try:
            data = self._file.read(size)
        except (OSError, EOFError, zlib.error) as error:
            raise UnreadableError.of(self._path, f"cannot be unfolded ({error})") from error
        self._got += len(data)
        if self.zipped and self._got > self._limit:
            raise UnreadableError.of(
                self._path,
                f"its {shown(self.packed_size)} unfold to more than {shown(self._limit)}, the "
                "limit for such a file: if it is what it should be, unzip it yourself",
            )
        return data

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._file.close()
            self._raw.close()
        super().close()

    def readable(self) -> bool:
        """Say that this can be read."""
        return True
