"""Real processes: interrupts, deaths, timeouts, and nothing left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from helpers.programs import gone, learners_of, start, training, wait_for
from helpers.runs import OPTIONS, real, same_model, simulated
from helpers.strategies import Gossip, PushPull
from helpers.tasks import Broken, Quadratic, Slow, acoustic

from hocket import AllReduceSGD, Constant, KStep, Sequential
from hocket.core.effects import Recv
from hocket.core.learner import Learner
from hocket.core.strategy import State
from hocket.errors import (
    ContractError,
    DivergedError,
    HocketError,
    LearnerFailedError,
    TaskError,
    WaitTimeoutError,
)
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.launch.children import Child
from hocket.runtime.launch.launcher import Launcher

LONG = Constant(epochs=400)


# ------------------------------------------------------------------ stopping


def test_ctrl_c_stops_with_a_checkpoint_and_resume_goes_on(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for(lambda: training(tmp_path))
    below = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopping at the next boundary" in err
    assert "--resume" in out
    wait_for(lambda: gone(below), 20)
    frames = int(sorted((tmp_path / "run" / "checkpoints").iterdir())[-1].name)
    assert frames > 0
    resumed = subprocess.run(
        [
            *(sys.executable, "-m", "hocket", "train", "--resume", "--out", str(tmp_path / "run")),
            *("--epochs", str(frames // 4000 + 2), "--quiet"),
        ],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stderr
    rows = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").open()]
    assert rows[-1]["event"] == "summary"
    assert rows[-1]["frames"] == 4000 * (frames // 4000 + 2)


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    long = ["--set", "strategy.sync_every=100000", "--set", "task.num_frames=1000000"]
    process = start(tmp_path, *long)  # no boundary for a long time
    wait_for(lambda: len(learners_of(process)) == 2)
    time.sleep(1.0)
    below = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "ended at once" in err
    wait_for(lambda: gone(below), 20)


def test_no_learner_outlives_a_killed_launcher(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for(lambda: training(tmp_path))
    below = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
    assert len(below) >= 3
    process.kill()
    process.communicate(timeout=30)
    wait_for(lambda: gone(below), 20)


# ------------------------------------------------------------------ dying


def test_a_killed_learner_is_named_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    process = start(tmp_path, "--set", "runtime.on_loss=stop")
    wait_for(lambda: training(tmp_path))
    wait_for(lambda: list((tmp_path / "run" / "checkpoints").glob("0*")))
    below = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
    learners_of(process)[-1].kill()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"rank \d \(process \d+\) was ended by signal 9 \(SIGKILL\)", err), err
    assert "--resume" in err
    wait_for(lambda: gone(below), 20)


@pytest.mark.parametrize("strategy", [AllReduceSGD(), PushPull()], ids=lambda s: s.name)
def test_an_error_in_one_learner_stops_all_and_is_the_one_reported(strategy: Any) -> None:
    with pytest.raises(LearnerFailedError) as caught:
        real(Broken(how="raise"), strategy, 3, schedule=LONG)
    text = str(caught.value)
    assert "RuntimeError: the disk with item 3 has gone" in text
    assert re.search(r"rank \d failed while it awaits", text)
    assert "traceback" not in text
    assert "has gone" in caught.value.trace
    assert "Traceback" in "".join(caught.value.__notes__)


@dataclass(frozen=True)
class Server(PushPull):
    """Rank 1 fails while rank 0 waits for its message."""

    async def run(self, me: Learner, state: State) -> State:
        if me.rank == 1:
            await me.send(0, "hello", 1)
            time.sleep(0.3)
            raise RuntimeError("THE REAL CAUSE")
        await me.recv("hello", source=1)
        await me.recv("more", source=1)
        return state


def test_the_first_cause_is_reported_not_who_noticed() -> None:
    with pytest.raises(LearnerFailedError, match=r"rank 1 failed .*THE REAL CAUSE"):
        real(Quadratic(), Server(), 2)


class Dead:
    """Stands in for a process that has died."""

    pid, exitcode = 1, -9

    def join(self, timeout: float) -> None:
        """Has ended."""


def test_many_deaths_at_once_are_reported_at_once() -> None:
    experiment = Experiment(Quadratic(), AllReduceSGD(), options=RuntimeOptions(learners=16))
    launcher = Launcher(experiment, None, False, lambda e: None, lambda s: None)
    for rank in range(16):
        ours, theirs = multiprocessing.Pipe()
        theirs.close()
        launcher.children.append(Child(rank, Dead(), ours))  # type: ignore[arg-type]
    with pytest.raises(LearnerFailedError, match=r"ended by signal 9"):
        launcher._watch()


def test_sigterm_to_the_whole_group_stops_with_a_checkpoint(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for(lambda: training(tmp_path))
    os.killpg(process.pid, signal.SIGTERM)  # as Slurm and systemd do
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert list((tmp_path / "run" / "checkpoints").glob("0*"))


def test_messages_unread_at_a_quiet_point_do_not_disturb_it(tmp_path: Path) -> None:
    more: dict[str, Any] = {"out": tmp_path / "a", "evaluate_every": 0.3}
    result = real(Quadratic(), Gossip(), 2, schedule=Constant(epochs=2), **more)
    assert result.frames == 2 * 44
    longer = real(Quadratic(), Gossip(), 2, schedule=Constant(epochs=4), resume=True, **more)
    assert longer.frames == 4 * 44
    assert sum(one.frames for one in longer.learners) == 4 * 44


def test_hocket_errors_keep_their_kind_across_processes() -> None:
    with pytest.raises(DivergedError, match="nan"):
        real(Broken(how="nan"), AllReduceSGD(), 2)
    with pytest.raises(TaskError, match="announced with"):
        real(Broken(how="miscount"), Sequential())


# ------------------------------------------------------------------ waiting


@dataclass(frozen=True)
class Stuck(AllReduceSGD):
    """Rank 1 does something else than the others."""

    how: str = "sleep"
    name: ClassVar[str] = "stuck"
    uses_messages: ClassVar[bool] = True

    async def run(self, me: Learner, state: State) -> State:
        await me.mean_gradient(state.params)
        if me.rank == 1 and self.how == "sleep":
            time.sleep(30)
        if me.rank == 1 and self.how == "recv":
            await me.recv("never", source=0)
        if me.rank == 1 and self.how == "other":
            await me.broadcast(state.params)
        if me.rank == 1 and self.how == "evaluate":
            await me.evaluate(state.params)
        await me.allreduce(state.params)
        return state


@pytest.mark.parametrize("how", ["sleep", "recv"])
def test_every_wait_has_a_limit_and_says_what_was_awaited(how: str) -> None:
    began = time.monotonic()
    with pytest.raises(WaitTimeoutError) as caught:
        real(Quadratic(), Stuck(how=how), 3, timeout_s=2.0)
    assert time.monotonic() - began < 25
    text = str(caught.value)
    assert re.search(r"rank \d waited [\d.]+ s for", text)
    assert "raise runtime.timeout_s (now 2)" in text
    assert re.search(r"\n  rank \d ", text), "says what the others were doing"


def test_collectives_out_of_step_are_named_in_real_processes_too() -> None:
    with pytest.raises(ContractError, match=r"issued (AllReduce|Broadcast) of 32 values while"):
        real(Quadratic(), Stuck(how="other"), 2)
    with pytest.raises(ContractError, match=r"issued (AllReduce|Evaluate) of \d+ values while"):
        real(Quadratic(), Stuck(how="evaluate"), 2)


def test_a_task_that_cannot_be_pickled_is_refused_with_the_reason() -> None:
    @dataclass(frozen=True)
    class Local(Quadratic):
        pass

    with pytest.raises(HocketError, match=r"cannot be sent to the learner processes.*module"):
        real(Local(), Sequential())


# ------------------------------------------------------------------ working


def test_threads_and_sharding_reach_the_learners(tmp_path: Path) -> None:
    result = real(
        Quadratic(), KStep(sync_every=2), 2, sharding="fixed", schedule=Constant(epochs=1)
    )
    assert [one.frames for one in result.learners] == [22, 22]


def test_uneven_speeds_share_the_pool_unevenly_when_asynchronous() -> None:
    """First come, first served: the account is exact although nobody had a fixed share."""
    result = real(Slow(num_items=40, seconds=0.005), PushPull(), 3, schedule=Constant(epochs=2))
    assert result.frames == 160
    assert sum(one.frames for one in result.learners) == 160


def test_real_asynchronous_run_resumes_with_exact_ledger(tmp_path: Path) -> None:
    more = {"out": tmp_path / "a", "schedule": Constant(epochs=3), "checkpoint_every": 0.5}
    real(Quadratic(uneven=True), PushPull(), 2, **more)
    frames = 3 * sum(Quadratic(uneven=True).frames_of(i) for i in range(22))
    more["schedule"] = Constant(epochs=4)
    longer = real(Quadratic(uneven=True), PushPull(), 3, resume=True, **more)
    assert longer.frames == frames * 4 // 3


def test_sockets_give_the_same_bits_as_shared_memory() -> None:
    for strategy in (AllReduceSGD(), PushPull()):
        near = real(acoustic(), strategy, 3, transport="shared_memory")
        far = real(acoustic(), strategy, 3, transport="sockets")
        assert near.frames == far.frames
        if strategy.synchronous:
            assert same_model(near, far)


def test_a_stop_asked_for_early_is_kept(tmp_path: Path) -> None:
    """Ctrl-C while learners are still starting stops at the very first boundary."""
    experiment = Experiment(
        Quadratic(),
        AllReduceSGD(),
        schedule=LONG,
        options=RuntimeOptions(learners=2, tensorboard=False),
    )
    launcher = Launcher(experiment, tmp_path, False, lambda e: None, lambda s: None)
    launcher._interrupts = 1
    summaries = launcher.run()
    assert all(s["stopped"] for s in summaries)
    assert summaries[0]["committed_frames"] < 100 * 44


def test_hocket_train_may_be_called_from_another_thread() -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(real(Quadratic(), KStep(), 2)))
    thread.start()
    thread.join(60)
    assert same_model(results[0], simulated(Quadratic(), KStep(), 2))


def test_recv_describes_itself() -> None:
    assert Recv("push").describe() == "recv(tag='push', source=anyone)"
    assert OPTIONS["timeout_s"] > 0
