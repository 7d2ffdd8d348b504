"""The command line. Thin: it reads options, calls the library, and prints what comes back."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hocket import api, config
from hocket.api import Result
from hocket.cli import listing, speech
from hocket.errors import ConfigError, HocketError, require
from hocket.record.results import slow_learner
from hocket.report import page
from hocket.report.runs import read_run
from hocket.reproduce import command as reproduce
from hocket.runtime.sim.cost import Cluster
from hocket.support.files import NO_ROOM

STOPPED = 130  # as a shell reports Ctrl-C

_EXPLAIN = """\
configuration:
  Every option has a default. A TOML file (--config) sets some, in the tables
  [task] [model] [strategy] [optimizer] [schedule] [codec] [runtime] [cluster];
  --set table.key=value sets one, for example

    --set strategy.sync_every=16      --set optimizer.momentum=0.9
    --set schedule.name=newbob        --set model.width=512
    --set runtime.evaluate_every=0.5  --set runtime.sharding=fixed

  optimizer.lr is the rate of the *sequential* run; the rate of each learner is derived from it
  (schedule.lr_compensation = full | sqrt | none), so that methods can be compared.
"""

_TRAIN = """\
examples:
  hocket train exp/digits --out runs/digits              # a prepared speech experiment
  hocket train synthetic --out runs/alone
  hocket train synthetic --strategy kstep --learners 2 --set strategy.sync_every=8 --out runs/k8
  hocket train --resume --out runs/k8                    # after Ctrl-C or a crash
  hocket train --resume --out runs/k8 --learners 4       # ... with more learners
"""

_SIMULATE = """\
examples:
  hocket simulate synthetic --strategy allreduce --learners 8 --out runs/sim8
  hocket simulate synthetic --strategy kstep --cluster uneven.toml --out runs/uneven

a cluster file:
  [[hosts]]
  count = 15                 # hosts like this
  frames_per_s = 10000.0     # of each learner
  bandwidth_gbit = 1.0       # of its link
  jitter = 0.1               # log-normal sigma of a minibatch's time

  [[hosts]]                  # and one host with two slow learners
  learners = 2
  frames_per_s = 2500.0

  [[slow]]                   # a straggler: rank 3 takes ten times as long from second 5 on
  rank = 3
  factor = 10.0
  from_s = 5.0

  [[deaths]]                 # a planned fault; or at_draw = 100
  rank = 7
  at_s = 12.0

  [[pauses]] (rank, at_s, for_s), latency_s and more: `hocket options cluster`
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="hocket",
        description="Train one acoustic model on many learners: in real processes, or in a "
        "simulator that tells how long a cluster would take.",
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    train = _command(commands, "train", "train in real processes on this machine", _TRAIN)
    _run_options(train)
    simulate = _command(commands, "simulate", "train in the simulator, on any cluster", _SIMULATE)
    _run_options(simulate)
    simulate.add_argument("--cluster", metavar="FILE", help="a cluster file (see below)")
    simulate.add_argument(
        "--replay",
        type=Path,
        metavar="REAL",
        help="play a real asynchronous run again, exchange by exchange (needs runtime.trace)",
    )
    speech.add_commands(commands)
    report = commands.add_parser("report", help="one HTML page that compares finished runs")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the first is the base")
    report.add_argument("--out", type=Path, required=True, metavar="PAGE.html")
    report.add_argument(
        "--target-loss", type=float, metavar="X", help="compare the time to this dev loss, too"
    )
    report.add_argument("--title", default="Hocket: runs compared")
    reproduce.add_command(commands)
    listing = commands.add_parser("strategies", help="list the parallel methods")
    listing.add_argument("name", nargs="?", help="show one in full")
    listing.add_argument("--json", action="store_true", help="for programs")
    every = commands.add_parser("options", help="list every option with its type and default")
    every.add_argument("table", nargs="?", help="one table only, for example schedule")
    demo = commands.add_parser("demo", help="from audio to word error rates, with 1 and 2 learners")
    demo.add_argument(
        "which",
        nargs="?",
        choices=["speech", "synthetic"],
        default="speech",
        help="synthetic: no audio, but real and simulated learners side by side",
    )
    demo.add_argument("--out", type=Path, metavar="DIR", help="default runs/demo or runs/synthetic")
    return top


def _command(commands: Any, name: str, text: str, examples: str) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text.capitalize() + ".",
        epilog=f"{examples}\n{_EXPLAIN}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return added


