"""Progress of any long work: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LINES_EVERY_S = 10.0
Advance = Callable[[float], None]


@contextmanager
def progress(title: str, total: float, *, unit: str = "", wanted: bool = True) -> Iterator[Advance]:
    """Show how far `advance(amount)` has brought the work towards `total`."""
    if not wanted:
        yield lambda amount: None
    elif sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn(f"{{task.completed:,.0f}} of {{task.total:,.0f}} {unit}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=total)
            yield lambda amount: bar.advance(task, amount)
    else:
        yield _lines(title, total, unit)


def _lines(title: str, total: float, unit: str) -> Advance:
    done, said = 0.0, time.monotonic()

    def advance(amount: float) -> None:
        nonlocal done, said
        done += amount
        if time.monotonic() - said >= LINES_EVERY_S:
            said = time.monotonic()
            print(f"{title}: {done:,.0f} of {total:,.0f} {unit}", file=sys.stderr, flush=True)

    return advance
