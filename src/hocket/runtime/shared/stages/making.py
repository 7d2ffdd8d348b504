"""Which worker a rank has: of a whole model, of a stage, or of a group of ranks."""

from __future__ import annotations

from typing import Any

import torch

from hocket.core import device
from hocket.core.strategy import InStages
from hocket.experiment import Experiment
from hocket.runtime.shared.stages.cutting import StageCut
from hocket.runtime.shared.stages.group import GroupWorker, LocalMembers, Members
from hocket.runtime.shared.stages.group_stage import GroupStage
from hocket.runtime.shared.stages.worker import StageWorker
from hocket.runtime.shared.worker import CPU, Worker


def worker_of(
    experiment: Experiment,
    local_rank: int,
    *,
    new: bool,
    rank: int = 0,
    members: Members | None = None,
) -> Worker:
    """Load the task; `new`: the model is that of `runtime.init`, if there is one.

    `rank`: of the model's stages, where every rank holds one. `members`: the other ranks of a
    learner that is a group; None: they are in this process.
    """
    parts, options = _parts(experiment, local_rank, new=new), experiment.options
    cutting = StageCut.of(experiment)
    if cutting is None or (rank >= options.learners and not _in_stages(experiment)):
        return Worker(**parts | {"on": vectors_on(experiment, local_rank)})
    if _in_stages(experiment):
        return StageWorker(**parts, cutting=cutting, stage=rank)
    if members is None:
        others = range(1, cutting.stages)
        members = LocalMembers([GroupStage(**parts, cutting=cutting, stage=s) for s in others])
    return GroupWorker(
        **parts, cutting=cutting, members=members, micro_batches=options.micro_batches
    )


def vectors_on(experiment: Experiment, local_rank: int) -> torch.device:
    """Return where a rank keeps whole vectors: a model that is divided may not fit its device."""
    options = experiment.options
    return CPU if options.ranks_per_learner > 1 else device.resolve(options.device, local_rank)


def stage_for_group(
    experiment: Experiment, local_rank: int, stage: int, *, new: bool
) -> GroupStage:
    """Load the task for a rank that is not the first of its group."""
    cutting = StageCut.of(experiment)
    assert cutting is not None
    return GroupStage(**_parts(experiment, local_rank, new=new), cutting=cutting, stage=stage)


def _in_stages(experiment: Experiment) -> bool:
    return isinstance(experiment.strategy, InStages)


def _parts(experiment: Experiment, local_rank: int, *, new: bool) -> dict[str, Any]:
    """Return what a worker of any kind is made of."""
    options = experiment.options
    return {
        "task": experiment.task,
        "pool": experiment.pool(),
        "seed": options.seed,
        "on": device.resolve(options.device, local_rank),
        "precision": options.precision,
        "natural_gradient": experiment.optimizer.natural_gradient,
        "init": options.init if new else None,
    }
