"""Sequence tasks: what an item holds, what padding and company change, what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tasks import spoken

from hocket import CLDNN, DNN, LSTM, TDNN, HocketError, SyntheticChunks, config
from hocket.core.accounts import Ticket
from hocket.core.task import Divisible
from hocket.data.chunks import Chunks, Cutting, Plan, labels_of, places_of
from hocket.data.pool import Pool
from hocket.models.sequence import SequenceModel
from hocket.runtime.shared.worker import Worker

LENGTHS = np.array([50, 21, 22, 300, 7, 50, 1])
SMALL_CLDNN = CLDNN(
    maps=3, conv_frames=3, conv_bins=3, pool_bins=2, linear=6, layers=1, cells=5, width=7
)
MODELS: list[SequenceModel] = [
    LSTM(layers=2, cells=5, projection=3, look_ahead=2),
    LSTM(layers=2, cells=5, bidirectional=True, bottleneck=4),
    TDNN(width=8, dilations=(1, 0, 2)),
    TDNN(width=8, dilations=(1, 2), bottleneck=3),
    SMALL_CLDNN,
]
each_model = pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{m.name}-{m.reach}")


def cutting(width: int, left: int = 3, right: int = 2, batch: int = 100) -> Cutting:
    return Cutting(width, left, right, batch)


def frames_held(plan: Plan, epoch: int | None) -> list[tuple[int, int]]:
    held = []
    for item, announced in enumerate(plan.frames):
        pieces = plan.pieces(item, epoch)
        assert pieces.frames.sum() == announced
        for utterance, first, count in zip(*pieces, strict=True):
            held += [(int(utterance), int(first) + i) for i in range(count)]
    return held


@pytest.mark.parametrize("width", [1, 21, 40, 0])
def test_every_epoch_holds_every_frame_once(width: int) -> None:
    plan = Plan(LENGTHS, cutting(width), 100, key=0)
    everything = [(u, t) for u, length in enumerate(LENGTHS) for t in range(length)]
    orders = [frames_held(plan, epoch) for epoch in (None, 0, 1, 0)]
    for order in orders:
        assert sorted(order) == everything
    assert orders[1] == orders[3]
    if width:
        assert orders[0] != orders[1] != orders[2]
    longest = [int(plan.pieces(i, 0).frames.max()) for i in range(len(plan.frames))]
    assert max(longest) <= (width or 300)
    assert longest == sorted(longest, reverse=True)  # neighbours in length share an item


def test_chunks_of_one_utterance_are_equally_long_but_for_a_frame() -> None:
    plan = Plan(np.array([50]), cutting(21), 1000, key=0)
    assert plan.pieces(0, None).frames.tolist() == [17, 17, 16]
    assert plan.pieces(0, None).first.tolist() == [16, 33, 0]


def test_an_item_holds_at_most_batch_frames_with_its_padding() -> None:
    plan = Plan(LENGTHS, cutting(21), 100, key=0)
    for item in range(len(plan.frames)):
        frames = plan.pieces(item, None).frames
        assert len(frames) * frames.max() <= 100


def test_labels_and_rows_are_those_of_the_frames() -> None:
    pieces = Plan(np.array([5, 4]), cutting(3), 100, key=0).pieces(0, None)
    starts = np.array([100, 200])[pieces.utterances]
    assert labels_of(pieces, starts).tolist() == [102, 103, 104, 100, 101, 200, 201, 202, 203]
    rows, size = places_of(pieces, cutting(3))
    assert rows.tolist() == [-1, -3, -3, -1]
    assert size == 3 + 3 + 2


def alone(task: SyntheticChunks, network: Any, batch: Chunks) -> torch.Tensor:
    """The loss of every chunk by itself, without padding or company."""
    total, begin = torch.zeros((), dtype=torch.float64), 0
    left, right = task.model.reach  # type: ignore[attr-defined]
    for row, count in enumerate(batch.counts):
        x = batch.x[row : row + 1, : batch.left + count + batch.right]
        scores = network(x)[0]
        assert len(scores) == x.shape[1] - left - right
        mine = scores[batch.left - left :][:count]
        labels = batch.labels[begin : begin + count]
        total = total + torch.nn.functional.cross_entropy(mine, labels, reduction="sum")
        begin += count
    return total


@each_model
@pytest.mark.parametrize("width", [21, 0])
def test_padding_and_company_change_nothing(model: SequenceModel, width: int) -> None:
    task = spoken(model, num_frames=900, chunk_frames=width, batch_frames=700)
    torch.manual_seed(0)
    network = task.build_model().double()
    torch.nn.init.normal_(network.output.weight)  # type: ignore[union-attr, arg-type]
    item = task.items("train")[0]
    batch = task.load("train", item, 0)
    batch = batch._replace(x=batch.x.double())
    assert width or batch.lengths is not None  # whole utterances: some are padded
    loss = task.loss(network, batch)
    assert loss.frames == item.frames == len(batch.labels)
    assert torch.allclose(loss.total, alone(task, network, batch), rtol=1e-12)
    spoilt = batch.x.clone()
    for row, count in enumerate(batch.counts):
        spoilt[row, batch.left + count + batch.right :] = 1e3
    assert torch.allclose(task.loss(network, batch._replace(x=spoilt)).total, loss.total)


@each_model
def test_parts_of_an_item_are_whole_chunks_and_add_up(model: SequenceModel) -> None:
    task = spoken(model, num_frames=600, batch_frames=90)
    worker = Worker(task, Pool(task, epochs=1, seed=0), seed=0)
    state = worker.new_state()
    batch = task.load("train", task.items("train")[0], 0)
    assert isinstance(batch, Divisible)
    chunks = len(batch.counts)
    ticket = Ticket(0, 0, task.items("train")[0].frames)
    whole = worker.gradient(worker.initial, ticket, state)
    for of in (2, chunks + 2):
        parts = [worker.gradient(worker.initial, ticket, state, (i, of)) for i in range(of)]
        assert sum(p.frames for p in parts) == whole.frames
        assert sum(1 for p in parts if not p.frames) == max(0, of - chunks)
        total = torch.stack([p.vector.double() * p.frames for p in parts]).sum(0) / whole.frames
        torch.testing.assert_close(total.float(), whole.vector, rtol=1e-3, atol=1e-5)


def test_dropout_is_the_items_own() -> None:
    model = LSTM(layers=1, cells=6, dropout=0.3, recurrent_dropout=0.4)
    task = spoken(model, num_frames=600)
    workers = [Worker(task, Pool(task, epochs=1, seed=0), seed=0) for _ in range(2)]
    ticket = Ticket(0, 1, task.items("train")[1].frames)
    torch.manual_seed(99)
    first = workers[0].gradient(workers[0].initial, ticket, workers[0].new_state())
    torch.manual_seed(1)
    again = workers[1].gradient(workers[1].initial, ticket, workers[1].new_state())
    assert torch.equal(first.vector, again.vector)


def options(**given: Any) -> SimpleNamespace:
    usual = {"chunk_frames": 21, "left_context": None, "right_context": None, "batch_frames": 10}
    return SimpleNamespace(**(usual | given))


def test_contexts_follow_from_the_model_unless_they_are_given() -> None:
    assert Cutting.of(options(), LSTM()) == Cutting(21, 10, 5, 10)
    assert Cutting.of(options(), LSTM(bidirectional=True)) == Cutting(21, 10, 10, 10)
    assert Cutting.of(options(), TDNN(dilations=(1, 2))) == Cutting(21, 3, 3, 10)
    assert Cutting.of(options(chunk_frames=0), LSTM()) == Cutting(0, 0, 5, 10)
    assert Cutting.of(options(left_context=0, right_context=7), LSTM()) == Cutting(21, 0, 7, 10)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"right_context": 2}, "less than the 5 frames"),
        ({"chunk_frames": 0, "left_context": 5}, "no effect on whole utterances"),
        ({"chunk_frames": -1}, "at least 0"),
        ({"batch_frames": 0}, "at least 1"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(HocketError, match=says):
        SyntheticChunks(**given)


def test_the_model_decides_which_task_it_is() -> None:
    for name, kind in (("lstm", "SyntheticChunks"), ("dnn", "Synthetic")):
        made = config.build_task({"task": {"name": "synthetic"}, "model": {"name": name}})
        assert type(made).__name__ == kind
    tables: dict[str, Any] = {"task": {"name": "synthetic", "context": 3}}
    tables["model"] = {"name": "tdnn"}
    with pytest.raises(HocketError, match="unknown key 'context'"):
        config.build_task(tables)
    with pytest.raises(HocketError, match="reads windows"):
        SyntheticChunks(model=DNN())
    with pytest.raises(HocketError, match="no sequences"):
        config.build_task({"task": {"name": "stream"}, "model": {"name": "lstm"}})


@pytest.mark.parametrize(("model", "clip"), [("lstm", 1.0), ("cldnn", 1.0), ("tdnn", None)])
def test_gradients_of_recurrent_models_are_clipped_unless_told_otherwise(
    model: str, clip: float | None
) -> None:
    tables: dict[str, Any] = {"model": {"name": model}}
    assert config.build_parts(tables)["optimizer"].clip_norm == clip
    tables["optimizer"] = {"clip_norm": float("inf")}
    assert config.build_parts(tables)["optimizer"].clip_norm == float("inf")
    given = config.record(config.build_experiment({"model": {"name": model}}))
    again = config.build_experiment({k: v for k, v in given.items() if k in config.TABLES})
    assert type(again.task).__name__ == "SyntheticChunks"
