"""A loop of one's own under every strategy: equal to a plain loop, to the simulator, and robust."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance.cases import PARALLEL, Case, sparingly
from helpers import attached
from helpers.runs import simulated

from hocket import SGD, Constant
from hocket.runtime.net.store_server import StoreServer

TESTS = Path(__file__).parents[1]
TOKEN = b"0123456789abcdef0123456789abcdef"
ATTACHED = [  # the others are refused
    c
    for c in PARALLEL
    if not c.divides and not c.strategy.needs_scores and not c.strategy.needs_attendance
]
SAME = [c for c in ATTACHED if c.strategy.synchronous and c.loop_is_run]
OTHERS = [c for c in ATTACHED if c not in SAME]


# ------------------------------------------------------------------ several processes


def launch(out: Path, learners: int, **options: Any) -> list[int | None]:
    """Run the loop on several learners, forked from a server that has torch loaded."""
    out.mkdir(exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hocket.runtime.launch.learner_process"])
    server = StoreServer.nearby(TOKEN)
    processes = [
        context.Process(
            target=attached.learner, args=(r, learners, server.address, TOKEN, out, options)
        )
        for r in range(learners)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    server.close()
    doomed = {fault["rank"] for fault in options.get("faults", [])}
    codes = [process.exitcode for process in processes]
    assert codes == [-9 if rank in doomed else 0 for rank in range(learners)]
    return codes


def launch_linear(out: Path, steps: list[int], **options: Any) -> None:
    """Run the smallest loop; whoever has the first rank serves the store."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hocket.runtime.launch.learner_process"])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    processes = [
        context.Process(
            target=attached.linear, args=(r, len(steps), port, out, {"steps": steps, **options})
        )
        for r in range(len(steps))
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    doomed = {fault["rank"] for fault in options.get("faults", [])}
    assert [p.exitcode for p in processes] == [-9 if r in doomed else 0 for r in range(len(steps))]


def models(out: Path) -> list[dict[str, torch.Tensor]]:
    return [torch.load(p, weights_only=True) for p in sorted(out.glob("model-*.pt"))]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def settings(case: Case) -> dict[str, Any]:
    return {"name": case.strategy.name, **case.strategy.parameters()}


def coding(case: Case) -> dict[str, Any]:
    return {"name": case.codec.name, **asdict(case.codec)}


@sparingly(SAME)
def test_two_processes_equal_the_simulator_on_the_same_data(case: Case, tmp_path: Path) -> None:
    launch(tmp_path, 2, strategy=settings(case), codec=coding(case))
    twin = simulated(
        attached.task(),
        case,
        2,
        optimizer=SGD(lr=0.01, momentum=0.9),
        schedule=Constant(epochs=2, lr_compensation="none"),
    )
    one, other = models(tmp_path)
    assert same(one, other)
    assert same(one, dict(twin.model))


@sparingly(OTHERS)
def test_all_load_one_model_at_the_end(case: Case, tmp_path: Path) -> None:
    """Leaving the loop makes one more exchange, so the last steps reach a centre, too."""
    launch(tmp_path, 2, strategy=settings(case), codec=coding(case), rate=0.05)
    one, other = models(tmp_path)
    assert same(one, other)
    assert dev_loss(one) < 0.8 * dev_loss(attached.build().state_dict())


@torch.no_grad()
def dev_loss(state: dict[str, torch.Tensor]) -> float:
    job, model = attached.task(), attached.build()
    model.load_state_dict(state)
    losses = [job.loss(model, job.load("dev", item, 0)) for item in job.items("dev")]
    return float(sum(float(loss.total) for loss in losses) / sum(x.frames for x in losses))


@pytest.mark.parametrize("name", ["push-pull", "adpsgd"])
def test_an_asynchronous_learner_may_leave_before_the_others(name: str, tmp_path: Path) -> None:
    launch(tmp_path, 2, strategy={"name": name}, steps={"1": 5})
    one, other = models(tmp_path)
    assert same(one, other)
    assert not same(one, attached.build().state_dict())


def test_services_run_inside_step(tmp_path: Path) -> None:
    """A ring's exchanges are answered there, so learners mix while both still train."""
    launch(tmp_path, 2, strategy={"name": "adpsgd"})
    facts = [json.loads(p.read_text()) for p in sorted(tmp_path.glob("facts-*.json"))]
    assert min(f["mixes"] for f in facts) >= 3


def test_whoever_has_fewer_steps_answers_with_weight_0(tmp_path: Path) -> None:
    """Rank 1 leaves after 4 of 24 steps; then the mean gradient is rank 0's own."""
    launch(tmp_path, 2, strategy={"name": "allreduce"}, steps={"1": 4})
    job, model = attached.task(), attached.build()
    job.prepare()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    orders = attached.order(0, 2), attached.order(1, 2)[:4]
    for number in range(24):
        optimizer.zero_grad()
        drawn = [o[number] for o in orders if number < len(o)]
        for epoch, index in drawn:
            loss = job.loss(model, job.load("train", job.items("train")[index], epoch))
            (loss.total / loss.frames / len(drawn)).backward()
        optimizer.step()
    one, other = models(tmp_path)
    assert same(one, other)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(one[key], value, rtol=1e-5, atol=1e-6)


def test_a_learner_that_has_left_steps_with_the_mean_though_it_has_no_gradients(
    tmp_path: Path,
) -> None:
    """As many parameters as learners, and gradients cleared when the loop ends."""
    launch_linear(tmp_path, [6, 2], strategy="allreduce")
    one, other = models(tmp_path)
    assert same(one, other)


def test_a_strategy_that_only_exchanges_stripes_ends_with_the_last_loop(tmp_path: Path) -> None:
    launch_linear(tmp_path, [5, 3], strategy="stripes")
    assert len(models(tmp_path)) == 2


def test_the_death_of_the_first_rank_does_not_stop_the_others(tmp_path: Path) -> None:
    """It served the store in which the others met."""
    launch_linear(tmp_path, [6] * 3, strategy="allreduce", faults=[{"rank": 0, "at_draw": 3}])
    one, other = models(tmp_path)
    assert same(one, other)


def test_saved_and_loaded_it_goes_on_as_before(tmp_path: Path) -> None:
    strategy = {"name": "kstep", "sync_every": 3}
    launch(tmp_path / "whole", 2, strategy=strategy, save_at=9)
    (tmp_path / "rest").mkdir()
    for rank in range(2):
        (tmp_path / "whole" / f"state-{rank}.pt").rename(tmp_path / "rest" / f"state-{rank}.pt")
    launch(tmp_path / "rest", 2, strategy=strategy, resume_at=9)
    assert same(models(tmp_path / "whole")[0], models(tmp_path / "rest")[0])


@sparingly([c for c in ATTACHED if c.survives])
def test_a_killed_learner_does_not_stop_the_others(case: Case, tmp_path: Path) -> None:
    launch(tmp_path, 3, strategy=settings(case), faults=[{"rank": 1, "at_draw": 3}])
    went_on(tmp_path)


def test_a_loop_cannot_settle_what_nobody_vouches_for_either(tmp_path: Path) -> None:
    """Rule 10 of the contract holds under a loop of one's own, too."""
    context = multiprocessing.get_context("forkserver")
    server = StoreServer.nearby(TOKEN)
    options = {"strategy": {"name": "hearsay"}}
    processes = [
        context.Process(
            target=attached.learner, args=(r, 2, server.address, TOKEN, tmp_path, options)
        )
        for r in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    server.close()
    told = [path.read_text() for path in tmp_path.glob("error-*.txt")]
    assert any("no collective of all learners has been completed" in one for one in told)


def test_whoever_has_left_does_not_wait_for_ever_for_one_that_froze(tmp_path: Path) -> None:
    """An asynchronous learner that has left answers the others; one of them never moves again."""
    context = multiprocessing.get_context("forkserver")
    server = StoreServer.nearby(TOKEN)
    options = {
        "strategy": {"name": "adpsgd", "partner_timeout_s": 0.5},
        "faults": [{"rank": 1, "at_draw": 3, "how": "freeze"}],
        "timeout_s": 4.0,
    }
    processes = [
        context.Process(
            target=attached.learner, args=(r, 3, server.address, TOKEN, tmp_path, options)
        )
        for r in range(3)
    ]
    for process in processes:
        process.start()
    for rank in (0, 2):
        processes[rank].join(60)
        assert processes[rank].exitcode == 1
        told = (tmp_path / f"error-{rank}.txt").read_text()
        assert "has left its loop and waited 4 s for ranks [1], which took no step" in told
    processes[1].kill()
    processes[1].join(10)


def went_on(out: Path) -> None:
    one, other = models(out)
    assert same(one, other)
    facts = [json.loads(p.read_text()) for p in sorted(out.glob("facts-*.json"))]
    assert [f["alive"] for f in facts] == [[0, 2], [0, 2]]


def test_the_launcher_of_scripts_names_a_lost_learner_and_leaves_the_others_alone(
    tmp_path: Path,
) -> None:
    options = {"strategy": {"name": "allreduce"}, "faults": [{"rank": 1, "at_draw": 3}]}
    command = [sys.executable, "-m", "hocket.launch", "--learners", "3"]
    done = subprocess.run(
        [*command, str(Path(attached.__file__)), str(tmp_path), json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)])},
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1 is lost (SIGKILL)" in done.stderr
    went_on(tmp_path)


def test_a_sequential_rate_is_compensated_and_the_users_rate_left_alone(tmp_path: Path) -> None:
    """Two learners averaging gradients move half as far per minibatch: the local rate doubles."""
    launch(tmp_path / "a", 2, strategy={"name": "allreduce"}, rate=0.005, lr="sequential")
    launch(tmp_path / "b", 2, strategy={"name": "allreduce"}, rate=0.01)
    assert same(models(tmp_path / "a")[0], models(tmp_path / "b")[0])
    assert json.loads((tmp_path / "a" / "facts-0.json").read_text())["lr"] == 0.005
