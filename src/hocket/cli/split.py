"""`hocket split`: where a task's model would be cut into stages, and what each of them costs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

import torch
from rich.table import Table

from hocket import config
from hocket.cli import training
from hocket.cli.parsing import Commands, add_command, add_settings
from hocket.errors import ConfigError
from hocket.experiment import RuntimeOptions
from hocket.models.stages import Profile, check_cut, counted, layers_of, measured, stages_of
from hocket.runtime.shared.stages.cutting import cut_of, profiled
from hocket.strategies import Pipeline
from hocket.support.progress import printer
from hocket.support.text import size_of

_SPLIT: Final = """\
Shows where a task's model would be cut into consecutive stages, one for each
rank of strategy `pipeline`, or of a learner that is a group
(runtime.ranks_per_learner): what they cost on a minibatch, what they hold, and
what goes from one to the next. The cut is the one whose slowest stage is
fastest, by measured time, or by counted operations (--count), which are the
same on every machine; --cut tries another.

examples:
  hocket split synthetic --stages 2
  hocket split exp/digits --stages 4 --set model.width=1024
  hocket split synthetic --stages 3 --cut 2,4
"""


def add_commands(commands: Commands) -> None:
    """Describe the command to the parser."""
    command = add_command(commands, "split", "show how a model is cut into stages", _SPLIT)
    add = command.add_argument
    add("task", metavar="TASK", help="as of `hocket train`")
    add("--stages", type=int, metavar="S", required=True, help="how many stages")
    add("--cut", metavar="N,N", help="the first layer of each stage but the first")
    add("--count", action="store_true", help="count operations; measure nothing")
    add_settings(command)


def _split(args: argparse.Namespace) -> int:
    given: dict[str, Any] = {
        "strategy": "pipeline",
        "learners": None,
        "seed": None,
        "device": None,
        "init": None,
    }
    given |= {"epochs": None, "lr": None, "resume": False, "quiet": True}
    tables = training.tables_of(argparse.Namespace(**vars(args) | given))
    torch.set_num_threads(1)  # as a learner has, unless runtime.threads says otherwise
    cut = None if args.cut is None else _numbers(args.cut)
    strategy = Pipeline(stages=args.stages, cut=cut)
    seed = config.build(RuntimeOptions, tables.get("runtime", {}), "[runtime]").seed
    cost = counted if args.count else measured()
    model, found = profiled(config.build_task(tables), seed, cost)
    layers = layers_of(model)
    cut = cut_of(model, found, strategy.stages) if cut is None else cut
    check_cut(cut, layers, strategy.stages)
    printer().print(_table(model, cut, found, counts=args.count))
    count = strategy.stages
    printer().print(f"--set strategy.stages={count} --set strategy.cut={list(cut)}")
    printer().print(f"or --set runtime.ranks_per_learner={count} --set runtime.cut={list(cut)}")
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(one) for one in text.split(",") if one.strip())
    except ValueError:
        raise ConfigError(
            f"--cut takes numbers of layers such as 2,4, not {text!r}: each stage's first but the "
            "first one's"
        ) from None


def _table(model: torch.nn.Module, cut: tuple[int, ...], found: Profile, *, counts: bool) -> Table:
    layers, whole = layers_of(model), sum(found.costs)
    stages = stages_of(cut, len(layers))
    table = Table(title=f"{len(layers)} layers in {len(stages)} stages")
    headings = ("stage", "layers", "operations" if counts else "time", "share")
    for heading in (*headings, "parameters", "size", "sends up"):
        table.add_column(heading, justify="right")
    for number, held in enumerate(stages, 1):
        cost = sum(found.costs[n] for n in held)
        size = sum(layers[n].num_trained for n in held)
        first, last = layers[held.start], layers[held.stop - 1]
        kinds = f"{type(first.module).__name__}"
        if len(held) > 1:
            kinds += f" to {type(last.module).__name__}"
        table.add_row(
            str(number),
            f"{held.start} to {held.stop - 1} ({kinds})",
            f"{cost:,.0f}" if counts else f"{1e3 * cost:.3f} ms",
            f"{cost / whole:.1%}" if whole else "",
            f"{size:,}",
            size_of(4 * size),
            size_of(found.bytes_out[held.stop - 1]) if number < len(stages) else "",
        )
    return table


COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {"split": _split}
