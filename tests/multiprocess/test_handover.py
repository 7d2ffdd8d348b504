"""Large tensors in messages within a host: written once, used where they lie, given back."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from hocket import ADPSGD, ASGD, DNN, SGD, AsyncEASGD, Cluster, Constant, Strategy, Synthetic, api
from hocket.core.packing import from_buffer, to_parts
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.net.handover import SMALLEST, Handover
from hocket.runtime.net.shared_memory import AVAILABLE

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no memfd_create on this system")
BIG = SMALLEST // 4 + 10  # float32 values


class Pair:
    """Two learners of one host, in one process: what one puts in, the other takes out."""

    def __init__(self) -> None:
        self.sides = {rank: Handover(rank, frozenset({0, 1})) for rank in (0, 1)}

    def move(self, tensor: torch.Tensor, to: int) -> torch.Tensor:
        fds: list[int] = []
        where = self.sides[1 - to].put(tensor, to, fds)
        assert where is not None
        received = [os.dup(fd) for fd in fds]  # as the kernel does
        taken = self.sides[to].take(where, received)
        assert not received
        return taken.view(tensor.dtype).view(tensor.shape)

    def num_slots(self, rank: int) -> int:
        return len(self.sides[rank]._slots)


def test_what_is_taken_is_what_was_put_and_the_senders_own_stays_its_own() -> None:
    pair, mine = Pair(), torch.randn(BIG)
    kept = mine.clone()
    taken = pair.move(mine, to=1)
    assert torch.equal(taken, kept)
    taken.zero_()  # it belongs to the receiver
    assert torch.equal(mine, kept)


def test_a_slot_is_filled_again_when_its_tensor_is_gone_and_not_before() -> None:
    pair = Pair()
    first = pair.move(torch.full((BIG,), 1.0), to=1)
    second = pair.move(torch.full((BIG,), 2.0), to=1)
    assert pair.num_slots(0) == 2
    piece = first[5:7]  # a view holds it, too
    del first
    gc.collect()
    third = pair.move(torch.full((BIG,), 3.0), to=1)
    assert pair.num_slots(0) == 3
    assert piece.tolist() == [1.0, 1.0]
    del piece, second
    gc.collect()
    for number in range(4, 9):
        assert pair.move(torch.full((BIG,), float(number)), to=1)[0] == number
        assert pair.num_slots(0) == 3
    assert third[0] == 3.0


def test_what_goes_back_to_its_owner_is_not_written_again() -> None:
    """One slot goes to and fro, however often, also when it is sent on by its owner."""
    pair = Pair()
    tensor = torch.arange(BIG, dtype=torch.float32)
    for _ in range(5):
        there = pair.move(tensor, to=1)
        there += 1
        tensor = pair.move(there, to=0)
        del there
        gc.collect()
        assert (pair.num_slots(0), pair.num_slots(1)) == (1, 0)
    assert torch.equal(tensor, torch.arange(BIG) + 5.0)


def test_a_part_of_what_came_is_written_anew() -> None:
    """The rest of it may still be in use."""
    pair = Pair()
    there = pair.move(torch.arange(2 * BIG, dtype=torch.float32), to=1)
    back = pair.move(there[:BIG], to=0)
    back.zero_()
    assert torch.equal(there, torch.arange(2 * BIG, dtype=torch.float32))


def test_what_was_given_away_is_not_freed_by_the_giver() -> None:
    pair = Pair()
    there = pair.move(torch.ones(BIG), to=1)
    back = pair.move(there, to=0)
    del there  # the receiver of before lets go only now
    gc.collect()
    pair.move(torch.zeros(BIG), to=1)
    assert torch.equal(back, torch.ones(BIG))


def test_a_larger_tensor_replaces_slots_that_it_has_outgrown() -> None:
    pair = Pair()
    pair.move(torch.ones(BIG), to=1)
    gc.collect()
    big = pair.move(torch.ones(3 * BIG), to=1)
    assert pair.num_slots(0) == 1
    assert big.sum() == 3 * BIG


def test_what_a_lost_learner_holds_is_given_up() -> None:
    pair = Pair()
    held = pair.move(torch.ones(BIG), to=1)
    pair.sides[0].lose(1)
    assert pair.num_slots(0) == 0
    assert held.sum() == BIG  # its memory is there as long as it is used


def test_small_tensors_and_those_for_another_host_travel_with_the_message() -> None:
    handover = Handover(0, frozenset({0, 1}))
    assert handover.put(torch.ones(4), 1, []) is None
    assert handover.put(torch.ones(BIG), 2, []) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16])
def test_a_message_may_have_both(dtype: torch.dtype) -> None:
    pair, fds = Pair(), []  # type: ignore[var-annotated]
    tree = {"a": (1, torch.arange(2 * BIG).to(dtype).view(2, BIG)), "b": torch.ones(3), "c": None}
    data = b"".join(to_parts(tree, lambda t: pair.sides[0].put(t, 1, fds)))
    assert len(data) < SMALLEST
    received = [os.dup(fd) for fd in fds]
    owned = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    back = from_buffer(owned, lambda where: pair.sides[1].take(where, received))
    assert back["a"][0] == 1
    assert torch.equal(back["a"][1], tree["a"][1])  # type: ignore[index]
    assert torch.equal(back["b"], torch.ones(3))
    assert back["c"] is None


def test_no_descriptor_is_left_behind() -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    gc.collect()  # what earlier tests have left
    before = count()
    for _ in range(3):
        pair = Pair()
        for size in (1, 2, 3):
            pair.move(torch.ones(size * BIG), to=1)
        for side in pair.sides.values():
            side.close()
        del pair
    gc.collect()
    assert count() == before


@pytest.mark.parametrize(
    "strategy",
    [
        ADPSGD(),
        AsyncEASGD(sync_every=2),
        ASGD(servers=1),
        ASGD(servers=2, accumulate=2, softsync=2, delay_compensation=0.04),
        ASGD(servers=0, overlap=0),
    ],
    ids=["adpsgd", "async-easgd", "asgd", "asgd-shards", "asgd-shared"],
)
def test_large_models_arrive_as_they_were_sent(strategy: Strategy[Any], tmp_path: Path) -> None:
    """A real run, played again in the simulator, ends with the same model: no slot was spoilt."""
    experiment = Experiment(
        Synthetic(num_frames=4_000, batch_frames=50, dev_frames=200, model=DNN(width=160)),
        strategy,
        SGD(lr=0.02, momentum=0.9),
        Constant(epochs=1),
        options=RuntimeOptions(learners=4, trace=True, tensorboard=False, timeout_s=60.0),
    )
    real = api.run_real(experiment, tmp_path / "run", progress=False)
    assert sum(p.numel() for p in experiment.task.build_model().parameters()) > BIG
    cluster = Cluster.even(4)
    again = api.run_simulated(experiment, cluster, None, progress=False, replay=tmp_path / "run")
    for name, value in real.model.items():
        torch.testing.assert_close(again.model[name], value, rtol=1e-4, atol=1e-5)
