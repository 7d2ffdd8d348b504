"""`hocket demo synthetic`: one learner, two real ones and a simulated cluster compared."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from rich import box
from rich.table import Table

from hocket import api
from hocket.api import Result
from hocket.data.synthetic import Synthetic
from hocket.errors import ConfigError
from hocket.models.dnn import DNN
from hocket.optim import SGD, Exponential
from hocket.record.rundir import RunDirectory
from hocket.runtime.sim.cost import Cluster, Host, Slow
from hocket.support.progress import printer

MARK: Final = ".demo"  # in a folder that a demo has made
TASK = Synthetic(
    num_frames=80_000, dev_frames=10_000, batch_frames=128, model=DNN(layers=3, width=512)
)
OPTIMIZER = SGD(lr=0.1)
SCHEDULE = Exponential(epochs=3, final_factor=0.05)
TARGET_LOSS = 0.95
ONE = Cluster((Host(frames_per_s=10_000, jitter=0.1),))
EIGHT = Cluster((Host(count=8, frames_per_s=10_000, bandwidth_gbit=1.0, jitter=0.1),))
UNEVEN = Cluster(EIGHT.hosts, slow=(Slow(rank=5, factor=4.0),))


def run(out: Path) -> int:
    """Train in several ways and print one table."""
    opened(out)
    console = printer(soft_wrap=False)
    floor = TASK.bayes_error("dev")
    console.print(
        f"Synthetic frames, {TASK.num_classes} overlapping classes. The best possible frame "
        f"accuracy is {1 - floor:.3f} (Bayes).\n"
    )
    rows: list[tuple[str, str, Result, Result]] = []
    alone = _real("sequential", 1, out)
    rows.append(("sequential", "real", alone, alone))
    for strategy in ("allreduce", "kstep"):
        rows.append((strategy, "real", _real(strategy, 2, out), alone))
    virtual = _simulated("sequential", ONE, out, "1")
    rows.append(("sequential", "simulated", virtual, virtual))
    for strategy in ("allreduce", "kstep"):
        even = _simulated(strategy, EIGHT, out, "8")
        rows.append((strategy, "simulated", even, virtual))
        uneven = _simulated(strategy, UNEVEN, out, "8-uneven")
        rows.append((strategy, "slow one", uneven, virtual))
    console.print(_table(rows))
    console.print(
        "real: processes on this machine. simulated: virtual time, hosts joined by\n"
        "1 Gbit/s. slow one: simulated, and one learner takes 4 times as long.\n"
        "speed-up: frames/s compared with one learner of the same world, without\n"
        f"evaluation. to {TARGET_LOSS}: compared by the time until the dev loss is so low.\n"
        "busy: share of the time spent computing gradients.\n"
        f"Runs, metrics and TensorBoard events: {out}/"
    )
    return 0


def _real(strategy: str, learners: int, out: Path) -> Result:
    path = cleared(out / f"{strategy}-{learners}")
    return whole(
        api.train(
            TASK,
            strategy=strategy,
            learners=learners,
            optimizer=OPTIMIZER,
            schedule=SCHEDULE,
            evaluate_every=0.25,
            out=path,
        )
    )


def _simulated(strategy: str, cluster: Cluster, out: Path, name: str) -> Result:
    path = cleared(out / f"{strategy}-simulated-{name}")
    return whole(
        api.simulate(
            TASK,
            strategy=strategy,
            cluster=cluster,
            optimizer=OPTIMIZER,
            schedule=SCHEDULE,
            evaluate_every=0.25,
            out=path,
        )
    )


def _ratio(base: float | None, time_s: float | None) -> str:
    return f"{base / time_s:.2f}" if base and time_s else "-"


def _table(rows: list[tuple[str, str, Result, Result]]) -> Table:
    table = narrow_table()
    table.add_column("strategy", no_wrap=True)
    table.add_column("world", no_wrap=True)
    for heading in ("P", "time", "speed-up", f"to {TARGET_LOSS}", "busy", "dev loss", "acc."):
        table.add_column(heading, justify="right", no_wrap=True)
    for strategy, world, result, base in rows:
        busy = [one.utilisation for one in result.learners]
        table.add_row(
            strategy,
            world,
            str(len(result.learners)),
            f"{result.time_s:.1f} s",
            f"{result.frames_per_s / base.frames_per_s:.2f}",
            _ratio(base.time_to(TARGET_LOSS), result.time_to(TARGET_LOSS)),
            f"{sum(busy) / len(busy):.0%}",
            f"{result.loss:.3f}",
            f"{result.accuracy:.3f}",
        )
    return table


# ---------------------------------------------------------------------------- both demos


def opened(out: Path) -> Path:
    """Make the folder of a demo, or take up that of an earlier one; no other is touched."""
    if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        raise ConfigError(
            f"{out} is not empty, and no demo made it: choose another --out, or delete it yourself"
        )
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
    return out


def cleared(path: Path) -> Path:
    """Remove the run of an earlier demo; a folder that no demo made, or no run, is left alone."""
    if (path.parent / MARK).exists() and RunDirectory(path).is_run():
        shutil.rmtree(path)
    return path


def whole(result: Result) -> Result:
    """Return the result of a run that was not stopped; else end the demo as Ctrl-C does."""
    if result.stopped:
        raise KeyboardInterrupt
    return result


def narrow_table() -> Table:
    """Return a table without lines at its sides, for terminals of 80 columns."""
    return Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
