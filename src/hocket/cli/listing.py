"""The commands that list what there is: `hocket strategies` and `hocket options`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from hocket import config
from hocket.cli import method
from hocket.cli.parsing import Commands, add_command
from hocket.errors import ConfigError, nearest
from hocket.strategies import STRATEGIES
from hocket.support import text

_STRATEGIES: Final = """\
Lists the parallel methods, or shows one of them in full: its paper, the
equations of its update, its parameters, its gain, and when to use it.

examples:
  hocket strategies
  hocket strategies bmuf
  hocket strategies --json
"""

_OPTIONS: Final = """\
Lists every option with its default and what its value may be, as it stands in
a TOML file. docs/configuration.md explains them; `hocket strategies NAME` those
of one method.

examples:
  hocket options
  hocket options schedule
  hocket train synthetic --set schedule.epochs=3 --out runs/three
"""

_TYPES: Final = {"int": "whole number", "float": "number", "str": "text", "bool": "true or false"}


def add_commands(commands: Commands) -> None:
    """Describe both commands to the parser."""
    methods = add_command(
        commands, "strategies", "list the parallel methods, or show one", _STRATEGIES
    )
    methods.add_argument("name", nargs="?", metavar="NAME", help="show this method in full")
    methods.add_argument("--json", action="store_true", help="print JSON, for programs")
    every = add_command(commands, "options", "list every option with its default", _OPTIONS)
    every.add_argument(
        "table", nargs="?", metavar="TABLE", help="list this table only, for example schedule"
    )


# ---------------------------------------------------------------------------- strategies


def strategies(args: argparse.Namespace) -> int:
    """List the methods, or show one in full."""
    if args.name is not None:
        _check(args.name, STRATEGIES, "strategy")
    chosen = [STRATEGIES[args.name]] if args.name is not None else list(STRATEGIES.values())
    if args.json:
        print(json.dumps([method.describe(cls) for cls in chosen], indent=1))
    elif args.name is not None:
        print(method.page(chosen[0]))
    else:
        _list_strategies()
    return 0


def _list_strategies() -> None:
    column = max(map(len, STRATEGIES)) + 2
    for cls in STRATEGIES.values():
        facts = method.describe(cls)
        pace = "synchronous" if facts["synchronous"] else "asynchronous"
        names = ", ".join(one["name"] for one in facts["parameters"])
        about = [
            facts["summary"],
            f"{pace}; gain {facts['gain']}; " + (f"set {names}" if names else "nothing to set"),
            f"Paper: {facts['paper']}",
        ]
        print(text.entry(cls.name, about, column) + "\n")
    for line in text.wrapped(
        "P: the number of learners. Gain: movement per minibatch relative to sequential SGD at the "
        "same rate. One method in full: hocket strategies NAME. Use one: hocket train TASK "
        "--strategy NAME --learners P --out RUN"
    ):
        print(line)


def _check(name: str, known: Mapping[str, object], what: str) -> None:
    if name not in known:
        raise ConfigError(
            f"{what} {name!r} is not known.{nearest(name, known)} There are: {', '.join(known)}"
        )


# ---------------------------------------------------------------------------- options


def options(args: argparse.Namespace) -> int:
    """List every option with its default and what its value may be."""
    tables = config.options()
    if args.table is not None:
        _check(args.table, tables, "table")
    for table, kinds in tables.items():
        if args.table in (None, table):
            for name, keys in kinds.items():
                print(f"\n{_heading(table, name)}")
                for line in _lines(keys):
                    print(line)
    return 0


def _heading(table: str, name: str) -> str:
    if name.startswith("[["):
        return name.replace("[[", f"[[{table}.")
    return f'[{table}]  name = "{name}"' if name else f"[{table}]"


def _lines(keys: Mapping[str, tuple[str, Any]]) -> list[str]:
    """Write one kind's options as TOML, the types as comments in a column of their own."""
    settings = {
        f"  {key} = {_shown(default)}": kind
        for key, (kind, default) in keys.items()
        # a table of its own is listed on its own
        if not dataclasses.is_dataclass(default) and not isinstance(default, tuple)
    }
    column = max(map(len, settings), default=0) + 2
    lines = [] if settings else ["  # nothing to set"]
    for setting, kind in settings.items():
        first = setting.ljust(column) + "# "
        indent = " " * column + "# "
        lines += text.wrapped(_TYPES.get(kind, kind), first=first, indent=indent)
    return lines


def _shown(default: object) -> str:
    """Write a value as TOML does."""
    if default is None:
        return "(unset)"
    if default == "(needed)":  # there is no default
        return "(needed)"
    return "inf" if default == math.inf else json.dumps(default)


COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "strategies": strategies,
    "options": options,
}
