"""`hocket join`: more learners for a run that is under way, from its own host or from another."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from hocket import running
from hocket.cli.parsing import Commands, add_command
from hocket.errors import require
from hocket.runtime.launch import joining

_TEXT: Final = """\
Lets more learners into a run of `hocket train` that is under way. On the host
of the run's launcher they are started beside the others. On another host that
sees the run directory this command starts them itself and stays until they have
ended; the run must have been started with --listen ADDRESS, an address of its
host. They join as soon as all can meet. A learner that gets SIGTERM leaves
politely: the others go on with its work.

examples:
  hocket join runs/k8 --learners 2               # on the launcher's host

  hocket train synthetic --strategy kstep --learners 2 --out /shared/k8 \\
      --listen 10.0.0.5
  hocket join /shared/k8 --learners 2            # on another host
"""


def add_commands(commands: Commands) -> None:
    """Describe `join` to the parser."""
    command = add_command(commands, "join", "let more learners into a run that is under way", _TEXT)
    command.add_argument("run", type=Path, metavar="RUN", help="the run directory")
    add = command.add_argument
    add("--learners", type=int, default=1, metavar="N", help="how many (1)")
    add("--timeout", type=float, default=300.0, metavar="S", help="how long to wait (300)")
    add(
        "--here",
        action="store_true",
        help="let this command start them, as on another host, also if the launcher runs here",
    )


def run(args: argparse.Namespace) -> int:
    """Let learners in: the launcher starts them, or this command does."""
    require(0 < args.timeout < 1e6, f"--timeout must be above 0, not {args.timeout}")
    door = joining.door(args.run)
    if args.here or (not door.is_here and door.guests):
        running.bring_guests(args.run.resolve(), door, args.learners, args.timeout)
        return 0
    joined = joining.ask(args.run, args.learners, args.timeout)
    print(f"joined as {', '.join(f'rank {name}' for name in joined)}")
    return 0
