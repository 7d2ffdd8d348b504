"""`hocket.train` and `hocket.simulate`: the same experiment in either world."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hocket import config
from hocket.core.strategy import Strategy
from hocket.core.task import Task
from hocket.errors import ConfigError, require
from hocket.experiment import Experiment
from hocket.optim import Optimizer, Schedule
from hocket.record import opening, results
from hocket.record.checkpoint import Checkpoints, Saved
from hocket.record.display import display
from hocket.record.metrics import Recorder
from hocket.record.results import LearnerReport, Result
from hocket.record.rundir import RunDirectory
from hocket.runtime.launch.host_launcher import launcher_for
from hocket.runtime.launch.hosts import LearnerHost
from hocket.runtime.real.faults import Fault
from hocket.runtime.sim.cost import Cluster
from hocket.runtime.sim.replay import Replay
from hocket.runtime.sim.simulator import Simulator
from hocket.support.signals import STOPPING, on_first_signal

__all__ = ["LearnerReport", "Result", "simulate", "train"]


def train(
    task: Task | str = "synthetic",
    *,
    strategy: Strategy[Any] | str | Mapping[str, Any] = "sequential",
    learners: int = 1,
    optimizer: Optimizer | Mapping[str, Any] | None = None,
    schedule: Schedule | Mapping[str, Any] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    **runtime: Any,
) -> Result:
    """Train in real processes on this host.

    `task` is a `Task` of one's own, a folder made by `hocket prepare`, or "synthetic"; what a
    folder's train.toml sets holds unless it is given here.
    Further keywords are those of the `[runtime]` table. Learners are separate processes: a script
    must guard its entry point with `if __name__ == "__main__":`, and the task must pickle.
    """
    options = {"learners": learners, "seed": seed, **runtime}
    experiment = _experiment(task, strategy, optimizer, schedule, options)
    return run_real(experiment, _path(out), resume=resume, progress=progress)


def simulate(
    task: Task | str = "synthetic",
    *,
    strategy: Strategy[Any] | str | Mapping[str, Any] = "sequential",
    cluster: Cluster | int | str | Path | Mapping[str, Any] = 1,
    optimizer: Optimizer | Mapping[str, Any] | None = None,
    schedule: Schedule | Mapping[str, Any] | None = None,
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
    experiment = _experiment(task, strategy, optimizer, schedule, options)
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
    options: Mapping[str, Any],
) -> Experiment:
    tables: dict[str, dict[str, Any]] = config.defaults(task) if isinstance(task, str) else {}
    config.merge(tables, {"runtime": options})
    objects: dict[str, Any] = {}
    for name, given in (("strategy", strategy), ("optimizer", optimizer), ("schedule", schedule)):
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
    parts = config.build_parts(tables, own)
    return Experiment(**(parts | objects))


# ---------------------------------------------------------------------------- the two worlds


@contextmanager
def _run_directory(
    experiment: Experiment,
    cluster: Cluster | None,
    out: Path | None,
    resume: bool,
    host: LearnerHost | None = None,
) -> Iterator[tuple[Path, Saved | None]]:
    """Open, reopen, or borrow a directory for a run; on several hosts the first one does."""
    if host is not None and out is None:
        raise ConfigError("a run on several hosts needs `out`, on a file system that all share")
    if out is not None and host is not None and not host.is_head:
        host.open_directory(out)
        keep = experiment.options.keep_checkpoints
        yield out, Checkpoints(out, keep).latest() if resume else None
        return
    if out is None:
        if resume:
            raise ConfigError("resume needs the run directory: give it as `out`")
        with tempfile.TemporaryDirectory(prefix="hocket-") as borrowed:
            yield Path(borrowed), None
        return
    record = config.record(experiment, cluster)
    saved = None
    if resume:
        saved = opening.reopen(out, record, experiment.options.keep_checkpoints)
    else:
        opening.create(out, record)
    if host is not None:
        host.open_directory(out)
    yield out, saved


def run_real(
    experiment: Experiment,
    out: Path | None,
    *,
    resume: bool = False,
    progress: bool = True,
    faults: tuple[Fault, ...] = (),
) -> Result:
    """Run an experiment in real processes; `faults` are planned by tests and benchmarks."""
    options, total = experiment.options, experiment.pool().total_frames
    host = LearnerHost.from_environment(options.timeout_s, options.silence_s)
    head = host is None or host.is_head
    with (
        _run_directory(experiment, None, out, resume, host) as (path, saved),
        display(_title(experiment), total, wanted=progress and head) as shown,
    ):
        shown.say(rate_note(experiment))
        record = path if out and head else None
        recorder = Recorder(record, tensorboard=experiment.options.tensorboard, show=shown.show)
        launcher = launcher_for(
            host,
            experiment=experiment,
            run_dir=path,
            resume=saved is not None,
            report=recorder,
            say=shown.say,
            resumable=out is not None,
            faults=faults,
        )
        try:
            summaries = launcher.run()
            result = results.of_real(summaries, launcher.losses, path, record)
            curve = results.curve(recorder)
            result = dataclasses.replace(result, evaluations=curve, run_dir=out)
            recorder(results.summary_event(result))
        finally:
            recorder.close()
        return result


def run_simulated(
    experiment: Experiment,
    cluster: Cluster,
    out: Path | None,
    *,
    resume: bool = False,
    progress: bool = True,
    replay: Path | None = None,
) -> Result:
    """Run an experiment in the simulator; `replay`: as a real run of it went, in that directory."""
    require(
        experiment.options.on_loss != "stop",
        "runtime.on_loss = 'stop' has no effect in the simulator: leave the deaths out of the "
        "cluster instead",
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(experiment.options.threads)
    total = experiment.pool().total_frames
    try:
        with (
            _run_directory(experiment, cluster, out, resume) as (path, saved),
            display(_title(experiment) + " (simulated)", total, wanted=progress) as shown,
        ):
            shown.say(rate_note(experiment))
            recorder = Recorder(
                path if out else None, tensorboard=experiment.options.tensorboard, show=shown.show
            )
            checkpoints = Checkpoints(path, experiment.options.keep_checkpoints)
            try:
                simulator = (
                    Simulator(experiment, cluster, recorder, checkpoints, saved)
                    if replay is None
                    else Replay(experiment, cluster, recorder, checkpoints, replay)
                )

                def stop() -> None:
                    shown.say(STOPPING)
                    simulator.stop()

                with on_first_signal(stop):
                    simulator.run()
                for death in simulator.deaths_to_come():
                    shown.say(f"note: the planned death of rank {death.rank} did not come to pass")
                if out and experiment.options.trace:
                    simulator.trace.write(RunDirectory(out).trace_path())
                result = _simulated_result(simulator, path, out)
                result = dataclasses.replace(result, evaluations=results.curve(recorder))
                recorder(results.summary_event(result))
            finally:
                recorder.close()
            return result
    finally:
        torch.set_num_threads(threads)


def _simulated_result(simulator: Simulator, path: Path, out: Path | None) -> Result:
    """Return what a simulation came to."""
    first = simulator.context(simulator.alive[0])
    account, scores = first.account, first.account.scores
    time_s = simulator.now - account.aside_s
    return Result(
        loss=scores.loss if scores else float("nan"),
        accuracy=scores.accuracy if scores else float("nan"),
        frames=account.ledger.committed_frames,
        discarded_frames=account.ledger.discarded_frames,
        epoch=account.ledger.epoch,
        time_s=time_s,
        aside_s=account.aside_s,
        clock="virtual",
        learners=[
            results.learner_report(rank, learner.context.account.books, time_s, learner.lost_s)
            for rank, learner in enumerate(simulator.learners)
        ],
        model=results.final_model(path, out),
        stopped=first.agenda.stop_agreed and not account.ledger.closed(),
        run_dir=out,
        trace_digest=simulator.trace.digest,
    )


def _title(experiment: Experiment) -> str:
    learners = experiment.options.learners
    return f"{experiment.strategy.name} on {learners} learner{'s' if learners > 1 else ''}"


def rate_note(experiment: Experiment) -> str:
    """Say which local rate is derived from the given one."""
    optimizer, factor = experiment.optimizer, experiment.lr_factor()
    if not optimizer.scales_with_gain:
        return (
            f"rate: {optimizer.lr:g} as given ({optimizer.name} steps do not grow with the "
            "gradient, so no compensation applies)"
        )
    if rule := experiment.strategy.rate_rule():
        return f"rate: {optimizer.lr:g}, {rule}"
    if factor == 1.0:
        return f"rate: {optimizer.lr:g} on each learner"
    return (
        f"rate: {optimizer.lr:g} given (sequential), {optimizer.lr * factor:g} on each of "
        f"{experiment.options.learners} learners after a ramp over the first epoch"
    )
