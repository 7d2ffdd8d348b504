"""Files and folders that are complete or not there, whenever a program is interrupted.

They are written under another name, beside the final one, and renamed when complete.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hocket.errors import HocketError

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Yield where to write; renamed to PATH when all is written, removed if that fails.

    The name keeps its ending, because some libraries choose the format by it or append their own.

    >>> with atomically(path) as partial:
    ...     partial.write_text(page)
    """
    partial = path.with_name(f".partial-{path.name}")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise HocketError(
            f"{path}: no room on its disk: free some and give the same command again"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file in place of PATH: readers see the old text or the new one."""
    with atomically(path) as partial:
        partial.write_text(text)


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


def move_folder(complete: Path, path: Path) -> None:
    """Rename a complete folder to PATH; a folder already there is moved aside and then removed.

    If this is interrupted in the middle, `put_back_replaced` makes the old folder visible again.
    """
    aside = path.with_name(f".{path.name}.replaced")
    if path.exists():
        shutil.rmtree(aside, ignore_errors=True)  # left by an interruption after the last rename
        os.replace(path, aside)
    os.replace(complete, path)
    sync(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def put_back_replaced(parent: Path) -> None:
    """Put folders back that an interrupted `move_folder` moved aside, unless they were replaced."""
    for aside in parent.glob(".*.replaced"):
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


def write_durably(path: Path, text: str) -> None:
    """Write a text file that would survive a power failure once this returns."""
    path.write_text(text)
    sync(path)
