"""Running an experiment in either world and looking at what came out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hocket import Cluster, Constant, Result, api
from hocket.experiment import RATELESS, Experiment
from hocket.runtime.sim.cost import Death, Host, Slow
from hocket.runtime.sim.simulator import Simulator

OPTIONS: dict[str, Any] = {"tensorboard": False, "timeout_s": 60.0}


def fitting(strategy: Any, more: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a method without a rate does not take: the optimizer, a schedule of rates."""
    if getattr(strategy, "uses_rate", True):  # a name stands for a method with a rate
        return more
    kept = {key: value for key, value in more.items() if key != "optimizer"}
    if "schedule" in kept and kept["schedule"].name not in RATELESS:
        kept["schedule"] = Constant(epochs=kept["schedule"].epochs)
    return kept


def parts_of(case: Any) -> dict[str, Any]:
    """The strategy and the codec of a row of the conformance table, or a strategy alone."""
    codec = getattr(case, "codec", None)
    return {"strategy": case} if codec is None else {"strategy": case.strategy, "codec": codec}


def parts_and_options(case: Any, more: dict[str, Any]) -> dict[str, Any]:
    """All that `api` is given for a row of the table: `more` as far as it fits the method."""
    parts = parts_of(case)
    return OPTIONS | getattr(case, "options", {}) | parts | fitting(parts["strategy"], more)


def point(result: Result) -> torch.Tensor:
    """The vector that the model of a `Quadratic` is, whether or not it is in layers."""
    return next(value for name, value in result.model.items() if name.endswith("w"))


def simulated(task: Any, strategy: Any, cluster: Cluster | int = 1, **more: Any) -> Result:
    more = parts_and_options(strategy, more)
    return api.simulate(task, cluster=cluster, progress=False, **more)


def real(task: Any, strategy: Any, learners: int = 1, **more: Any) -> Result:
    more = parts_and_options(strategy, more)
    return api.train(task, learners=learners, progress=False, **more)


def same_model(a: Result | dict[str, torch.Tensor], b: Result | dict[str, torch.Tensor]) -> bool:
    x = a.model if isinstance(a, Result) else a
    y = b.model if isinstance(b, Result) else b
    return x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)


def uneven(learners: int, seed: int, deaths: tuple[Death, ...] = ()) -> Cluster:
    """A cluster in which no two learners are equally fast."""
    speeds = torch.randperm(learners, generator=torch.Generator().manual_seed(seed)).tolist()
    hosts = tuple(
        Host(frames_per_s=50.0 * (1 + s), jitter=0.5, bandwidth_gbit=0.001) for s in speeds
    )
    slow = (Slow(rank=seed % learners, factor=7.0, until_s=0.5),)
    return Cluster(hosts, slow=slow, deaths=deaths)


def keep_only_first_checkpoint(run: Path, copy: Path) -> Path:
    """Copy a run as it was when its first checkpoint had just been written."""
    shutil.copytree(run, copy)
    for later in sorted((copy / "checkpoints").iterdir())[1:]:
        shutil.rmtree(later)
    (copy / "model.safetensors").unlink(missing_ok=True)
    return copy


def simulator(
    experiment: Experiment,
    cluster: Cluster,
    report: Callable[[dict[str, Any]], None] = lambda event: None,
) -> Simulator:
    """A bare simulator, without a run directory."""
    return Simulator(experiment, cluster, report)
