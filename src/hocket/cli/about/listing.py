"""The commands that list what there is: `hocket strategies`, `hocket codecs`, `hocket options`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from hocket import config
from hocket.cli.about import method
from hocket.cli.parsing import Commands, add_command
from hocket.codecs import CODECS, Float16, Float32, OneBit, TopK
from hocket.errors import ConfigError, nearest, require
from hocket.runtime.sim import pays
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

_CODECS: Final = """\
Lists what can go on the wire, what each strategy codes, and why the other
strategies code nothing. --pays prints which codec makes a step of allreduce
shorter, by the simulator's cost model: over model size, link and time of a
minibatch.

examples:
  hocket codecs
  hocket codecs --pays --learners 8
  hocket simulate synthetic --learners 4 --set codec.name=onebit --out runs/b
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
    codec = add_command(commands, "codecs", "list codecs, and what goes with what", _CODECS)
    codec.add_argument("--pays", action="store_true", help="print when which codec pays")
    codec.add_argument(
        "--learners", type=int, metavar="P", help="with --pays: one on each of P hosts (default 4)"
    )
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


# ---------------------------------------------------------------------------- codecs

_WHAT: Final = {
    "gradients": "every gradient, before it is averaged",
    "steps": "the step of every block, W_i - W_g; needs error feedback",
    "pushes": "every push to a server, with a memory at the learner",
}
PAYS: Final = ("model", "link", "minibatch", "float32")  # then a column for each codec, the best


def codecs(args: argparse.Namespace) -> int:
    """List codecs and what goes with what, or when which one pays."""
    if args.pays:
        learners = 4 if args.learners is None else args.learners
        require(learners >= 2, f"--learners must be at least 2, not {learners}: alone nothing pays")
        _print_pays(learners)
        return 0
    require(args.learners is None, "--learners has no effect without --pays")
    column = max(map(len, [*CODECS, *STRATEGIES])) + 2
    for cls in CODECS.values():
        print(text.entry(cls.name, [cls.summary], column))
    print()
    for name, what in codec_table():
        print(text.entry(name, [what], column))
    return 0


def codec_table() -> list[tuple[str, str]]:
    """Return for every strategy what it codes, or why nothing."""
    return [
        (name, f"codes {_WHAT[cls.codes]}" if cls.codes else f"float32 only: {cls.uncoded_because}")
        for name, cls in STRATEGIES.items()
    ]


def _print_pays(learners: int) -> None:
    kinds = [Float32(), Float16(), OneBit(), TopK()]
    heads = [*PAYS, *(kind.name for kind in kinds[1:]), "best"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for row in pays.rows(kinds, learners):
        print("| " + " | ".join(row) + " |")
    print(
        f"\nOne step of allreduce, {learners} learners on a host each. Under a codec: how many "
        f"times faster. Columns of {pays.WIDTH} values, memory of {pays.MEMORY_GBIT:.0f} Gbit/s "
        "a core."
    )


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
    "codecs": codecs,
    "options": options,
}
