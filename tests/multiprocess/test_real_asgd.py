"""Servers in processes of their own: who is lost, who goes on, and what is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.tasks import Slow

from hocket import ASGD, SGD, Constant, Result, api
from hocket.errors import HocketError, LearnerFailedError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.real.faults import Fault

TASK = Slow(num_items=40, seconds=0.003, uneven=True)
FRAMES = sum(item.frames for item in TASK.items("train"))


def run(strategy: ASGD, out: Path | None = None, epochs: int = 2, **more: Any) -> Result:
    options = RuntimeOptions(
        learners=more.pop("learners", 3), tensorboard=False, timeout_s=30.0, silence_s=5.0
    )
    schedule = Constant(epochs=epochs)
    experiment = Experiment(TASK, strategy, SGD(lr=0.01), schedule, options=options)
    return api.run_real(experiment, out, progress=False, **more)


def test_a_lost_server_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    """Also with other numbers of learners and servers."""
    strike = Fault(3, at_collective=30)  # after the checkpoint of the first epoch
    with pytest.raises(LearnerFailedError, match=r"rank 3 \(which served the others\)") as caught:
        run(ASGD(servers=1), tmp_path / "run", epochs=4, faults=(strike,))
    assert "--resume" in str(caught.value)
    result = run(ASGD(servers=2), tmp_path / "run", epochs=4, learners=2, resume=True)
    assert result.frames + result.discarded_frames == 4 * FRAMES
    assert len(result.attendants) == 2


def test_a_learner_that_serves_cannot_be_spared() -> None:
    with pytest.raises(HocketError, match=r"part of the model that it served|rank 1 .* signal 9"):
        run(ASGD(servers=0), faults=(Fault(1, at_draw=5),))


@pytest.mark.parametrize("servers", [1, 2])
def test_all_but_one_learner_may_die(servers: int) -> None:
    faults = (Fault(0, at_draw=4), Fault(2, at_draw=9))
    result = run(ASGD(servers=servers, warm_start_frames=20), faults=faults)
    assert [one.rank for one in result.learners if one.lost] == [0, 2]
    assert result.frames + result.discarded_frames == 2 * FRAMES


@pytest.mark.parametrize("at_send", [9, 10])
def test_a_learner_may_die_between_its_pushes_to_two_shards(at_send: int, tmp_path: Path) -> None:
    """Or before both; the first shard, which decides, gets its part last and hears of nothing.

    So nothing is applied in part. What had come to the other shard alone is not applied there.
    """
    result = run(ASGD(servers=2), tmp_path / "run", faults=(Fault(1, at_send=at_send),))
    assert [one.rank for one in result.learners if one.lost] == [1]
    assert result.frames + result.discarded_frames == 2 * FRAMES
    rows = map(json.loads, (tmp_path / "run" / "metrics.jsonl").open())
    told = [row for row in rows if row["event"] == "eval"]
    assert not any("partial_histogram" in row for row in told)
    pushed = sum(sum(row["pushes_histogram"].values()) for row in told)
    assert pushed == 2 * 40, "the item that was under way was dealt again"


def test_the_run_ends_if_no_learner_is_left() -> None:
    faults = tuple(Fault(rank, at_draw=3) for rank in range(3))
    with pytest.raises(LearnerFailedError, match="nobody is left"):
        run(ASGD(servers=1), faults=faults)


def test_a_learner_that_froze_finds_its_gradient_dropped_and_goes_on() -> None:
    nap = Fault(1, at_draw=3, how="nap")
    result = run(ASGD(servers=1, max_staleness=20), epochs=12, faults=(nap,))
    assert result.discarded_frames > 0
    assert not any(one.lost for one in result.learners)
    assert result.learners[1].frames > 10
