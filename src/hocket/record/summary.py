"""What is printed at the end of a run: what each learner did, and what servers saw."""

from __future__ import annotations

import math

from rich.table import Table

from hocket.record.pushes import Pushes
from hocket.record.results import Result, summary_event
from hocket.record.rundir import RunDirectory
from hocket.support.text import size_of


def pushes_of(result: Result) -> list[str]:
    """Say what the servers of the run saw, if it had any."""
    if result.run_dir is None:
        return []
    found = Pushes.of(RunDirectory(result.run_dir).evaluations(), summary_event(result))
    return [] if found is None else found.lines()


def summary_table(result: Result) -> Table:
    """Return the table printed at the end of a run: its loss, and what each learner did."""
    title = f"dev loss {result.loss:.4f}, frame accuracy {result.accuracy:.4f}"
    table = Table(title="not evaluated yet" if math.isnan(result.loss) else title)
    for heading in ("learner", "frames", "sent", "computing"):
        table.add_column(heading, justify="right")
    shown = result.learners if len(result.learners) <= 16 else result.learners[:8]
    for one in shown:
        table.add_row(
            str(one.rank) if one.lost_s is None else f"{one.rank} (lost at {one.lost_s:.1f} s)",
            f"{one.frames:,}",
            size_of(one.bytes_sent),
            f"{one.utilisation:.0%}",
        )
    if len(shown) < len(result.learners):
        table.add_row("...", "", "", "")
    for one in result.attendants:
        busy = f"{one.utilisation:.0%}" if one.frames else ""  # of a stage of the model
        what, frames = ("stage", f"{one.frames:,}") if one.frames else ("serves", "")
        table.add_row(f"{one.rank} ({what})", frames, size_of(one.bytes_sent), busy)
    return table
