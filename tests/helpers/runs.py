"""Running an experiment in either world and looking at what came out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hocket import Cluster, Result, api
from hocket.experiment import Experiment
from hocket.runtime.sim.cost import Death, Host, Slow
from hocket.runtime.sim.simulator import Simulator

OPTIONS: dict[str, Any] = {"tensorboard": False, "timeout_s": 60.0}


def simulated(task: Any, strategy: Any, cluster: Cluster | int = 1, **more: Any) -> Result:
    more = OPTIONS | more
    return api.simulate(task, strategy=strategy, cluster=cluster, progress=False, **more)


def real(task: Any, strategy: Any, learners: int = 1, **more: Any) -> Result:
    more = OPTIONS | more
    return api.train(task, strategy=strategy, learners=learners, progress=False, **more)


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


def fault_plan(learners: int, seed: int) -> tuple[Death, ...]:
    """Some learners die early, by time or by draw; at least one stays alive."""
    rng = np.random.default_rng(seed)
    victims = rng.choice(learners, size=1 + seed % min(3, learners - 1), replace=False)
    return tuple(
        Death(int(v), at_draw=int(rng.integers(1, 3)))
        if i % 2
        else Death(int(v), at_s=float(rng.uniform(0.0, 0.02)))
        for i, v in enumerate(victims)
    )


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
