"""Progress of any long work: a bar in a terminal, a line now and then elsewhere.

`progress` is all that most work needs. The display of a training run (`record/display.py`) is made
of the same parts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LINES_EVERY_S: Final = 10.0
Advance = Callable[[float], None]


@contextmanager
def progress(title: str, total: float, *, unit: str = "", wanted: bool = True) -> Iterator[Advance]:
    """Show how far `advance(amount)` has brought the work towards `total`."""
    if not wanted:
        yield lambda amount: None
    elif console := terminal():
        counts = f"{{task.completed:,.0f}} of {{task.total:,.0f}} {unit}"
        with new_bar(console, counts, transient=True) as bar:
            task = bar.add_task(title, total=total)
            yield lambda amount: bar.advance(task, amount)
    else:
        yield _lines(title, total, unit)


def _lines(title: str, total: float, unit: str) -> Advance:
    done, pace = 0.0, Pace()
    pace.due()  # short work says nothing at all

    def advance(amount: float) -> None:
        nonlocal done
        done += amount
        if pace.due():
            print_line(f"{title}: {done:,.0f} of {total:,.0f} {unit}")

    return advance


# ------------------------------------------------------------------ the parts


def printer(*, stderr: bool = False, soft_wrap: bool = True, width: int | None = None) -> Console:
    """Return what prints tables and texts as they are.

    rich would take a name such as `[/b]` or `:warning:` for its own markup, and fail or change it.
    """
    return Console(stderr=stderr, soft_wrap=soft_wrap, width=width, markup=False, emoji=False)


def terminal() -> Console | None:
    """Return the terminal to draw on; None if nobody watches, as in a pipe or a log."""
    console = printer(stderr=True, soft_wrap=False)
    return console if console.is_terminal else None


def new_bar(
    console: Console, *texts: str, style: str = "none", width: int = 40, transient: bool = False
) -> Progress:
    """Make a bar: its title, the bar, texts, the time left; `transient`: removed at the end."""
    title = TextColumn("{task.description}", style=style, markup=False)
    columns = [TextColumn(text, markup=False) for text in texts]
    made = title, BarColumn(width), *columns, TimeRemainingColumn()
    return Progress(*made, console=console, transient=transient)


class Pace:
    """Says when another line is due: the first at once, then one every so many seconds."""

    def __init__(self, every_s: float = LINES_EVERY_S) -> None:
        self._every_s = every_s
        self._next = 0.0

    def due(self) -> bool:
        """True if a line should be printed now; the next is due some seconds later."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._every_s
        return True


def print_line(text: str) -> None:
    """Print a line for people; standard output is for results."""
    print(text, file=sys.stderr, flush=True)
