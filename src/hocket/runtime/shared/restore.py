"""Putting learners back where a checkpoint left them, with the same learners or with others."""

from __future__ import annotations

from typing import Any

import torch

from hocket.core.effects import Message
from hocket.core.flat import Flat, Layout
from hocket.core.strategy import State
from hocket.data.ledger import ReplicatedLedger
from hocket.data.shared_ledger import Counters, load_counters
from hocket.errors import CheckpointError
from hocket.optim.natural_gradient.preconditioning import restored_sides
from hocket.record.checkpoint import Saved
from hocket.runtime.shared.account import Desk
from hocket.runtime.shared.worker import WorkerState


def restore(desk: Desk, fresh: State, saved: Saved, layout: Layout) -> tuple[State, list[Message]]:
    """Return the state of `desk`'s learner and its unread messages, and put the desk itself back.

    With the same learners every rank goes on from its own part. With another number of learners
    everybody starts from the saved model, and private state comes from old rank (rank mod P_old);
    what had been drawn and not settled is dealt out anew, and unread messages are dropped.
    """
    same = saved.ranks == list(desk.alive)
    template = {"state": fresh}
    source = saved.ranks[desk.rank % len(saved.ranks)]
    part = saved.part(desk.rank if same else source, template, on=fresh.params.device)
    if part["state"].params.numel() != layout.size:
        raise CheckpointError(
            f"{saved.path}: its model has {part['state'].params.numel()} values, the task's has "
            f"{layout.size}: the task's model has changed since the run was begun"
        )
    _restore_ledger(desk, part["ledger"], same=same)
    desk.load_state_dict(part["desk"])
    desk.worker_state = WorkerState(dict(part["buffers"]), restored_sides(part.get("sides", {})))
    if same:
        return part["state"], [Message(*one) for one in part["inbox"]]
    desk.begin_anew(saved.run["time_s"])
    on = fresh.params.device
    old = [saved.part(rank, template, on=on)["state"] for rank in saved.ranks]
    return desk.experiment.strategy.adopt(old, _flat_model(saved, layout).to(on), desk.rank), []


def _restore_ledger(desk: Desk, state: dict[str, Any], *, same: bool) -> None:
    if isinstance(desk.ledger, ReplicatedLedger):
        desk.ledger.load_state_dict(state, same_learners=same)
    elif same:
        desk.ledger.load_state_dict(state)
    elif desk.pool.sharding == "fixed":
        raise CheckpointError(
            f"{desk.experiment.strategy.name!r} with runtime.sharding = 'fixed' can only be "
            "resumed with the same number of learners: each has its own place in its own shard"
        )
    else:
        desk.ledger.refresh()


def restore_counters(counters: Counters, saved: Saved, alive: tuple[int, ...]) -> None:
    """Put the shared account back, once for all learners."""
    parts = [saved.plain(rank, "ledger") for rank in saved.ranks]
    unsettled = [place for part in parts for place in part["pending"]]
    if saved.ranks == list(alive):
        lanes = [part["lane"] for part in parts]
        load_counters(counters, saved.run["counters"], [], unsettled, lanes)
    else:
        load_counters(counters, saved.run["counters"], orphans=unsettled)


def _flat_model(saved: Saved, layout: Layout) -> Flat:
    missing = [e.name for e in layout.entries if e.name not in saved.model]
    if missing:
        raise CheckpointError(f"{saved.path}: the model has no parameter {missing[0]!r}")
    return layout.pack(torch.as_tensor(saved.model[e.name]) for e in layout.entries)
