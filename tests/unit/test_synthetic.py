"""The synthetic task against brute force."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from helpers.tasks import acoustic

from hocket import SGD, Constant, Exponential, Synthetic, simulate
from hocket.models.dnn import DNN


def test_posteriors_equal_brute_force_over_all_class_sequences() -> None:
    task = Synthetic(
        num_frames=10, dev_frames=200, num_classes=4, num_features=2, context=2, batch_frames=10
    )
    means, transition = task._chain
    frames = task.frames("dev")
    exact = task.posteriors("dev")
    x = frames.x.numpy().astype(np.float64)
    for t in (0, 1, 57, 120, 199):
        lo = max(t - 2, int(frames.first[t]))
        hi = min(t + 2, int(frames.last[t]))
        scores = np.zeros(4)
        for path in itertools.product(range(4), repeat=hi - lo + 1):
            p = task._stationary[path[0]]
            for a, b in itertools.pairwise(path):
                p *= transition[a, b]
            for u, c in zip(range(lo, hi + 1), path, strict=True):
                p *= np.exp(-((x[u] - means[c]) ** 2).sum() / 2)
            scores[path[t - lo]] += p
        np.testing.assert_allclose(exact[t], scores / scores.sum(), rtol=1e-9)


def test_context_helps_and_noise_hurts() -> None:
    base = acoustic()
    assert base.bayes_error() < acoustic(noise=2.0).bayes_error()
    import dataclasses

    blind = dataclasses.replace(base, context=0)
    assert base.bayes_error() < blind.bayes_error() - 0.05


def test_nobody_beats_bayes_but_a_network_comes_near() -> None:
    task = acoustic(num_frames=40_000, dev_frames=10_000, width=64)
    result = simulate(
        task,
        optimizer=SGD(lr=0.2),
        schedule=Exponential(epochs=4, final_factor=0.02),
        progress=False,
    )
    floor = task.bayes_error()
    assert floor - 0.01 < 1 - result.accuracy < floor + 0.03


def test_the_same_seed_gives_the_same_data_in_every_process() -> None:
    task = acoustic()
    again = pickle.loads(pickle.dumps(task))
    assert "_frames" not in again.__dict__
    a, b = (t.load("train", t.items("train")[3], 2) for t in (task, again))
    assert all((x == y).all() for x, y in zip(a, b, strict=True))


def test_an_epoch_visits_every_frame_once() -> None:
    task = acoustic(num_frames=1000)
    seen = np.concatenate([task._shuffled(1)[i.id : i.id + i.frames] for i in task.items("train")])  # type: ignore[operator]
    assert sorted(seen.tolist()) == list(range(1000))


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_deep_networks_start_learning(activation: str) -> None:
    """Five layers, either activation, from scratch."""
    import dataclasses

    model = DNN(layers=5, width=64, activation=activation)  # type: ignore[arg-type]
    task = dataclasses.replace(acoustic(num_frames=20_000), model=model)
    result = simulate(
        task, optimizer=SGD(lr=0.1), schedule=Constant(epochs=4), seed=1, progress=False
    )
    assert 1 - result.accuracy < task.bayes_error() + 0.1


def test_the_published_network_can_be_built() -> None:
    net = DNN(layers=5, width=2048, activation="sigmoid").build(462, 10_217)
    assert sum(p.numel() for p in net.parameters()) == 462 * 2048 + 4 * 2048**2 + 5 * 2048 + (
        2048 * 10_217 + 10_217
    )
