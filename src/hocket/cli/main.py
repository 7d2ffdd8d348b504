"""The command line: the parser of all commands, and their dispatch.

Commands are thin: they read options, call the library, and print what comes back. Errors as a user
sees them are in `boundary.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from hocket.cli import boundary, report, speech, split, training
from hocket.cli.about import listing
from hocket.cli.cluster import command as batch, join
from hocket.cli.parsing import Commands, add_command, needs
from hocket.reproduce import command as reproduce

_DESCRIPTION: Final = """\
Train one acoustic model on many learners: in real processes, or in a simulator
that tells how long a cluster would take.
"""

_FIRST_STEPS: Final = """\
first steps:
  hocket demo synthetic                    # no audio needed
  hocket strategies                        # the parallel methods
  hocket train synthetic --strategy kstep --learners 2 --out runs/k16
  hocket COMMAND --help                    # options and examples of a command

from your own audio to a word error rate:
  hocket prepare data/mine --out exp/mine
  hocket train exp/mine --strategy kstep --learners 2 --out runs/mine
  hocket decode runs/mine
"""

_DEMO: Final = """\
Runs a whole experiment with one command and shows the results.

  hocket demo             synthesises digits in noise, trains with 1 and with 2
                          learners, decodes, writes a page with the comparison
  hocket demo synthetic   needs no audio: compares real and simulated learners
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="hocket",
        description=_DESCRIPTION,
        epilog=_FIRST_STEPS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    training.add_commands(commands)
    batch.add_commands(commands)
    join.add_commands(commands)
    split.add_commands(commands)
    speech.add_commands(commands)
    report.add_commands(commands)
    reproduce.add_command(commands)
    listing.add_commands(commands)
    _add_demo(commands)
    return top


def _add_demo(commands: Commands) -> None:
    command = add_command(commands, "demo", "run a whole experiment as an example", _DEMO)
    command.add_argument(
        "which",
        nargs="?",
        choices=["speech", "synthetic"],
        default="speech",
        help="which demo (default: speech)",
    )
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where to write (default: runs/demo or runs/synthetic)",
    )


def _demo(args: argparse.Namespace) -> int:
    if args.which == "synthetic":
        from hocket.cli import demo_synthetic

        return demo_synthetic.run(args.out or Path("runs/synthetic"))
    try:
        from hocket.cli import demo
    except ImportError as error:
        raise needs(error) from error
    return demo.run(args.out or Path("runs/demo"))


COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    **training.COMMANDS,
    "submit": batch.run,
    "join": join.run,
    **split.COMMANDS,
    **speech.COMMANDS,
    **listing.COMMANDS,
    **report.COMMANDS,
    "reproduce": reproduce.run,
    "demo": _demo,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
    args = parser().parse_args(argv)
    command = sys.argv[1:] if argv is None else argv
    run = boundary.run_directory(getattr(args, "out", None), getattr(args, "run", None))
    return boundary.guarded("hocket", command, run, lambda: COMMANDS[args.command](args))
