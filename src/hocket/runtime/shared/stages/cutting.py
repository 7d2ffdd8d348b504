"""Where the model of an experiment is cut: decided once, before any rank is started."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hocket.core.strategy import InStages
from hocket.core.task import Task
from hocket.experiment import Experiment
from hocket.models.stages import (
    Costs,
    Profile,
    Tap,
    balanced,
    check_cut,
    counted,
    layers_of,
    profile,
    stages_of,
)
from hocket.runtime.shared.worker import new_model


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
    strategy = experiment.strategy
    if not isinstance(strategy, InStages) or strategy.stages == 1:
        return experiment
    if strategy.cut is not None:
        return experiment
    model, found = profiled(experiment.task, experiment.options.seed, cost)
    return replace(
        experiment, strategy=replace(strategy, cut=cut_of(model, found, strategy.stages))
    )


def shares(experiment: Experiment) -> list[float]:
    """Return each stage's share of the work of a minibatch, by counted operations."""
    strategy: Any = experiment.strategy
    if strategy.stages == 1:
        return [1.0]
    model, found = profiled(experiment.task, experiment.options.seed, counted)
    layers = layers_of(model)
    check_cut(strategy.cut, layers, strategy.stages)
    parts = [sum(found.costs[n] for n in held) for held in stages_of(strategy.cut, len(layers))]
    whole = sum(parts)
    return [part / whole if whole else 1.0 / len(parts) for part in parts]
