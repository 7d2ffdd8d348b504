"""`hocket submit`: its options, and what can be checked before a job waits in a queue."""

from __future__ import annotations

import argparse
import json
import os
import secrets
from itertools import count
from pathlib import Path
from typing import Final

from hocket import config
from hocket.cli import training
from hocket.cli.cluster import scheduler
from hocket.cli.cluster.job import Training
from hocket.cli.parsing import Commands, add_command
from hocket.errors import ConfigError, require
from hocket.experiment import Experiment
from hocket.record.opening import refuse_to_overwrite
from hocket.record.rundir import RunDirectory

_SUBMIT: Final = """\
Submits a run of `hocket train` as a job of Slurm. It takes the options of that
command, and what the job is to get. Before the limit of time, or when Slurm
warns the job (SIGUSR1, SIGUSR2, or SIGTERM of a preemption), the run stops with
a checkpoint, the job goes back into the queue, and the run goes on from there.
scancel ends it for good, with a checkpoint, too.

The job is given to Slurm by submitit: pip install 'hocket[slurm]'.
"""

_EXAMPLES: Final = """\
examples:
  hocket submit --slurm --time 12:00:00 --partition cpu exp/digits \\
      --strategy kstep --learners 16 --out /shared/runs/k16
  hocket submit --slurm --time 2-0 --nodes 4 --gpus 8 exp/digits \\
      --strategy bmuf --learners 32 --out /shared/runs/b32
  hocket submit --slurm --time 60 exp/digits --out /shared/runs/one --dry-run
  hocket submit --slurm --time 60 --resume --out /shared/runs/one
  hocket submit --local --time 60 synthetic --out runs/trial   # without Slurm

Each node runs one launcher, which starts the learners of its node. RUN must be
on a file system that all nodes share; beside it, in RUN.jobs, are the logs, the
configuration as it was submitted, and the secret of a run on several nodes.
`hocket watch RUN` shows how it stands.
"""


def add_commands(commands: Commands) -> None:
    """Describe `submit` to the parser."""
    command = add_command(
        commands, "submit", "train as a job of Slurm, which is resumed", _SUBMIT, _EXAMPLES
    )
    where = command.add_mutually_exclusive_group(required=True)
    where.add_argument("--slurm", action="store_true", help="submit to the Slurm of this cluster")
    where.add_argument(
        "--local", action="store_true", help="no Slurm: a job on this machine, to try things out"
    )
    _add_resources(command.add_argument_group("what the job gets"))
    training.add_run_options(command.add_argument_group("what is trained: as in `hocket train`"))


def _add_resources(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--time",
        required=True,
        metavar="T",
        help="the longest stretch: minutes, 12:00:00 or days-hours; a run may take several",
    )
    add("--nodes", type=int, metavar="N", help="how many nodes (1)")
    add("--cpus", type=int, metavar="N", help="cores of each node (one per thread of its learners)")
    add("--gpus", type=int, default=0, metavar="N", help="GPUs of each node (none)")
    add("--mem", metavar="SIZE", help="memory of each node, such as 32G")
    add("--partition", metavar="NAME", help="where to run")
    add("--account", metavar="NAME", help="who pays")
    add("--qos", metavar="NAME", help="the quality of service")
    add(
        "--warn",
        type=int,
        default=120,
        metavar="S",
        help="stop so many seconds before the limit: a minibatch and a checkpoint must fit (120)",
    )
    add(
        "--stretches",
        type=int,
        default=100,
        metavar="N",
        help="how often the limit of time may be reached before the job is given up (100)",
    )
    add(
        "--setup",
        action="append",
        default=[],
        metavar="COMMAND",
        help="a shell command before all else: 'module load cuda'; may be given several times",
    )
    add(
        "--sbatch",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a further option of sbatch: constraint=avx512; may be given several times",
    )
    add("--dry-run", action="store_true", help="print the batch script and submit nothing")


def run(args: argparse.Namespace) -> int:
    """Check everything, then submit the job or print its script."""
    experiment = config.build_experiment(training.tables_of(args))
    nodes = args.nodes or 1
    resources = _resources(args, _cores(experiment, nodes))
    if args.local:
        _refuse_what_only_slurm_has(args)
    _check_run(args, experiment, nodes)
    path = args.out.absolute()
    folder = path.with_name(f"{path.name}.jobs")
    token = folder / "token" if nodes > 1 else None
    if args.dry_run:
        print(scheduler.script(resources, Training(path, folder / "1.json"), folder))
        return 0
    job = Training(path, _keep_settings(folder, experiment), token, args.quiet)
    if token is not None:
        _make_secret(token)
    number = scheduler.submit(resources, job, folder, local=args.local)
    print(f"job {number} trains {args.out}; its log is {folder / f'{number}_0_log.out'}")
    print(f"see how it stands: hocket watch {args.out}")
    ends = f"kill {number}" if args.local else f"scancel {number}"
    print(f"end it for good, with a checkpoint: {ends}")
    return 0


def _cores(experiment: Experiment, nodes: int) -> int:
    """Return how many cores the learners of the fullest node use."""
    ranks = experiment.on_hosts(nodes).num_processes
    return -(-ranks // nodes) * experiment.options.threads


def _resources(args: argparse.Namespace, cores: int) -> scheduler.JobResources:
    return scheduler.JobResources(
        time_min=scheduler.minutes(args.time),
        nodes=1 if args.nodes is None else args.nodes,
        cpus=cores if args.cpus is None else args.cpus,
        gpus=args.gpus,
        memory=args.mem,
        partition=args.partition,
        account=args.account,
        qos=args.qos,
        warn_s=args.warn,
        stretches=args.stretches,
        setup=tuple(args.setup),
        more=scheduler.further(args.sbatch),
    )


def _refuse_what_only_slurm_has(args: argparse.Namespace) -> None:
    for name in ("nodes", "cpus", "mem", "partition", "account", "qos", "sbatch", "dry_run"):
        if getattr(args, name):
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} has no effect with --local: leave it out, or use --slurm")


def _check_run(args: argparse.Namespace, experiment: Experiment, nodes: int) -> None:
    """Refuse now what would be refused after hours in the queue."""
    learners = experiment.options.learners
    require(
        learners >= nodes,
        f"{learners} learner(s) cannot be divided among {nodes} nodes: give --learners {nodes} or "
        "more, or use fewer nodes",
    )
    run = RunDirectory(args.out)
    if not args.resume:
        refuse_to_overwrite(run)
    elif not run.checkpoints():
        raise ConfigError(f"{args.out} has no checkpoint to resume from: leave --resume out")


def _keep_settings(folder: Path, experiment: Experiment) -> Path:
    """Write the configuration down: what is edited while the job waits does not change it."""
    text = json.dumps(config.record(experiment), indent=1) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        path = folder / f"{number}.json"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            continue
        return path
    raise AssertionError("there is always another number")


def _make_secret(path: Path) -> None:
    """Make a token that only the owner can read, unless an earlier job has made it."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
