"""Coded means between real learners: deaths inside either exchange, and what is counted."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.runs import OPTIONS, real, same_model, simulated
from helpers.tasks import BrokenRow, acoustic

from hocket import SGD, AllReduceSGD, Constant, KStep, OneBit, TopK, api
from hocket.errors import HocketError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.real.faults import Fault

TASK = acoustic(num_frames=1200)
MORE: dict[str, Any] = {"optimizer": SGD(lr=0.05), "schedule": Constant(epochs=2)}
ONE = OneBit(float_below=4)


@pytest.mark.parametrize("transport", ["shared_memory", "sockets"])
@pytest.mark.parametrize("frame", [6, 8, 10])
def test_a_death_inside_either_exchange_leaves_the_others_alike(frame: int, transport: str) -> None:
    """Learners compare their models at every checkpoint, so a difference would end the run."""
    options = RuntimeOptions(
        learners=3, **(OPTIONS | {"transport": transport, "checkpoint_every": 0.3})
    )
    experiment = Experiment(TASK, AllReduceSGD(), MORE["optimizer"], MORE["schedule"], ONE, options)
    result = api.run_real(experiment, None, progress=False, faults=(Fault(1, at_frame=frame),))
    assert [one.rank for one in result.learners if one.lost] == [1]
    assert result.frames == 2 * TASK.num_frames
    assert result.accuracy > 0.4


@pytest.mark.parametrize("transport", ["shared_memory", "sockets"])
def test_both_worlds_count_the_same_bytes_and_have_the_same_model(transport: str) -> None:
    for strategy, codec in ((AllReduceSGD(), ONE), (KStep(sync_every=4), TopK(float_below=4))):
        a = simulated(TASK, strategy, 3, codec=codec, **MORE)
        b = real(TASK, strategy, 3, codec=codec, transport=transport, **MORE)
        assert same_model(a, b)
        sent = [[one.bytes_sent for one in result.learners] for result in (a, b)]
        assert sent[0] == sent[1]


def test_a_value_that_is_not_finite_is_named_by_its_learner() -> None:
    with pytest.raises(HocketError, match=r"rank \d: values of parameter 'w'"):
        real(BrokenRow(how="nan"), AllReduceSGD(), 2, codec=ONE)
