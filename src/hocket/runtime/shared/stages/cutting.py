"""Where the model of an experiment is cut: decided once, before any rank is started."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import nn

from hocket.core.strategy import InStages
from hocket.core.task import Task
from hocket.errors import ContractError
from hocket.experiment import Experiment
from hocket.models.stages import (
    Costs,
    Profile,
    SequenceLayer,
    Tap,
    balanced,
    check_cut,
    counted,
    layers_of,
    profile,
    stages_of,
)
from hocket.runtime.shared.worker import new_model

GROUPS: Final = "groups"


@dataclass(frozen=True)
class StageCut:
    """Into how many stages a model is cut, where, and who asked for it."""

    by: str  # a strategy, or "groups"; for messages
    stages: int
    cut: tuple[int, ...] | None  # None: not decided yet
    asked: str  # the option that says into how many

    @classmethod
    def of(cls, experiment: Experiment) -> StageCut | None:
        """Return how the model of an experiment is cut; None: it is not."""
        strategy, options = experiment.strategy, experiment.options
        if isinstance(strategy, InStages):
            return cls(strategy.name, strategy.stages, strategy.cut, "strategy.stages")
        if options.ranks_per_learner > 1:
            return cls(GROUPS, options.ranks_per_learner, options.cut, "runtime.ranks_per_learner")
        return None

    def edges(self, layers: Sequence[SequenceLayer]) -> list[range]:
        """Return the layers of each stage."""
        if self.cut is None:
            raise ContractError("the model was not cut before its stages were built")
        check_cut(self.cut, layers, self.stages, self.asked)
        return stages_of(self.cut, len(layers))


def profiled(task: Task, seed: int, cost: Costs) -> tuple[nn.Module, Profile]:
    """Return a task's model, and what its layers cost on the first minibatch."""
    task = copy.copy(task)  # what it loads is not to travel to the learners
    task.prepare()
    batch = task.load("train", task.items("train")[0], 0)
    with torch.random.fork_rng(devices=[]):
        model = new_model(task, seed)
        layers_of(model)  # refused before its loss is looked at
        x = Tap(model).input_of(lambda: task.loss(model, batch))
        return model, profile(model, x, cost)


def cut_of(model: nn.Module, found: Profile, num_stages: int) -> tuple[int, ...]:
    """Return the balanced cut of a model."""
    return balanced(found.costs, [one.num_trained > 0 for one in layers_of(model)], num_stages)


def settled(experiment: Experiment, cost: Costs = counted) -> Experiment:
    """Return an experiment whose model is cut, if it is to be cut at all."""
    cutting = StageCut.of(experiment)
    if cutting is None or cutting.stages == 1 or cutting.cut is not None:
        return experiment
    model, found = profiled(experiment.task, experiment.options.seed, cost)
    return with_cut(experiment, cut_of(model, found, cutting.stages))


def with_cut(experiment: Experiment, cut: tuple[int, ...]) -> Experiment:
    """Return an experiment whose model is cut there."""
    if isinstance(experiment.strategy, InStages):
        return replace(experiment, strategy=replace(experiment.strategy, cut=cut))
    return replace(experiment, options=replace(experiment.options, cut=cut))


def kept_cut(config: Mapping[str, Any], cutting: StageCut) -> tuple[int, ...] | None:
    """Return where the model of a run was cut, by its configuration, if into as many stages."""
    cut = config.get(cutting.asked.partition(".")[0], {}).get("cut")
    return tuple(cut) if cut is not None and len(cut) + 1 == cutting.stages else None


@dataclass(frozen=True)
class StageCosts:
    """What each stage costs, by counted operations, and what goes from one to the next."""

    shares: list[float]  # of the work of a minibatch
    bytes_out: list[float]  # of one frame, behind each stage but the last


def costs(experiment: Experiment) -> StageCosts:
    """Count what the stages of an experiment's model cost."""
    cutting = StageCut.of(experiment)
    if cutting is None or cutting.stages == 1:
        return StageCosts([1.0], [])
    model, found = profiled(experiment.task, experiment.options.seed, counted)
    stages = cutting.edges(layers_of(model))
    parts = [sum(found.costs[n] for n in held) for held in stages]
    whole = sum(parts)
    shares = [part / whole if whole else 1.0 / len(parts) for part in parts]
    frames = max(1, experiment.task.items("train")[0].frames)
    return StageCosts(shares, [found.bytes_out[held.stop - 1] / frames for held in stages[:-1]])
