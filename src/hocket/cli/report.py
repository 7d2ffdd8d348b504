"""Runs seen from outside, from their run directories alone: `hocket report`, `watch`, `track`."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hocket.cli.parsing import Commands, add_command
from hocket.errors import ConfigError, require
from hocket.report import page
from hocket.report.runs import read_run
from hocket.report.standing import Row, Standing, read_standing, slowest, spread
from hocket.report.trackers import TRACKERS, track
from hocket.support.progress import printer
from hocket.support.text import size_of

_DESCRIPTION: Final = """\
Compares finished runs on one HTML page: a table, the learning curves, word
error rates if the runs were decoded, and what each learner did at which time.
The page is one file without links to others, so you can mail it.

examples:
  hocket report runs/alone runs/k8 --out runs/compared.html
  hocket report runs/alone runs/k8 --target-loss 1.9 --out runs/compared.html

The timelines need runs that were trained with --set runtime.trace=true.
"""

_WATCH: Final = """\
Shows how the learners of a run are doing, from the run directory alone: on any
host that sees it, while the run goes on or afterwards. The learner that is
slowest is named, and why: computing, waiting for others, or the network.

examples:
  hocket watch runs/k8                 # until the run ends, or Ctrl-C
  hocket watch runs/k8 --once          # one table, for a script
"""

_TRACK: Final = """\
Sends what a run has recorded (metrics.jsonl) to a tracker of experiments. It
reads files and runs by itself, so it cannot slow or break the run. The tracker
must be installed: pip install 'hocket[wandb]', 'hocket[mlflow]' or
'hocket[trackio]'.

examples:
  hocket track runs/k8 --to mlflow
  hocket track runs/k8 --to wandb --project speech --follow
