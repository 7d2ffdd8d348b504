"""Files and folders that are complete or not there, whenever a program is interrupted.

They are written under another name, beside the final one, and renamed when complete.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from hocket.errors import HocketError
from hocket.support.inputs import file_size, is_there

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Yield where to write; renamed to PATH when all is written, removed if that fails.

    The name keeps its ending, because some libraries choose the format by it or append their own.

    >>> with atomically(path) as partial:
    ...     partial.write_text(page)
    """
    partial = path.with_name(f".partial-{os.getpid()}-{path.name[-60:]}")  # two may write one
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        if error.errno not in NO_ROOM:
            if error.filename == str(partial):
                error.filename = str(path)  # the name that the user has chosen
            raise
        raise HocketError(
            f"{path}: no room on its disk: free some and give the same command again"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file in place of PATH: readers see the old text or the new one."""
    with atomically(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, with their ends, as UTF-8, whatever the language of the user's system is.

    Names of files that are no UTF-8 keep their bytes.
    """
    path.write_text("".join(lines), encoding="utf-8", errors="surrogateescape")


def open_to_append(path: Path) -> IO[str]:
    """Open a text file, or a new one, to write at its end; on a pipe one would wait for ever."""
    if is_there(path):
        file_size(path)  # refuses all but regular files
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    return os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8")


@contextmanager
def folder_atomically(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; it is renamed to PATH when complete.

    An interrupted one is left behind and removed by the next attempt.
    """
    partial = path.with_name(f"{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    partial.rename(path)


def move_folder(complete: Path, path: Path, *, durable: bool = True) -> None:
    """Rename a complete folder to PATH; a folder already there is moved aside and then removed.

    If this is interrupted in the middle, `put_back_replaced` makes the old folder visible again.
    `durable`: wait until the new name would survive a power failure.
    """
    aside = path.with_name(f".{path.name}.replaced")
    if path.exists():
        shutil.rmtree(aside, ignore_errors=True)  # left by an interruption after the last rename
        os.replace(path, aside)
    os.replace(complete, path)
    if durable:
        sync(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def put_back_replaced(parent: Path, own: re.Pattern[str]) -> None:
    """Put folders back that an interrupted `move_folder` moved aside, unless they were replaced.

    Names that do not match `own` are somebody else's.
    """
    for aside in parent.glob(".*.replaced"):
        if not own.fullmatch(aside.name):
            continue
        path = aside.with_name(aside.name.removeprefix(".").removesuffix(".replaced"))
        if path.exists():
            shutil.rmtree(aside)
        else:
            os.replace(aside, path)


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, would survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
