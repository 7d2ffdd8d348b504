"""`hocket report`: several finished runs on one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from hocket.cli.parsing import Commands, add_command
from hocket.report import page
from hocket.report.runs import read_run

_DESCRIPTION: Final = """\
Compares finished runs on one HTML page: a table, the learning curves, word
error rates if the runs were decoded, and what each learner did at which time.
The page is one file without links to others, so you can mail it.

examples:
  hocket report runs/alone runs/k8 --out runs/compared.html
  hocket report runs/alone runs/k8 --target-loss 1.9 --out runs/compared.html

The timelines need runs that were trained with --set runtime.trace=true.
"""


def add_report(commands: Commands) -> None:
    """Describe the command to the parser."""
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


def run(args: argparse.Namespace) -> int:
    """Read the runs and write the page."""
    records = [read_run(path) for path in args.runs]
    page.write_page(args.out, args.title, records, target_loss=args.target_loss)
    print(f"{len(records)} runs compared in {args.out}")
    if not any(record.stretches for record in records):
        print("no timelines: train with --set runtime.trace=true to see what each learner did")
    return 0
