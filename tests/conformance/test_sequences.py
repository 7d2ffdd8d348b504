"""Every strategy trains a small LSTM, in both worlds; codecs and optimizers with two strategies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from conformance.cases import CASES, Case
from helpers.runs import keep_only_first_checkpoint, real, same_model, simulated, uneven
from helpers.tasks import spoken

from hocket import (
    BMUF,
    CLDNN,
    LSTM,
    SGD,
    TDNN,
    AdaGrad,
    AdamW,
    AllReduceSGD,
    Constant,
    Kaldi,
    KStep,
    NaturalSGD,
    OneBit,
)
from hocket.codecs import CODECS
from hocket.models.sequence import SequenceModel
from hocket.optim import OPTIMIZERS
from hocket.strategies import STRATEGIES

ONCE = list({c.strategy.name: c for c in reversed(CASES)}.values())[::-1]  # each one's first row
USUAL: dict[str, Any] = {
    "optimizer": SGD(lr=0.1, momentum=0.9, clip_norm=1.0),
    "schedule": Constant(epochs=2),
}
BOTH = LSTM(layers=1, cells=5, bidirectional=True, dropout=0.2, recurrent_dropout=0.2)
FIRST_GUESS = 1.79  # all 6 classes alike
QUICK = ("allreduce", "bmuf", "kaldi", "dpsgd", "hessian-free")  # real processes in `make test`


def rows(cases: list[Case], quick: tuple[str, ...]) -> pytest.MarkDecorator:
    marked = [
        pytest.param(c, id=c.id, marks=() if c.strategy.name in quick else pytest.mark.long)
        for c in cases
    ]
    return pytest.mark.parametrize("case", marked)


def test_every_strategy_is_here() -> None:
    assert set(STRATEGIES) <= {c.strategy.name for c in ONCE}


@pytest.mark.parametrize("case", ONCE, ids=lambda c: c.id)
def test_every_strategy_trains_an_lstm_with_an_exact_account(case: Case) -> None:
    task = spoken(num_frames=900)
    before = simulated(task, KStep(), 1, schedule=Constant(epochs=1), optimizer=SGD(lr=1e-9))
    result = simulated(task, case, uneven(case.learners[-1], 3), **USUAL)
    assert result.frames + result.discarded_frames == 2 * 900
    assert result.loss < before.loss


@rows([c for c in ONCE if c.strategy.synchronous], QUICK)
def test_simulator_equals_real_processes_bit_for_bit(case: Case) -> None:
    for chunk_frames in (21, 0):  # whole utterances are padded
        task = spoken(BOTH, num_frames=900, chunk_frames=chunk_frames, batch_frames=300)
        learners = case.learners[0]
        a, b = simulated(task, case, learners, **USUAL), real(task, case, learners, **USUAL)
        assert same_model(a, b)
        assert (a.loss, a.accuracy, a.frames) == (b.loss, b.accuracy, b.frames)


@rows([c for c in ONCE if not c.strategy.synchronous], ())
def test_asynchronous_learners_train_it_in_real_processes(case: Case) -> None:
    result = real(spoken(num_frames=900), case, max(case.learners[0], case.fewest), **USUAL)
    assert result.frames + result.discarded_frames == 2 * 900


@pytest.mark.parametrize(
    "model",
    [
        TDNN(width=8, dilations=(1, 2), bottleneck=3, dropout=0.1),
        CLDNN(
            maps=2, conv_frames=3, conv_bins=3, pool_bins=2, linear=4, layers=1, cells=4, width=6
        ),
    ],
    ids=lambda m: m.name,
)
def test_other_sequence_models_are_the_same_in_both_worlds(model: SequenceModel) -> None:
    task = spoken(model, num_frames=900)
    assert same_model(simulated(task, KStep(), 2, **USUAL), real(task, KStep(), 2, **USUAL))


@pytest.mark.long
def test_natural_gradient_of_gates_is_the_same_in_both_worlds() -> None:
    task = spoken(LSTM(layers=2, cells=6, projection=3), num_frames=900, chunk_frames=0)
    more = USUAL | {"optimizer": NaturalSGD(lr=0.02)}
    assert same_model(simulated(task, KStep(), 2, **more), real(task, KStep(), 2, **more))


def test_speeds_do_not_change_the_result() -> None:
    task = spoken(BOTH, num_frames=900)
    runs = [simulated(task, KStep(sync_every=2), uneven(3, seed), **USUAL) for seed in (1, 2)]
    assert same_model(*runs)


@pytest.mark.parametrize("strategy", [AllReduceSGD(), BMUF(sync_every=2)], ids=lambda s: s.name)
@pytest.mark.parametrize("name", sorted(CODECS))
def test_every_codec_with_two_strategies(name: str, strategy: Any) -> None:
    kind: Any = CODECS[name]
    codec = kind() if name == "float32" else kind(float_below=4)
    result = simulated(spoken(num_frames=900), strategy, 2, codec=codec, **USUAL)
    assert result.frames == 1800
    assert result.loss < FIRST_GUESS


OPTIMS = [SGD(lr=0.1, clip_norm=1.0), AdamW(lr=0.01), AdaGrad(lr=0.02), NaturalSGD(lr=0.02)]


@pytest.mark.parametrize("strategy", [AllReduceSGD(), KStep(sync_every=2)], ids=lambda s: s.name)
@pytest.mark.parametrize("optimizer", OPTIMS, ids=lambda o: o.name)
def test_every_optimizer_with_two_strategies(optimizer: Any, strategy: Any) -> None:
    assert {o.name for o in OPTIMS} == set(OPTIMIZERS)
    more = USUAL | {"optimizer": optimizer}
    result = simulated(spoken(num_frames=900), strategy, 2, **more)
    assert result.frames == 1800
    assert result.loss < FIRST_GUESS


@pytest.mark.parametrize(
    ("strategy", "codec"),
    [
        (Kaldi(sync_every=3, combine_items=2), None),
        (AllReduceSGD(double_buffering=True), OneBit(float_below=4)),
    ],
    ids=["kaldi", "double buffering"],
)
def test_halved_minibatches_are_cut_between_chunks(
    strategy: Any, codec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[str] = Counter()
    task_type = type(spoken())
    plain = task_type.loss

    def watched(self: Any, model: Any, batch: Any) -> Any:
        if torch.is_grad_enabled():
            seen["rows whole" if sum(batch.counts) == len(batch.labels) else "torn"] += 1
            seen[f"{len(batch.counts)} chunks"] += 1
        return plain(self, model, batch)

    monkeypatch.setattr(task_type, "loss", watched)
    more = USUAL if codec is None else USUAL | {"codec": codec}
    result = simulated(spoken(num_frames=900, batch_frames=126), strategy, 2, **more)
    assert result.frames == 1800
    assert seen["3 chunks"] > 1  # halves of 6
    assert not seen["torn"]


def test_a_run_goes_on_where_its_checkpoint_was(tmp_path: Any) -> None:
    task = spoken(BOTH, num_frames=900)

    more = {**USUAL, "checkpoint_every": 0.5}
    whole = simulated(task, KStep(sync_every=2), 2, out=tmp_path / "whole", **more)
    part = keep_only_first_checkpoint(tmp_path / "whole", tmp_path / "part")
    again = simulated(task, KStep(sync_every=2), 2, out=part, resume=True, **more)
    assert same_model(whole, again)
