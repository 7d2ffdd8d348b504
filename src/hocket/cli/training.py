"""`hocket train` and `hocket simulate`: their options, their configuration, what they print."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, TypeAlias

from hocket import api, config, running
from hocket.api import Result
from hocket.cli.boundary import STOPPED
from hocket.cli.parsing import Commands, add_command, add_settings
from hocket.errors import ConfigError, require
from hocket.experiment import RuntimeOptions
from hocket.record.results import slow_learner
from hocket.record.summary import pushes_of, summary_table
from hocket.runtime.launch import engines
from hocket.runtime.launch.on_ray.cluster import RayCluster, Resources
from hocket.runtime.sim.cost import Cluster
from hocket.support.progress import printer

Tables: TypeAlias = dict[str, dict[str, Any]]

_CONFIGURATION: Final = """\
configuration:
  Every option has a default; `hocket options` lists them all. A TOML file
  (--config) sets some of them, in the tables [task] [model] [strategy]
  [optimizer] [schedule] [codec] [runtime] [cluster]. --set table.key=value
  sets one, for example

    --set strategy.sync_every=16      --set optimizer.momentum=0.9
    --set schedule.name=newbob        --set model.width=512
    --set runtime.evaluate_every=0.5  --set runtime.sharding=fixed

  A later setting overrides an earlier one, in this order: the task's own
  settings, --config, --strategy and the other flags, --set.

  optimizer.lr is the rate of the *sequential* run. The rate of each learner is
  derived from it (schedule.lr_compensation = full | sqrt | none), so that you
  can compare methods without tuning the rate again.
"""

_TRAIN: Final = """\
examples:
  hocket train exp/digits --out runs/digits        # a prepared experiment
  hocket train synthetic --out runs/alone          # one learner
  hocket train synthetic --strategy kstep --learners 2 \\
      --set strategy.sync_every=8 --out runs/k8
  hocket train --resume --out runs/k8              # after Ctrl-C or a crash
  hocket train --resume --out runs/k8 --learners 4 # ... with more learners
  hocket train synthetic --strategy kstep --learners 8 --out runs/k8 \\
      --engine ray --cpus 2                        # on a Ray cluster
"""

_SIMULATE: Final = """\
examples:
  hocket simulate synthetic --strategy allreduce --learners 8 --out runs/sim8
  hocket simulate synthetic --strategy kstep --cluster uneven.toml \\
      --out runs/uneven

a cluster file:
  [[hosts]]
  count = 15                 # this many hosts with these properties
  frames_per_s = 10000.0     # speed of each learner
  bandwidth_gbit = 1.0       # of the host's link
  jitter = 0.1               # log-normal sigma of the time of a minibatch

  [[hosts]]                  # and one host with two slow learners
  learners = 2
  frames_per_s = 2500.0

  [[slow]]                   # a straggler: rank 3 takes ten times as long
  rank = 3
  factor = 10.0
  from_s = 5.0               # from this second on

  [[deaths]]                 # a planned fault; or at_draw = 100
  rank = 7
  at_s = 12.0

  [[joins]]                  # a learner that joins the running group; it gets
  at_s = 20.0                # the next free rank; or count = 2, host = 0

  [[pauses]] (rank, at_s, for_s), latency_s and more: `hocket options cluster`
