"""One experiment run in either world, with its directory, its record and its status.

`hocket.api` makes the experiment; the command line comes here directly.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from hocket import config
from hocket.core.limits import MOST_PROCESSES
from hocket.data.pool import Pool
from hocket.errors import ConfigError, require
from hocket.experiment import Experiment
from hocket.models.stages import Costs, counted, measured
from hocket.optim.compensation import BOLD, ramp_frames
from hocket.record import opening, results
from hocket.record.checkpoint import Checkpoints, Saved
from hocket.record.display import display
from hocket.record.metrics import Recorder
from hocket.record.results import Result
from hocket.record.rundir import RunDirectory
from hocket.record.status import StatusFile
from hocket.runtime.launch import engines, tokens
from hocket.runtime.launch.guests.guest_host import GuestHost
from hocket.runtime.launch.host_launcher import launcher_for
from hocket.runtime.launch.hosts import LearnerHost
from hocket.runtime.launch.joining import Door
from hocket.runtime.launch.on_ray.cluster import RayCluster
from hocket.runtime.launch.on_ray.ray_launcher import RayLauncher
from hocket.runtime.real.faults import Fault
from hocket.runtime.shared.stages.cutting import StageCut, kept_cut, settled, with_cut
from hocket.runtime.sim import outcome
from hocket.runtime.sim.cost import Cluster
from hocket.runtime.sim.joins import Group
from hocket.runtime.sim.replay import Replay
from hocket.runtime.sim.simulator import Simulator
from hocket.support.fork_server import temporary_folder
from hocket.support.inputs import well_formed
from hocket.support.progress import print_line
from hocket.support.signals import STOPPING, on_first_signal


@contextmanager
def _run_directory(
    experiment: Experiment,
    cluster: Cluster | None,
    out: Path | None,
    resume: bool,
    host: LearnerHost | None = None,
    engine: str = "",
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
        folder = temporary_folder() if cluster is None else None  # real processes may be killed
        with tempfile.TemporaryDirectory(prefix="hocket-", dir=folder) as borrowed:
            yield Path(borrowed), None
        return
    record = config.record(experiment, cluster)
    if cluster is None:
        record["versions"]["engine"] = engine
    doing = "hocket train" if cluster is None else "hocket simulate"
    with opening.claimed(out, resume=resume, doing=doing, warn=print_line):
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
    cluster: RayCluster | None = None,
) -> Result:
    """Run an experiment in real processes; `faults` are planned by tests and benchmarks."""
    options, total = experiment.options, experiment.pool().total_frames
    host = None
    if cluster is None:
        host = LearnerHost.from_environment(options.timeout_s, options.silence_s)
    engine = engine_of(host) if cluster is None else cluster.name
    num_hosts = cluster.num_nodes if cluster else 1 if host is None else host.count
    cost = measured() if host is None and cluster is None else counted  # hosts differ in speed
    require(
        cluster is None or options.ranks_per_learner == 1,
        "--engine ray does not go together with runtime.ranks_per_learner: Ray may place the ranks "
        "of a learner on several nodes; leave one of them out",
    )
    before = out if resume else None
    experiment = _in_stages(experiment.on_hosts(max(1, num_hosts)), before, cost)
    if options.transport == "mpi":
        engines.check_mpi(experiment.num_ranks)
    _check_listen(experiment, out, engine, alone=host is None and cluster is None)
    head = host is None or host.is_head
    processes = -(-experiment.num_processes // max(1, num_hosts))
    require(
        processes <= MOST_PROCESSES,
        f"{processes:,} learners on one host would be as many processes, and at most "
        f"{MOST_PROCESSES:,} are started: use more hosts, or `hocket simulate`",
    )
    with (
        _run_directory(experiment, None, out, resume, host, engine) as (path, saved),
        display(_title(experiment), total, wanted=progress and head) as shown,
    ):
        if host or cluster:
            shown.say(f"engine: {engine}")
        for note in notes(experiment):
            shown.say(note)
        if host is not None and host.is_open:
            shown.say(tokens.OPEN)
        record = path if out and head else None
        recorder = Recorder(record, tensorboard=experiment.options.tensorboard, show=shown.show)
        _note_damage(saved, recorder, "wall")
        begin = launcher_for(host) if cluster is None else partial(RayLauncher, cluster=cluster)
        launcher = begin(
            experiment=experiment,
            run_dir=path,
            resume=saved is not None,
            report=recorder,
            say=shown.say,
            resumable=out is not None,
            faults=faults,
            status=StatusFile(record) if record else None,
            total_frames=total,
        )
        try:
            summaries = launcher.run()
            result = results.of_real(summaries, launcher.losses, path, record, launcher.attending)
            curve = results.curve(recorder)
            share = experiment.rate_share(experiment.pool())
            result = dataclasses.replace(result, evaluations=curve, run_dir=out, rate_share=share)
            recorder(results.summary_event(result))
        finally:
            recorder.close()
        return result


def _in_stages(experiment: Experiment, before: Path | None, cost: Costs = counted) -> Experiment:
    """Cut the model if it is to be in stages; a run that goes on keeps its cut."""
    cutting = StageCut.of(experiment)
    if cutting is None:
        return experiment
    if before is not None and cutting.cut is None:
        kept = kept_cut(RunDirectory(before).config(), cutting)
        if kept is not None:
            return with_cut(experiment, kept)
    threads = torch.get_num_threads()
    torch.set_num_threads(experiment.options.threads)
    try:
        return settled(experiment, cost)
    finally:
        torch.set_num_threads(threads)


def _check_listen(experiment: Experiment, out: Path | None, engine: str, *, alone: bool) -> None:
    """Refuse to wait for learners of other hosts that could never join."""
    if not experiment.options.listen:
        return
    require(
        alone,
        f"runtime.listen has no effect here ({engine}): it is for a run that one launcher begins, "
        "and that other hosts join",
    )
    require(
        out is not None,
        "runtime.listen needs `out`: other hosts find the run by its directory, on a file system "
        "that all share",
    )
    why = experiment.strategy.takes_nobody_in_because
    require(
        not why,
        f"runtime.listen has no effect: strategy {experiment.strategy.name!r} takes nobody in: "
        f"{why}",
    )


def bring_guests(run_dir: Path, door: Door, learners: int, timeout_s: float) -> list[int]:
    """Bring learners of this host into a run of another one, and stay until they have ended."""
    run = RunDirectory(run_dir)
    experiment = config.build_experiment(config.read_run(run_dir))
    with well_formed(run.config_path):
        begun = run.config()
        theirs, data = begun["versions"]["hocket"], begun["data"]
    ours = version("hocket")
    require(
        theirs == ours,
        f"the run was begun by Hocket {theirs}, and this host has {ours}: install it",
    )
    require(
        data == config.fingerprint(experiment.task),
        "this host does not see the data of the run: other utterances, or other frames, are where "
        "its task looks for them",
    )
    return GuestHost(experiment.on_hosts(1), run_dir, door, print_line).bring(learners, timeout_s)


def engine_of(host: LearnerHost | None) -> str:
    """Say where the learners of a run come from."""
    if host is None:
        return "hocket, on one host"
    return f"{host.engine}, {host.count} launchers"


def _note_damage(saved: Saved | None, recorder: Recorder, clock: str) -> None:
    """Say, and put into the record, which checkpoints could not be resumed from."""
    for text in saved.notes if saved else ():
        facts = {key: saved.run[key] for key in ("time_s", "frames", "epoch")} if saved else {}
        recorder({"event": "note", "clock": clock, "rank": None, "text": text, **facts})


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
        not experiment.options.listen,
        "runtime.listen has no effect in the simulator: plan newcomers as [[joins]] of the cluster",
    )
    require(
        experiment.options.on_loss != "stop",
        "runtime.on_loss = 'stop' has no effect in the simulator: leave the deaths out of the "
        "cluster instead",
    )
    experiment = _in_stages(experiment.on_hosts(cluster.num_hosts), out if resume else None)
    threads = torch.get_num_threads()
    torch.set_num_threads(experiment.options.threads)
    total = experiment.pool().total_frames
    try:
        with (
            _run_directory(experiment, cluster, out, resume) as (path, saved),
            display(_title(experiment) + " (simulated)", total, wanted=progress) as shown,
        ):
            for note in notes(experiment):
                shown.say(note)
            recorder = Recorder(
                path if out else None, tensorboard=experiment.options.tensorboard, show=shown.show
            )
            checkpoints = Checkpoints(
                path, experiment.options.keep_checkpoints, durable=out is not None
            )
            _note_damage(saved, recorder, "virtual")
            status = StatusFile(path) if out else None
            simulator: Simulator | None = None
            _refuse_joins(experiment, cluster, replay)
            group = None
            if saved is not None and cluster.joins:
                group = Group.resumed(experiment, cluster, saved)
                experiment = experiment.with_learners(saved.run["learners"])

            def record(event: dict[str, Any]) -> None:
                recorder(event)
                if status is not None and simulator is not None and status.due():
                    status.write(outcome.status_of(simulator, total))

            try:
                simulator = (
                    _simulator(experiment, cluster, record, checkpoints, saved, group)
                    if replay is None
                    else Replay(experiment, cluster, record, checkpoints, replay)
                )

                def stop() -> None:
                    shown.say(STOPPING)
                    if simulator is not None:
                        simulator.stop()

                with on_first_signal(stop):
                    simulator.run()
                    while simulator.regrouped:
                        simulator = simulator.next_phase()
                        simulator.run()
                for join in simulator.joins_to_come():
                    shown.say(f"note: the planned joining at {join.at_s:g} s did not happen")
                for death in simulator.deaths_to_come():
                    shown.say(f"note: the planned death of rank {death.rank} did not happen")
                if out and experiment.options.trace:
                    simulator.trace.write(RunDirectory(out).trace_path())
                result = outcome.result_of(simulator, path, out)
                result = dataclasses.replace(result, evaluations=results.curve(recorder))
                recorder(results.summary_event(result))
                if status is not None:
                    status.write(outcome.status_of(simulator, total, "ended"))
            finally:
                recorder.close()
            return result
    finally:
        torch.set_num_threads(threads)


def _simulator(
    experiment: Experiment,
    cluster: Cluster,
    note: Callable[[dict[str, Any]], None],
    checkpoints: Checkpoints,
    saved: Saved | None,
    group: Group | None,
) -> Simulator:
    """Return a simulator of a new run, or of one that goes on with those who had joined."""
    phase = cluster if group is None else group.phase_of(experiment.options.learners)
    return Simulator(experiment, phase, note, checkpoints, saved, group=group)


def _refuse_joins(experiment: Experiment, cluster: Cluster, replay: Path | None) -> None:
    """Refuse planned joinings where they can have no effect."""
    why = experiment.strategy.takes_nobody_in_because
    require(
        not (cluster.joins and experiment.options.ranks_per_learner > 1),
        "learners that are groups (runtime.ranks_per_learner) cannot join a running run; leave "
        "[[joins]] out",
    )
    require(
        not (cluster.joins and why),
        f"strategy {experiment.strategy.name!r} takes nobody in: {why}; leave [[joins]] out",
    )
    require(
        not (cluster.joins and replay),
        "[[joins]] has no effect with --replay, which repeats what happened: leave it out",
    )


def _title(experiment: Experiment) -> str:
    learners, size = experiment.options.learners, experiment.options.ranks_per_learner
    groups = f" of {size} ranks each" if size > 1 else ""
    return f"{experiment.strategy.name} on {learners} learner{'s' if learners > 1 else ''}{groups}"


def notes(experiment: Experiment) -> list[str]:
    """Return what a user should know before the run: rates, and the strategy's own remarks."""
    pool = experiment.pool()
    found = [rate_note(experiment, pool)]
    factor = experiment.lr_factor()
    if factor > BOLD:
        found.append(
            f"warning: the local rate is {factor:.3g} times the given one; sequential SGD may not "
            f"bear that, and published runs stop at {BOLD:g} times. If the run diverges, or ends "
            f"too high, set schedule.lr_limit={BOLD:g} or schedule.lr_compensation='sqrt'"
        )
    return found + [
        f"note: {line}" for line in experiment.strategy.remarks(experiment.extent(pool))
    ]


def rate_note(experiment: Experiment, pool: Pool) -> str:
    """Say which local rate is derived from the given one."""
    optimizer, factor = experiment.optimizer, experiment.lr_factor()
    if not optimizer.scales_with_gain:
        return (
            f"rate: {optimizer.lr:g} as given ({optimizer.name} steps do not grow with the "
            "gradient, so no compensation applies)"
        )
    if rule := experiment.strategy.rate_rule():
        return (
            f"rate: {optimizer.lr:g}, {rule}" if experiment.strategy.uses_rate else f"rate: {rule}"
        )
    if factor == 1.0:
        return f"rate: {optimizer.lr:g} on each learner"
    return (
        f"rate: {optimizer.lr:g} given (sequential), {optimizer.lr * factor:g} on each of "
        f"{experiment.options.learners} learners after a ramp over "
        f"{ramp_frames(experiment.schedule, pool.epoch_frames):,} frames; "
        f"{experiment.rate_share(pool):.0%} of the sequential rate's integral"
    )
