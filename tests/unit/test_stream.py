"""The stream of frames that never repeats."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from helpers.runs import same_model, simulated

from hocket import SGD, Exponential, Stream, config
from hocket.errors import ConfigError, TaskError
from hocket.models.dnn import DNN

SMALL: dict[str, Any] = {"epoch_frames": 2048, "dev_frames": 2048}


def test_every_epoch_has_new_frames_and_the_same_key_the_same_ones() -> None:
    task, again = Stream(**SMALL), Stream(**SMALL)
    item = task.items("train")[3]
    first, second = (task.load("train", item, epoch) for epoch in (0, 1))
    assert not torch.equal(first[0], second[0])
    for epoch in (1, 0):  # in any order
        x, labels = again.load("train", item, epoch)
        assert torch.equal(x, (first, second)[epoch][0])
        assert torch.equal(labels, (first, second)[epoch][1])
    other = Stream(**SMALL, data_seed=2)
    assert not torch.equal(other.load("train", item, 0)[0], first[0])


def test_old_epochs_are_forgotten_and_made_again_alike() -> None:
    task = Stream(**SMALL)
    item = task.items("train")[0]
    before = task.load("train", item, 0)[0].clone()
    for epoch in range(1, 5):
        task.load("train", item, epoch)
    assert 0 not in task.__dict__["_made"]
    assert torch.equal(task.load("train", item, 0)[0], before)


def test_the_teacher_is_the_floor() -> None:
    """A student learns, and stays above what the known posteriors give."""
    task = Stream(epoch_frames=32_768, dev_frames=16_384)
    result = simulated(task, "sequential", optimizer=SGD(lr=0.2), schedule=Exponential(epochs=2))
    assert task.floor() < result.loss < 1.3
    assert task.bayes_error() < 1 - result.accuracy < 0.5
    harder = Stream(**SMALL, sharpness=1.0)
    assert harder.bayes_error() > task.bayes_error()


def test_labels_follow_the_teachers_posteriors() -> None:
    """The mean posterior of the drawn class, over many frames, is the mean of sum p^2."""
    task = Stream(epoch_frames=100_000)
    x, labels = task.frames("train")
    p = task._scores(x).softmax(1)
    seen = p.gather(1, labels[:, None]).mean()
    torch.testing.assert_close(seen, p.square().sum(1).mean(), rtol=0.01, atol=0.0)


def test_it_travels_without_its_data() -> None:
    task = Stream()
    task.prepare()
    assert len(pickle.dumps(task)) < 2000
    a = simulated(Stream(**SMALL), "kstep", 4)
    assert same_model(a, simulated(pickle.loads(pickle.dumps(Stream(**SMALL))), "kstep", 4))


def test_it_is_a_task_of_the_command_line_with_a_network_that_suits_it() -> None:
    task = config.build_task({"task": {"name": "stream", "batch_frames": 8}})
    assert task == Stream(batch_frames=8)
    wider = config.build_task({"task": {"name": "stream"}, "model": {"layers": 1, "width": 128}})
    assert wider == Stream(model=DNN(layers=1, width=128))
    with pytest.raises(ConfigError, match="num_classes must be at least 2"):
        Stream(num_classes=1)
    with pytest.raises(TaskError, match="unknown split 'tset'"):
        Stream(**SMALL).frames("tset")
