"""What all commands share when they describe themselves to the parser."""

from __future__ import annotations

import argparse
from typing import TypeAlias

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