def _run_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "task",
        nargs="?",
        metavar="TASK",
        help="what to train: a folder made by `hocket prepare`, or 'synthetic'",
    )
    add("--out", type=Path, metavar="RUN", required=True, help="the run directory")
    add("--strategy", metavar="NAME", help="the parallel method (see `hocket strategies`)")
    add(
        "--learners",
        type=int,
        metavar="N",
        help="how many learners (default 1, or what the cluster has)",
    )
    add("--epochs", type=int, metavar="N", help="short for --set schedule.epochs=N")
    add("--lr", type=float, metavar="X", help="short for --set optimizer.lr=X")
    add("--device", choices=("auto", "cpu", "cuda"), help="short for --set runtime.device=NAME")
    add("--seed", type=int, metavar="S", help="short for --set runtime.seed=S")
    add("--config", type=Path, metavar="FILE", help="a TOML file, or a run's config.json")
    add(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        dest="settings",
        help="set one option (`hocket options` lists them all)",
    )
    add("--resume", action="store_true", help="go on from the last checkpoint in RUN")
    add("--quiet", action="store_true", help="no progress")


def tables_of(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Put the configuration together: saved run or the task's own, file, flags, then --set."""
    tables: dict[str, dict[str, Any]] = {}
    replayed: Path | None = getattr(args, "replay", None)
    if args.resume and replayed:
        raise ConfigError("--replay begins a run, --resume goes on with one: give one of them")
    source: Path | None = args.out if args.resume else replayed
    if source is not None:
        tables = config.read_run(source)
    elif args.task is not None:
        tables = config.defaults(args.task)
        if tables and not args.quiet:
            print(f"settings: {Path(args.task) / config.DEFAULTS}, then the command line")
    if args.config:
        config.merge(tables, config.read(args.config))
    if args.task is not None:
        chosen = config.task_table(args.task)
        config.rename(tables, "task", chosen["name"])
        tables["task"] |= chosen
    if args.strategy is not None:
        config.rename(tables, "strategy", args.strategy)
    # Names first: choosing another schedule drops the keys of the one before, not the flags here.
    names = [s for s in args.settings if s.partition("=")[0].strip().endswith(".name")]
    for setting in names:
        config.override(tables, setting)
    flags = {
        ("runtime", "learners"): args.learners,
        ("runtime", "seed"): args.seed,
        ("runtime", "device"): args.device,
        ("schedule", "epochs"): args.epochs,
        ("optimizer", "lr"): args.lr,
    }
    for (name, key), value in flags.items():
        if value is not None:
            tables.setdefault(name, {})[key] = value
    for setting in args.settings:
        if setting not in names:
            config.override(tables, setting)
    if "task" not in tables:
        raise ConfigError("name the task to train: a folder made by `hocket prepare`, or synthetic")
    return tables


def _train(args: argparse.Namespace) -> int:
    tables = tables_of(args)
    if "cluster" in tables and args.resume:
        raise ConfigError(f"the run in {args.out} was begun by `hocket simulate`: resume it there")
    if "cluster" in tables:
        raise ConfigError("[cluster] can only take effect in `hocket simulate`: leave it out")
    experiment = config.build_experiment(tables)
    result = api.run_real(experiment, args.out, resume=args.resume, progress=not args.quiet)
    return _finish(result, "train")


def _simulate(args: argparse.Namespace) -> int:
    tables = tables_of(args)
    asked = _asked_for(args)
    cluster = _cluster(args, tables, asked)
    tables.pop("cluster", None)
    if asked not in (None, cluster.num_learners):
        raise ConfigError(
            f"{asked} learners contradict the cluster, which has {cluster.num_learners}: give "
            "a --cluster of that size, or leave the number out"
        )
    tables.setdefault("runtime", {})["learners"] = cluster.num_learners
    experiment = config.build_experiment(tables)
    result = api.run_simulated(
        experiment,
        cluster,
        args.out,
        resume=args.resume,
        progress=not args.quiet,
        replay=args.replay,
    )
    return _finish(result, "simulate")


def _asked_for(args: argparse.Namespace) -> int | None:
    """The number of learners given on the command line, if any."""
    given: dict[str, dict[str, Any]] = {}
    for setting in args.settings:
        config.override(given, setting)
    asked = given.get("runtime", {}).get("learners", args.learners)
    require(asked is None or asked >= 1, f"learners must be at least 1, not {asked}")
    return None if asked is None else int(asked)


def _cluster(
    args: argparse.Namespace, tables: dict[str, dict[str, Any]], asked: int | None
) -> Cluster:
    """The cluster of --cluster, else of the [cluster] table, else so many equal learners."""
    set_by_hand = [s for s in args.settings if s.strip().startswith("cluster.")]
    if args.cluster and set_by_hand:
        raise ConfigError(
            f"--set {set_by_hand[0]} cannot take effect beside --cluster: edit the file"
        )
    if args.cluster:
        return api.open_cluster(args.cluster)
    if "cluster" not in tables:
        return Cluster.even(asked or tables.get("runtime", {}).get("learners", 1))
    cluster = config.build_cluster(tables["cluster"])
    plain = not (cluster.slow or cluster.pauses or cluster.deaths)
    if asked and plain and len(cluster.hosts) == 1 and cluster.hosts[0].learners == 1:
        host = dataclasses.replace(cluster.hosts[0], count=asked)
        return dataclasses.replace(cluster, hosts=(host,))
    return cluster


def _finish(result: Result, command: str) -> int:
    console = Console(soft_wrap=True)
    console.print(summary_table(result))
    console.print(
        f"{result.frames:,} frames in {result.time_s:.2f} s ({result.clock} clock) = "
        f"{result.frames_per_s:,.0f} frames/s; evaluation and checkpoints {result.aside_s:.2f} s"
    )
    if (slow := slow_learner(result)) is not None:
        console.print(slow)
    if result.stopped:
        console.print(f"stopped; continue with: hocket {command} --resume --out {result.run_dir}")
        return STOPPED
    console.print(f"model and record: {result.run_dir}")
    return 0


def summary_table(result: Result) -> Table:
    """Return what a run came to, as a table."""
    title = f"dev loss {result.loss:.4f}, frame accuracy {result.accuracy:.4f}"
    table = Table(title="not evaluated yet" if math.isnan(result.loss) else title)
    for heading in ("learner", "frames", "sent", "computing"):
        table.add_column(heading, justify="right")
    shown = result.learners if len(result.learners) <= 16 else result.learners[:8]
    for one in shown:
        table.add_row(
            str(one.rank) if one.lost_s is None else f"{one.rank} (lost at {one.lost_s:.1f} s)",
            f"{one.frames:,}",
            _size(one.bytes_sent),
            f"{one.utilisation:.0%}",
        )
    if len(shown) < len(result.learners):
        table.add_row("...", "", "", "")
    return table


def _size(num_bytes: int) -> str:
    units = ("B", "kB", "MB", "GB", "TB")
    power = min(len(str(num_bytes)) - 1, 14) // 3
    return f"{num_bytes / 1000**power:.1f} {units[power]}"


def _report(args: argparse.Namespace) -> int:
    records = [read_run(path) for path in args.runs]
    page.write_page(args.out, args.title, records, target_loss=args.target_loss)
    print(f"{len(records)} runs compared in {args.out}")
    if not any(record.stretches for record in records):
        print("no timelines: train with --set runtime.trace=true to see what each learner did")
    return 0


def _demo(args: argparse.Namespace) -> int:
    if args.which == "synthetic":
        from hocket.cli import demo_synthetic

        return demo_synthetic.run(args.out or Path("runs/synthetic"))
    try:
        from hocket.cli import demo
    except ImportError as error:
        raise speech.needs(error) from error
    return demo.run(args.out or Path("runs/demo"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors a user can mend are printed without a traceback."""
    args = parser().parse_args(argv)
    run = {
        "train": _train,
        "simulate": _simulate,
        "strategies": listing.strategies,
        "demo": _demo,
    }
    run |= {"options": listing.options, "report": _report, "reproduce": reproduce.run}
    run |= speech.COMMANDS
    try:
        return run[args.command](args)
    except HocketError as error:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", []))
        print(f"hocket: {error}{notes}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except BrokenPipeError:  # `hocket ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a full disk, a lost mount
        where = f" of {error.filename}" if error.filename else ""
        full = f"no room on the disk{where}: free some and give the same command again"
        told = full if error.errno in NO_ROOM else error
        print(f"hocket: {told}; what was finished or checkpointed is kept", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("hocket: ended at once; what was finished or checkpointed is kept", file=sys.stderr)
        return STOPPED