"""


def add_commands(commands: Commands) -> None:
    """Describe all three to the parser."""
    _add_report(commands)
    _add_watching(commands)


def _add_report(commands: Commands) -> None:
    command = add_command(commands, "report", "compare finished runs on a page", _DESCRIPTION)
    add = command.add_argument
    add(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="run directories; the others are compared with the first",
    )
    add("--out", type=Path, required=True, metavar="PAGE.html", help="the file to write")
    add(
        "--target-loss",
        type=float,
        metavar="X",
        help="also compare the time each run took to reach this dev loss",
    )
    add("--title", default="Hocket: runs compared", help="heading of the page")


def _report(args: argparse.Namespace) -> int:
    """Read the runs and write the page."""
    if args.target_loss is not None and not math.isfinite(args.target_loss):
        raise ConfigError(f"--target-loss must be a loss, not {args.target_loss}")
    records = [read_run(path) for path in args.runs]
    page.write_page(args.out, args.title, records, target_loss=args.target_loss)
    what = f"{len(records)} runs compared" if len(records) > 1 else "1 run shown"
    print(f"{what} in {args.out}")
    if not any(record.stretches for record in records):
        print("no timelines: train with --set runtime.trace=true to see what each learner did")
    return 0


# ---------------------------------------------------------------------------- watch and track

MOST_ROWS: Final = 16  # of more learners, the slowest


def _add_watching(commands: Commands) -> None:
    watch = add_command(commands, "watch", "show how the learners of a run are doing", _WATCH)
    watch.add_argument("run", type=Path, metavar="RUN", help="its run directory")
    watch.add_argument("--once", action="store_true", help="print one table and end")
    watch.add_argument(
        "--every", type=float, default=1.0, metavar="S", help="seconds between two looks"
    )
    tracked = add_command(commands, "track", "send a run's record to a tracker", _TRACK)
    tracked.add_argument("run", type=Path, metavar="RUN", help="its run directory")
    tracked.add_argument("--to", choices=sorted(TRACKERS), required=True, help="which tracker")
    tracked.add_argument(
        "--project", default="hocket", metavar="NAME", help="the tracker's project"
    )
    tracked.add_argument("--follow", action="store_true", help="go on until the run has ended")


# ---------------------------------------------------------------------------- watching


def _watch(args: argparse.Namespace) -> int:
    require(0.1 <= args.every <= 3600, f"--every must be from 0.1 to 3600, not {args.every}")
    console = printer()
    standing = read_standing(args.run)
    if args.once or not console.is_terminal:
        require(args.once or standing.state != "running", f"{_NO_TERMINAL}: give --once")
        console.print(view(standing))
        return 0
    with Live(view(standing), console=console, auto_refresh=False) as live:
        while standing.state == "running":
            time.sleep(args.every)
            standing = read_standing(args.run)
            live.update(view(standing), refresh=True)
    return 0


_NO_TERMINAL: Final = "there is no terminal to draw on"


def view(standing: Standing) -> RenderableType:
    """Return the table and the lines around it."""
    table = Table()
    for heading in ("learner", "", "frames", "frames/s", "waiting", "sent", "sent/s"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    rows = list(standing.rows)
    shown = rows if len(rows) <= MOST_ROWS else sorted(rows, key=lambda r: r.frames_per_s)
    for row in shown[:MOST_ROWS]:
        table.add_row(*_cells(row))
    if len(rows) > MOST_ROWS:
        table.add_row("...", f"{len(rows) - MOST_ROWS} faster ones")
    if standing.working:
        table.add_section()
        for name, number in (("min", 0), ("median", 1), ("max", 2)):
            table.add_row(*_compared(name, number, standing.working))
    return Group(Text(headline(standing)), table, *map(Text, remarks(standing)))


def _cells(row: Row) -> tuple[str, ...]:
    state = "serves" if row.serves and row.state == "working" else row.state
    figures = (size_of(row.bytes_sent), size_of(row.bytes_per_s))
    where = f"{state} ({row.host})" if row.host else state
    if row.serves:
        return (str(row.rank), where, "", "", "", *figures)
    speed = (f"{row.frames:,}", f"{row.frames_per_s:,.0f}", f"{row.waiting:.0%}")
    return (str(row.rank), where, *speed, *figures)


def _compared(name: str, number: int, rows: list[Row]) -> tuple[str, ...]:
    def one(figure: Callable[[Row], float]) -> float:
        return spread(rows, figure)[number]

    return (
        *(name, "", f"{one(lambda r: r.frames):,.0f}", f"{one(lambda r: r.frames_per_s):,.0f}"),
        *(f"{one(lambda r: r.waiting):.0%}", size_of(one(lambda r: r.bytes_sent))),
        size_of(one(lambda r: r.bytes_per_s)),
    )


def headline(standing: Standing) -> str:
    """Say in a line how far the run is."""
    share = f" ({standing.frames / standing.total_frames:.0%})" if standing.total_frames else ""
    loss = "" if standing.loss is None else f", dev loss {standing.loss:.4f}"
    return (
        f"{standing.strategy}, {standing.state}: {standing.frames:,} frames{share}, epoch "
        f"{standing.epoch}, {standing.time_s:.1f} s ({standing.clock} clock){loss}"
    )


def remarks(standing: Standing) -> list[str]:
    """Return what stands below the table."""
    lines = []
    if standing.staleness is not None:
        mean, most = standing.staleness
        lines.append(f"staleness {mean:.2f}, at most {most:.0f}")
    if (found := slowest(standing.working)) is not None:
        lines.append(f"slowest: rank {found[0].rank}, {found[1]}")
    if not standing.rows:
        lines.append("no learner has been heard of: the run has just begun, or broke off early")
    if standing.silent_s is not None:
        lines.append(
            f"no news for {standing.silent_s:.0f} s: the run was killed or stands still; "
            "--resume continues one that has ended"
        )
    return lines + list(standing.notes)


def _track(args: argparse.Namespace) -> int:
    told = track(args.run, args.to, args.project, follow=args.follow)
    print(f"{told} events sent to {args.to}")
    return 0


COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "report": _report,
    "watch": _watch,
    "track": _track,
}
