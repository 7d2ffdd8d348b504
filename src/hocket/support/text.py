"""Text for a terminal: wrapped to its width, without breaking a name over two lines."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable
from typing import Final

WIDEST: Final = 100  # longer lines are hard to read, also in a wide terminal


def width() -> int:
    """Return the columns to fill: those of the terminal (or COLUMNS); 80 in a pipe or a file."""
    return min(WIDEST, shutil.get_terminal_size((80, 24)).columns)


def wrapped(text: str, *, indent: str = "", first: str | None = None) -> list[str]:
    """Break a text into lines between words; `first` is the indent of the first line.

    Names such as `adaptive-kstep` stay whole: there is no break at a hyphen. A word that is longer
    than the line stands alone on its line.
    """
    return textwrap.wrap(
        text,
        width(),
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def entry(name: str, paragraphs: Iterable[str], column: int) -> str:
    """Return a name, and from `column` on the paragraphs about it."""
    indent = " " * column
    lines = [line for paragraph in paragraphs for line in wrapped(paragraph, indent=indent)]
    if len(name) + 2 > column:
        return "\n".join([name, *lines])
    return "\n".join([name.ljust(column) + lines[0][column:], *lines[1:]]) if lines else name


def size_of(num_bytes: float) -> str:
    """Write a number of bytes for people, in powers of a thousand."""
    units = ("B", "kB", "MB", "GB", "TB")
    power = min(len(str(int(num_bytes))) - 1, 14) // 3
    return f"{num_bytes / 1000**power:.1f} {units[power]}"
