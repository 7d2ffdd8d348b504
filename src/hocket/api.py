"""`hocket.train` and `hocket.simulate`: the same experiment in either world."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hocket import config
from hocket.core.codec import Codec
from hocket.core.strategy import Strategy
from hocket.core.task import Task
from hocket.experiment import Experiment
from hocket.optim import Optimizer, Schedule
from hocket.record.results import LearnerReport, Result
from hocket.running import (
    engine_of as engine_of,
    notes as notes,
    rate_note as rate_note,
    run_real as run_real,
    run_simulated as run_simulated,
)
from hocket.runtime.sim.cost import Cluster

__all__ = ["LearnerReport", "Result", "simulate", "train"]


def train(
    task: Task | str = "synthetic",
    *,
    strategy: Strategy[Any] | str | Mapping[str, Any] = "sequential",
    learners: int = 1,
    optimizer: Optimizer | Mapping[str, Any] | None = None,
    schedule: Schedule | Mapping[str, Any] | None = None,
    codec: Codec | str | Mapping[str, Any] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    **runtime: Any,
) -> Result:
    """Train in real processes on this host.

    `task` is a `Task` of one's own, a folder made by `hocket prepare`, "synthetic" or "stream".
    What a folder's train.toml sets holds unless it is given here.
    Further keywords are those of the `[runtime]` table. Learners are separate processes: a script
    must guard its entry point with `if __name__ == "__main__":`, and the task must pickle.
    """
    options = {"learners": learners, "seed": seed, **runtime}
    experiment = _experiment(task, strategy, optimizer, schedule, codec, options)
    return run_real(experiment, _path(out), resume=resume, progress=progress)


def simulate(
    task: Task | str = "synthetic",
    *,
    strategy: Strategy[Any] | str | Mapping[str, Any] = "sequential",
    cluster: Cluster | int | str | Path | Mapping[str, Any] = 1,
    optimizer: Optimizer | Mapping[str, Any] | None = None,
    schedule: Schedule | Mapping[str, Any] | None = None,
    codec: Codec | str | Mapping[str, Any] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    **runtime: Any,
) -> Result:
    """Train in the simulator: real gradients, modelled time.

    `cluster` is a `Cluster`, a number of equal learners, or a cluster file.
    """
    cluster = open_cluster(cluster)
    options = {"learners": cluster.num_learners, "seed": seed, **runtime}
    experiment = _experiment(task, strategy, optimizer, schedule, codec, options)
    return run_simulated(experiment, cluster, _path(out), resume=resume, progress=progress)


def open_cluster(cluster: Cluster | int | str | Path | Mapping[str, Any]) -> Cluster:
    """Return a cluster, given it, its size, its file, or what the file would hold."""
    if isinstance(cluster, Cluster):
        return cluster
    if isinstance(cluster, int):
        return Cluster.even(cluster)
    if isinstance(cluster, Mapping):
        return config.build_cluster(cluster)
    return config.build_cluster(config.parse(Path(cluster)))


def _path(out: str | Path | None) -> Path | None:
    return None if out is None else Path(out)


def _experiment(
    task: Task | str,
    strategy: Strategy[Any] | str | Mapping[str, Any],
    optimizer: Optimizer | Mapping[str, Any] | None,
    schedule: Schedule | Mapping[str, Any] | None,
    codec: Codec | str | Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> Experiment:
    given = strategy.get("name") if isinstance(strategy, Mapping) else strategy
    name = given if given is None or isinstance(given, str) else given.name
    tables: dict[str, dict[str, Any]] = {}
    if isinstance(task, str):
        tables = config.defaults(task, name)
    config.merge(tables, {"runtime": options})
    objects: dict[str, Any] = {}
    parts = {"strategy": strategy, "optimizer": optimizer, "schedule": schedule, "codec": codec}
    for name, given in parts.items():
        if isinstance(given, str):
            config.rename(tables, name, given)
        elif isinstance(given, Mapping):
            config.merge(tables, {name: given})
        elif given is not None:
            objects[name] = given
    if "strategy" in objects and "optimizer" not in objects:
        usual = getattr(objects["strategy"], "usual_optimizer", "sgd")
        tables["optimizer"] = {"name": usual} | dict(tables.get("optimizer", {}))
    if isinstance(task, str):
        config.merge(tables, {"task": config.task_table(task)})
        own = None
    else:
        own = task
    # Built in one go with the objects in place, so that a check sees what will really run.
    return Experiment(**(config.build_parts(tables, own, objects.get("strategy")) | objects))