"""

# ---------------------------------------------------------------------------- the options


def add_commands(commands: Commands) -> None:
    """Describe `train` and `simulate` to the parser."""
    train = add_command(
        commands,
        "train",
        "train in real processes on this machine",
        epilog=f"{_TRAIN}\n{_CONFIGURATION}",
    )
    add_run_options(train)
    _add_engine(train)
    simulate = add_command(
        commands,
        "simulate",
        "train in the simulator, on any cluster",
        epilog=f"{_SIMULATE}\n{_CONFIGURATION}",
    )
    add_run_options(simulate)
    simulate.add_argument("--cluster", metavar="FILE", help="a cluster file (see below)")
    simulate.add_argument(
        "--replay",
        type=Path,
        metavar="REAL",
        help="repeat a real asynchronous run, exchange by exchange; REAL is its run "
        "directory, written with --set runtime.trace=true",
    )


def _add_engine(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--listen",
        metavar="ADDRESS",
        help="let other hosts join (`hocket join`); short for --set runtime.listen=ADDRESS",
    )
    add("--engine", choices=("ray",), help="let Ray place the learners on its cluster (an extra)")
    add("--cpus", type=float, metavar="X", help="--engine ray: CPUs of each (runtime.threads)")
    add("--gpus", type=float, metavar="X", help="--engine ray: GPUs of each (1 with cuda, else 0)")


def add_run_options(command: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add what `train` and `simulate` have in common."""
    add = command.add_argument
    add(
        "task",
        nargs="?",
        metavar="TASK",
        help="what to train: a folder made by `hocket prepare`, 'synthetic' or 'stream'",
    )
    add("--out", type=Path, metavar="RUN", required=True, help="the run directory to write")
    add(
        "--strategy",
        metavar="NAME",
        help="the parallel method; `hocket strategies` lists them (default: sequential)",
    )
    add(
        "--learners",
        type=int,
        metavar="N",
        help="how many learners (default: 1, or as many as the cluster has)",
    )
    add("--epochs", type=int, metavar="N", help="short for --set schedule.epochs=N")
    add("--lr", type=float, metavar="X", help="short for --set optimizer.lr=X")
    add("--device", choices=("auto", "cpu", "cuda"), help="short for --set runtime.device=NAME")
    add("--seed", type=int, metavar="S", help="short for --set runtime.seed=S")
    add(
        "--init",
        metavar="RUN_OR_FILE",
        help="start from the model of a finished run, or from a .safetensors file",
    )
    add_settings(command)
    add("--resume", action="store_true", help="continue from the last checkpoint in RUN")
    add("--quiet", action="store_true", help="show no progress")


# ---------------------------------------------------------------------------- the configuration


def tables_of(args: argparse.Namespace) -> Tables:
    """Put the configuration together: saved run or the task's own, file, flags, then --set."""
    tables = _begin_with(args)
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
    _apply_flags(args, tables)
    for setting in args.settings:
        if setting not in names:
            config.override(tables, setting)
    if "task" not in tables:
        raise ConfigError("name the task to train: a folder made by `hocket prepare`, or synthetic")
    return tables


def _begin_with(args: argparse.Namespace) -> Tables:
    """Return the settings of the run to resume or to replay, or else the task's own."""
    replayed: Path | None = getattr(args, "replay", None)
    if args.resume and replayed:
        raise ConfigError("--replay starts a run and --resume continues one: give only one of them")
    source: Path | None = args.out if args.resume else replayed
    if source is not None:
        return config.read_run(source)
    if args.task is None:
        return {}
    tables = config.defaults(args.task, args.strategy, _model_of(args))
    if tables and not args.quiet:
        print(f"settings: {Path(args.task) / config.DEFAULTS}, then the command line")
    return tables


def _model_of(args: argparse.Namespace) -> str | None:
    """Return the kind of model that the command line asks for, if it does."""
    asked: Tables = config.read(args.config) if args.config else {}
    for setting in args.settings:
        if setting.partition("=")[0].strip() == "model.name":
            config.override(asked, setting)
    name = asked.get("model", {}).get("name")
    return None if name is None else str(name)


def _apply_flags(args: argparse.Namespace, tables: Tables) -> None:
    listen: str | None = getattr(args, "listen", None)
    require(listen != "", "--listen must be an address of this host, not empty")
    flags = {
        ("runtime", "learners"): args.learners,
        ("runtime", "seed"): args.seed,
        ("runtime", "device"): args.device,
        ("runtime", "listen"): listen,
        ("runtime", "init"): None if args.init is None else str(Path(args.init).resolve()),
        ("schedule", "epochs"): args.epochs,
        ("optimizer", "lr"): args.lr,
    }
    for (name, key), value in flags.items():
        if value is not None:
            tables.setdefault(name, {})[key] = value


# ---------------------------------------------------------------------------- running


def _train(args: argparse.Namespace) -> int:
    tables = tables_of(args)
    if "cluster" in tables and args.resume:
        raise ConfigError(
            f"the run in {args.out} was started by `hocket simulate`: resume it with that command"
        )
    if "cluster" in tables:
        raise ConfigError("[cluster] has an effect in `hocket simulate` only: leave it out")
    experiment = config.build_experiment(tables)
    shown = {"resume": args.resume, "progress": not args.quiet}
    with _ray_cluster(args, experiment.options) as cluster:
        result = running.run_real(experiment, args.out, cluster=cluster, **shown)
    return _finish(result, "train", experiment.strategy.synchronous)


