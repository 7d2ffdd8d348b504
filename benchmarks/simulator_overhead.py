"""What the simulator costs beyond the mathematics it runs.

    python benchmarks/simulator_overhead.py

Its own cost = wall time of a simulation - gradients - the learners' own steps and averages, as a
share of the gradients, on a 1 M-parameter network at batch 256 with one thread. Repeated and
interleaved; the median and the range are printed. Goal: under 5 %.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from hocket import DNN, SGD, AllReduceSGD, Cluster, Constant, KStep, Sequential, Strategy, Synthetic
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.shared import reductions
from hocket.runtime.sim.simulator import Simulator

arithmetic: Any = reductions


class Stopwatch:
    """Adds up the time spent in some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def measure(strategy: Strategy[Any], learners: int, task: Synthetic) -> tuple[float, float, float]:
    """Return gradient seconds, the learners' own other work, and the simulator's own cost."""
    experiment = Experiment(
        task,
        strategy,
        SGD(lr=0.01),
        Constant(epochs=1),
        options=RuntimeOptions(learners=learners, evaluate_every=10, checkpoint_every=10),
    )
    sim = Simulator(experiment, Cluster.even(learners, jitter=0.1), lambda event: None)
    gradients, own = Stopwatch(), Stopwatch()
    sim._worker.gradient = gradients.around(sim._worker.gradient)  # type: ignore[method-assign]
    sim._worker.score = own.around(sim._worker.score)  # type: ignore[method-assign]
    step, sum_ = SGD._step_, arithmetic.weighted_sum
    SGD._step_ = own.around(SGD._step_)  # type: ignore[method-assign]
    arithmetic.weighted_sum = own.around(sum_)
    began = time.perf_counter()
    try:
        sim.run()
    finally:
        SGD._step_ = step  # type: ignore[method-assign]
        arithmetic.weighted_sum = sum_
    wall = time.perf_counter() - began
    return gradients.seconds, own.seconds, wall - gradients.seconds - own.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    task = Synthetic(num_frames=256 * 96, dev_frames=256, model=DNN(layers=4, width=540))
    parameters = sum(p.numel() for p in task.build_model().parameters())
    print(f"{parameters:,} parameters, batch 256, one thread, {repeats} interleaved repeats")
    cases: list[tuple[Strategy[Any], int]] = [
        (Sequential(), 1),
        (AllReduceSGD(), 8),
        (KStep(sync_every=4), 8),
    ]
    measure(*cases[0], task)  # warm up
    results: dict[int, list[tuple[float, float, float]]] = {i: [] for i in range(len(cases))}
    for _ in range(repeats):
        for i, case in enumerate(cases):
            results[i].append(measure(*case, task))
    print(f"{'strategy':12} {'P':>3} {'gradients':>10} {'steps, means':>13} simulator / gradients")
    for i, (strategy, learners) in enumerate(cases):
        ratios = sorted(own / g for g, _, own in results[i])
        others = statistics.median(o / g for g, o, _ in results[i])
        gradient = statistics.median(g for g, _, _ in results[i])
        print(
            f"{strategy.name:12} {learners:3} {gradient:8.2f} s {others:12.1%} "
            f"{statistics.median(ratios):12.2%} ({ratios[0]:.2%} to {ratios[-1]:.2%})"
        )


if __name__ == "__main__":
    main()
