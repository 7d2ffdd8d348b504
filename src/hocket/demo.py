"""`make demo`: the synthetic task alone, on two real learners, and on a simulated cluster."""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hocket import api
from hocket.api import Result
from hocket.data.synthetic import Synthetic
from hocket.optim import SGD, Exponential
from hocket.runtime.cost import Cluster, Host, Slow

TASK = Synthetic(num_frames=200_000, dev_frames=10_000)
OPTIMIZER = SGD(lr=0.3)
SCHEDULE = Exponential(epochs=4, final_factor=0.05)
EVEN = Cluster((Host(count=16, frames_per_s=30_000, bandwidth_gbit=1.0, jitter=0.1),))
UNEVEN = Cluster(EVEN.hosts, slow=(Slow(rank=5, factor=4.0),))


def run(out: Path) -> int:
    """Train in several ways and print one table."""
    if out.exists():
        shutil.rmtree(out)
    console = Console()
    floor = TASK.bayes_error("dev")
    console.print(
        f"Synthetic frames, {TASK.num_classes} overlapping classes. The best any model can do: "
        f"frame accuracy {1 - floor:.3f} (Bayes).\n"
    )
    rows: list[tuple[str, str, Result, Result]] = []
    alone = _real("sequential", 1, out)
    rows.append(("sequential", "this machine", alone, alone))
    for strategy in ("allreduce", "kstep"):
        rows.append((strategy, "this machine", _real(strategy, 2, out), alone))
    virtual = _simulated("sequential", Cluster((Host(frames_per_s=30_000, jitter=0.1),)), out, "1")
    rows.append(("sequential", "simulated host", virtual, virtual))
    for strategy in ("allreduce", "kstep"):
        even = _simulated(strategy, EVEN, out, "16")
        rows.append((strategy, "simulated, 1 Gbit/s", even, virtual))
        uneven = _simulated(strategy, UNEVEN, out, "16-uneven")
        rows.append((strategy, "... one learner 4 x slower", uneven, virtual))
    console.print(_table(rows))
    console.print(
        f"Speed-up is in frames/s against one learner of the same world, evaluation left out.\n"
        f"Runs, metrics and TensorBoard events: {out}/"
    )
    return 0


def _real(strategy: str, learners: int, out: Path) -> Result:
    return api.train(
        TASK,
        strategy=strategy,
        learners=learners,
        optimizer=OPTIMIZER,
        schedule=SCHEDULE,
        out=out / f"{strategy}-{learners}",
    )


def _simulated(strategy: str, cluster: Cluster, out: Path, name: str) -> Result:
    return api.simulate(
        TASK,
        strategy=strategy,
        cluster=cluster,
        optimizer=OPTIMIZER,
        schedule=SCHEDULE,
        out=out / f"{strategy}-simulated-{name}",
    )


def _table(rows: list[tuple[str, str, Result, Result]]) -> Table:
    table = Table()
    table.add_column("strategy")
    table.add_column("where")
    for heading in ("learners", "time", "speed-up", "computing", "dev loss", "accuracy"):
        table.add_column(heading, justify="right")
    for strategy, where, result, base in rows:
        busy = [one.utilisation for one in result.learners]
        table.add_row(
            strategy,
            where,
            str(len(result.learners)),
            f"{result.time_s:.2f} s",
            f"{result.frames_per_s / base.frames_per_s:.2f}",
            f"{sum(busy) / len(busy):.0%}",
            f"{result.loss:.4f}",
            f"{result.accuracy:.4f}",
        )
    return table
