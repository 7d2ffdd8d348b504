"""The commands that list what there is: strategies and options."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from hocket import config
from hocket.core.strategy import Strategy
from hocket.errors import ConfigError, nearest
from hocket.strategies import STRATEGIES


def strategies(args: argparse.Namespace) -> int:
    """List the methods, or show one in full."""
    chosen = STRATEGIES
    if args.name is not None:
        config.choose(STRATEGIES, {"name": args.name}, "strategy", "")
        chosen = {args.name: STRATEGIES[args.name]}
    if args.json:
        print(json.dumps([describe(c) for c in chosen.values()], indent=1))
        return 0
    console = Console()
    if args.name is not None:
        print(sys.modules[chosen[args.name].__module__].__doc__)
    table = Table()
    for heading in ("strategy", "what it does", "parameters (defaults)", "gain at P", "paper"):
        table.add_column(heading, overflow="fold")
    for cls in chosen.values():
        facts = describe(cls)
        parameters = ", ".join(f"{p['name']}={p['default']}" for p in facts["parameters"])
        table.add_row(
            facts["name"], facts["summary"], parameters or "-", facts["gain"], facts["paper"]
        )
    console.print(table)
    return 0


def describe(cls: type[Strategy]) -> dict[str, Any]:
    """Return the facts of one strategy."""
    default = cls()
    gain = default.gain(8) if cls.max_learners != 1 else 1.0
    return {
        "name": cls.name,
        "summary": cls.summary,
        "paper": cls.paper,
        "synchronous": cls.synchronous,
        "commits_when": cls.commits_when,
        "evaluates": cls.evaluates,
        "max_learners": cls.max_learners,
        "needs_even_world": cls.needs_even_world,
        "gain": "1" if gain == 1 else ("1/P" if gain == 1 / 8 else f"{gain:g} at P=8"),
        "parameters": [
            {"name": f.name, "type": str(f.type), "default": getattr(default, f.name)}
            for f in dataclasses.fields(cls)
        ],
    }


def options(args: argparse.Namespace) -> int:
    """List every option with its type and default."""
    tables = config.options()
    if args.table is not None and args.table not in tables:
        raise ConfigError(
            f"table {args.table!r} is not known.{nearest(args.table, tables)} "
            f"There are: {', '.join(tables)}"
        )
    for table, kinds in tables.items():
        if args.table not in (None, table):
            continue
        for name, keys in kinds.items():
            section = name.replace("[[", "[[cluster.") if name.startswith("[[") else f"[{table}]"
            print(f"\n{section}" + (f'  name = "{name}"' if name and "[" not in name else ""))
            for key, (kind, default) in keys.items():
                if dataclasses.is_dataclass(default) or isinstance(default, tuple):
                    continue  # a table of its own
                print(f"  {key} = {_shown(default)}  # {kind}")
    return 0


def _shown(default: object) -> str:
    """Write a value as TOML does."""
    if default is None:
        return "(unset)"
    return "inf" if default == math.inf else json.dumps(default)
