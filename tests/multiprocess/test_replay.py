"""Real asynchronous runs, played again in the simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance.cases import CASES
from helpers.strategies import Gossip
from helpers.tasks import Quadratic, Slow

from hocket import (
    ADPSGD,
    ASGD,
    SGD,
    AllReduceSGD,
    Cluster,
    Constant,
    KStep,
    Pipeline,
    Result,
    Strategy,
    api,
)
from hocket.cli.main import main
from hocket.core.codec import FLOAT32
from hocket.errors import ConfigError, DeadlockError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.real.faults import Fault

FREE = [c for c in CASES if not (c.strategy.synchronous or c.strategy.in_fixed_order)]
ASYNCHRONOUS = [c.strategy for c in FREE if c.codec is FLOAT32]


def experiment(strategy: Strategy[Any], learners: int = 4, **more: Any) -> Experiment:
    options = {"learners": learners, "trace": True, "tensorboard": False, "timeout_s": 60.0}
    return Experiment(
        Slow(num_items=40, seconds=0.003, uneven=True),
        strategy,
        SGD(lr=0.002 if isinstance(strategy, ASGD) else 0.02, momentum=0.9),
        Constant(epochs=3),
        options=RuntimeOptions(**options | more),
    )


def replayed(made: Experiment, run: Path) -> Result:
    cluster = Cluster.even(made.options.learners)
    return api.run_simulated(made, cluster, None, progress=False, replay=run)


@pytest.mark.parametrize("strategy", [*ASYNCHRONOUS, Gossip()], ids=lambda s: repr(s))
def test_a_recorded_run_played_again_gives_its_model(
    strategy: Strategy[Any], tmp_path: Path
) -> None:
    made = experiment(strategy)
    real = api.run_real(made, tmp_path / "run", progress=False)
    again = replayed(made, tmp_path / "run")
    assert again.frames == real.frames
    for name, value in real.model.items():
        torch.testing.assert_close(again.model[name], value, rtol=1e-5, atol=1e-6)
    free = api.run_simulated(made, Cluster.even(4), None, progress=False)
    assert any(not torch.equal(free.model[k], real.model[k]) for k in real.model), (
        "without the record it comes out differently, else this proves nothing"
    )


def test_exchanges_that_were_given_up_are_given_up_again(tmp_path: Path) -> None:
    made = experiment(ADPSGD(ring="fixed", partner_timeout_s=0.1))
    nap = Fault(1, at_draw=3, how="nap")
    real = api.run_real(made, tmp_path / "run", progress=False, faults=(nap,))
    lines = (tmp_path / "run" / "trace-0.jsonl").read_text().splitlines()
    assert any(json.loads(line)["kind"] == "expired" for line in lines)
    again = replayed(made, tmp_path / "run")
    for name, value in real.model.items():
        torch.testing.assert_close(again.model[name], value, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_played_again_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"not a run directory: it has no metrics\.jsonl"):
        replayed(experiment(ADPSGD()), run)
    with pytest.raises(ConfigError, match="'kstep' is synchronous"):
        replayed(experiment(KStep()), run)
    with pytest.raises(ConfigError, match="'pipeline' has a fixed order"):
        replayed(experiment(Pipeline(stages=1), 1), run)
    api.run_real(experiment(ADPSGD(), trace=False), run, progress=False)
    with pytest.raises(ConfigError, match=r"trace-0\.jsonl is missing: .*runtime\.trace = true"):
        replayed(experiment(ADPSGD()), run)
    lost = tmp_path / "lost"
    api.run_real(experiment(ADPSGD()), lost, progress=False, faults=(Fault(1, at_draw=2),))
    with pytest.raises(ConfigError, match="lost a learner, and what"):
        replayed(experiment(ADPSGD()), lost)


def test_a_record_of_something_else_does_not_fit(tmp_path: Path) -> None:
    api.run_real(experiment(ADPSGD()), tmp_path / "run", progress=False)
    with pytest.raises(DeadlockError, match="the record does not fit this experiment"):
        replayed(experiment(Gossip()), tmp_path / "run")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["task.num_frames=2000", "task.dev_frames=200", "runtime.trace=true"]
    arguments = [x for setting in settings for x in ("--set", setting)]
    run = ["train", "synthetic", "--strategy", "adpsgd", "--learners", "2", "--quiet"]
    assert main([*run, *arguments, "--epochs", "1", "--out", str(tmp_path / "a")]) == 0
    again = ["simulate", "--replay", str(tmp_path / "a"), "--out", str(tmp_path / "b"), "--quiet"]
    assert main(again) == 0
    rows = [json.loads((tmp_path / x / "metrics.jsonl").read_text().splitlines()[-1]) for x in "ab"]
    assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=1e-5)
    assert main([*again, "--resume"]) == 2
    assert "--replay starts a run" in capsys.readouterr().err


def test_a_synchronous_record_holds_no_order_of_arrivals(tmp_path: Path) -> None:
    """It needs none: it is the same in every run."""
    made = Experiment(
        Quadratic(),
        AllReduceSGD(),
        options=RuntimeOptions(learners=2, trace=True, tensorboard=False),
    )
    api.run_real(made, tmp_path / "run", progress=False)
    kinds = {json.loads(x)["kind"] for x in (tmp_path / "run" / "trace-0.jsonl").open()}
    assert "took" not in kinds
    assert "compute" in kinds
