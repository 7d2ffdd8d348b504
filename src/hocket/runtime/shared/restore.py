"""Restores learners from a checkpoint: the same number of them, or another."""

from __future__ import annotations

import torch

from hocket.core.effects import Message
from hocket.core.flat import Flat, Layout
from hocket.core.strategy import State
from hocket.data.shared_ledger import Counters, load_counters
from hocket.errors import CheckpointError
from hocket.optim.natural_gradient.preconditioning import restored_sides
from hocket.record.checkpoint import Saved
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.worker import WorkerState


def restore(
    rank: RankContext, fresh: State, saved: Saved, layout: Layout
) -> tuple[State, list[Message]]:
    """Return a rank's strategy state and unread messages, and put back what the runtime keeps.

    With the same learners every rank goes on from its own part. With another number of learners
    all learners start from the saved model, and private state comes from old rank (rank mod P_old);
    what had been drawn and not settled is dealt out again, and unread messages are dropped.
    """
    account = rank.account
    same = saved.ranks == list(account.alive)
    template = {"state": fresh}
    source = rank.rank if same else saved.ranks[rank.rank % len(saved.ranks)]
    part = saved.part(source, template, on=fresh.params.device)
    if part["state"].params.numel() != layout.size:
        raise CheckpointError(
            f"{saved.path}: its model has {part['state'].params.numel()} values, the task's has "
            f"{layout.size}: the task's model has changed since the run was begun"
        )
    account.ledger.load_state_dict(part["ledger"], same_learners=same)
    rank.load_state_dict(part["desk"])  # the key is old and must stay: checkpoints have it
    rank.worker_state = WorkerState(dict(part["buffers"]), restored_sides(part.get("sides", {})))
    if same:
        return part["state"], [Message(*one) for one in part["inbox"]]
    rank.start_over(saved.run["time_s"])
    on = fresh.params.device
    old = [saved.part(one, template, on=on)["state"] for one in saved.ranks]
    return rank.experiment.strategy.adopt(old, _flat_model(saved, layout).to(on), rank.rank), []


def restore_counters(counters: Counters, saved: Saved, alive: tuple[int, ...]) -> None:
    """Restore the counters of the shared ledger, once for all learners."""
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