def _ray_cluster(
    args: argparse.Namespace, options: RuntimeOptions
) -> AbstractContextManager[RayCluster | None]:
    """Connect to the cluster that is to place the learners; None: they are started here."""
    if args.engine is None:
        for name in ("cpus", "gpus"):
            require(
                getattr(args, name) is None,
                f"--{name} has no effect without --engine ray: leave it out",
            )
        return nullcontext()
    engines.refuse_several("hocket train --engine ray")
    cpus = options.threads if args.cpus is None else args.cpus
    gpus = int(options.device == "cuda") if args.gpus is None else args.gpus
    return RayCluster.connected(Resources(float(cpus), float(gpus)))


def _simulate(args: argparse.Namespace) -> int:
    tables = tables_of(args)
    asked = _asked_for(args)
    cluster = _cluster(args, tables, asked)
    tables.pop("cluster", None)
    if asked not in (None, cluster.num_learners):
        raise ConfigError(
            f"you asked for {asked} learners, but the cluster has {cluster.num_learners}: give "
            "a --cluster of that size, or leave the number out"
        )
    tables.setdefault("runtime", {})["learners"] = cluster.num_learners
    experiment = config.build_experiment(tables)
    result = running.run_simulated(
        experiment,
        cluster,
        args.out,
        resume=args.resume,
        progress=not args.quiet,
        replay=args.replay,
    )
    return _finish(result, "simulate", experiment.strategy.synchronous)


def _asked_for(args: argparse.Namespace) -> int | None:
    """Return the number of learners given on the command line, if any."""
    given: Tables = {}
    for setting in args.settings:
        config.override(given, setting)
    asked = given.get("runtime", {}).get("learners", args.learners)
    return None if asked is None else _num_learners(asked)


def _num_learners(asked: Any) -> int:
    """Return the number of learners that was asked for, if it is one."""
    whole = isinstance(asked, int) and not isinstance(asked, bool)
    require(whole, f"runtime.learners must be a whole number, not {asked!r}")
    require(asked >= 1, f"learners must be at least 1, not {asked}")
    return int(asked)


def _cluster(args: argparse.Namespace, tables: Tables, asked: int | None) -> Cluster:
    """Return the cluster of --cluster, else of the [cluster] table, else one of equal learners."""
    set_by_hand = [s for s in args.settings if s.strip().startswith("cluster.")]
    if args.cluster and set_by_hand:
        raise ConfigError(
            f"--set {set_by_hand[0]} has no effect together with --cluster: edit the file instead"
        )
    if args.cluster:
        return api.open_cluster(args.cluster)
    if "cluster" not in tables:
        return Cluster.even(asked or _num_learners(tables.get("runtime", {}).get("learners", 1)))
    cluster = config.build_cluster(tables["cluster"])
    plain = not (cluster.slow or cluster.pauses or cluster.deaths or cluster.joins)
    if asked and plain and len(cluster.hosts) == 1 and cluster.hosts[0].learners == 1:
        host = dataclasses.replace(cluster.hosts[0], count=asked)
        return dataclasses.replace(cluster, hosts=(host,))
    return cluster


# ---------------------------------------------------------------------------- printing


def _finish(result: Result, command: str, synchronous: bool) -> int:
    """Print the result of the run; return the exit status."""
    console = printer()
    console.print(summary_table(result))
    console.print(
        f"{result.frames:,} frames in {result.time_s:.2f} s ({result.clock} clock) = "
        f"{result.frames_per_s:,.0f} frames/s; evaluation and checkpoints {result.aside_s:.2f} s"
    )
    for line in pushes_of(result):
        console.print(line)
    if (slow := slow_learner(result.learners, synchronous=synchronous)) is not None:
        console.print(slow)
    if result.stopped:
        console.print(f"stopped; continue with: hocket {command} --resume --out {result.run_dir}")
        return STOPPED
    console.print(f"model and record: {result.run_dir}")
    return 0


COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "train": _train,
    "simulate": _simulate,
}
