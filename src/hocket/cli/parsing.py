"""What all commands share when they describe themselves to the parser."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeAlias

from hocket.core.limits import MOST_PROCESSES
from hocket.errors import ConfigError, HocketError
from hocket.support.parallel import default_jobs

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(
    commands: Commands, name: str, summary: str, description: str = "", epilog: str = ""
) -> argparse.ArgumentParser:
    """Add one command; `description` and `epilog` are printed as they are, line by line."""
    return commands.add_parser(
        name,
        help=summary,
        description=description or f"{summary[0].upper()}{summary[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_settings(command: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add `--config` and `--set`, as every command has them that builds a run."""
    add = command.add_argument
    add("--config", type=Path, metavar="FILE", help="a TOML file, or a run's config.json")
    add(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        dest="settings",
        help="set one option; may be given several times (`hocket options` lists all)",
    )


def add_jobs(command: argparse.ArgumentParser) -> None:
    """Add `--jobs` and `--quiet`."""
    command.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        default=None,
        help="how many processes (default: one per core)",
    )
    command.add_argument("--quiet", action="store_true", help="show no progress")


def num_jobs(args: argparse.Namespace) -> int:
    """Return how many processes to use."""
    if args.jobs is not None and not 1 <= args.jobs <= MOST_PROCESSES:
        raise ConfigError(
            f"--jobs must be at least 1 and at most {MOST_PROCESSES:,}, not {args.jobs}"
        )
    return args.jobs or default_jobs()


def needs(error: ImportError) -> HocketError:
    """Return the error that names the extra to install for a missing module."""
    extra = "corpus" if error.name in ("espeakng_loader", "scipy") else "speech"
    return HocketError(f"{error.name} is not installed: pip install 'hocket[{extra}]'")
