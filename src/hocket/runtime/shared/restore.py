"""Restores learners from a checkpoint: the same number of them, or another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hocket.core.codec import shared_out
from hocket.core.effects import Message
from hocket.core.flat import Flat, Layout
from hocket.core.packing import flatten
from hocket.core.strategy import State
from hocket.data.counters import Counters, Volume, load_counters
from hocket.data.pool import Pool
from hocket.data.shared_ledger import left_of_shards, whole_shards
from hocket.errors import CheckpointError, DamagedError, HocketError
from hocket.optim.natural_gradient.preconditioning import restored_sides
from hocket.record.checkpoint import Saved
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.worker import WorkerState


def restore(
    rank: RankContext, fresh: State, saved: Saved, layout: Layout, place: range | None = None
) -> tuple[State, list[Message]]:
    """Return a rank's strategy state and unread messages, and put back what the runtime keeps.

    With the same learners every rank goes on from its own part. With another number of learners
    all learners start from the saved model, and private state comes from old rank (rank mod P_old);
    what had been drawn and not settled is dealt out again, and unread messages are dropped. So it
    is with a rank that now holds another `place` of the model.
    """
    with fitting(saved):
        return _restored(rank, fresh, saved, layout, place or range(layout.size))


@contextmanager
def fitting(saved: Saved) -> Iterator[None]:
    """Name the checkpoint if what it holds cannot be put back: another version, or a forgery."""
    try:
        yield
    except HocketError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {error}"
        raise DamagedError(
            f"checkpoint {saved.path} does not hold what this run needs ({why}): was it written by "
            "another version? Remove it to resume from the one before"
        ) from error


def _restored(
    rank: RankContext, fresh: State, saved: Saved, layout: Layout, place: range
) -> tuple[State, list[Message]]:
    account = rank.account
    same = same_ranks(saved, account.pool, account.alive, len(account.learners))
    template = {"state": fresh}
    source = rank.rank if same else saved.ranks[rank.rank % len(saved.ranks)]
    part = saved.part(source, template, on=fresh.params.device)
    strategy = rank.experiment.strategy
    fits = same and strategy.still_fits(part["state"], place)
    in_stages = strategy.evaluates == "stages"
    if part["state"].params.numel() != layout.size and not in_stages:
        raise CheckpointError(
            f"{saved.path}: its model has {part['state'].params.numel()} values, the task's has "
            f"{layout.size}: the task's model has changed since the run was begun"
        )
    if fits:
        _check_shapes(fresh, part["state"], saved)
    begun = rank.worker_state
    account.ledger.load_state_dict(part["ledger"], same_learners=same)
    rank.load_state_dict(part["desk"])  # the key is old and must stay: checkpoints have it
    rank.worker_state = WorkerState(dict(part["buffers"]), restored_sides(part.get("sides", {})))
    if fits:
        return part["state"], [Message(*one) for one in part["inbox"]]
    if in_stages:  # what a stage had learnt of its layers' inputs is learnt again
        rank.worker_state = WorkerState({name: saved.model[name] for name in begun.buffers})
    if not same:
        first = rank.rank == 0  # it takes over what all had counted, else it would be told twice
        rank.start_over(
            saved.run["time_s"], [saved.plain(one, "desk") for one in saved.ranks] if first else []
        )
    on = fresh.params.device
    old = [saved.part(one, template, on=on)["state"] for one in saved.ranks]
    model = _flat_model(saved, layout).to(on)
    if saved.staying:
        state = strategy.welcome(old, model, rank.rank, saved.staying)
    else:
        state = strategy.adopt(old, model, rank.rank)
    kept = [one.memory for one in old if one.memory is not None]
    if kept:
        state.memory = shared_out(kept, rank.rank, len(account.learners))
    return state, []


def _check_shapes(fresh: State, restored: State, saved: Saved) -> None:
    """Raise unless vectors are as long as those that a learner begins with, if it has them."""
    begun, kept = flatten(fresh)[1], flatten(restored)[1]
    for name in sorted(begun.keys() & kept.keys()):
        like = begun[name].shape == kept[name].shape and begun[name].dtype == kept[name].dtype
        if begun[name].numel() and not like:
            raise DamagedError(
                f"checkpoint {saved.path}: {name!r} is {kept[name].dtype} of shape "
                f"{list(kept[name].shape)}, not {begun[name].dtype} of {list(begun[name].shape)}"
            )


def same_ranks(saved: Saved, pool: Pool, alive: tuple[int, ...], num_learners: int) -> bool:
    """True if a checkpoint has the parts of these very ranks, as many of them learners.

    Fixed shards must be those of as many learners, too: after the last of three was lost, the
    first two have shards of three, and two that begin anew would draw from shards of two.
    """
    there = saved.ranks == list(alive) and saved.run["learners"] == num_learners
    cut_alike = pool.sharding != "fixed" or _cut_for(saved, num_learners)
    return there and not saved.staying and cut_alike


def _cut_for(saved: Saved, num_learners: int) -> bool:
    """True if the learners' shards, where a ledger has shards, are those of so many."""
    ledgers = [saved.plain(rank, "ledger") for rank in saved.ranks]
    with fitting(saved):
        return all(part["shard"][1] == num_learners for part in ledgers if "shard" in part)


def restore_counters(
    counters: Counters, pool: Pool, saved: Saved, alive: tuple[int, ...], num_learners: int
) -> None:
    """Restore the counters of the shared ledger, once for all learners."""
    parts = [saved.plain(rank, "ledger") for rank in saved.ranks]
    with fitting(saved):
        unsettled = [place for part in parts for place in part["pending"]]
        if same_ranks(saved, pool, alive, num_learners):
            lanes = [part["lane"] for part in parts[:num_learners]]
            load_counters(Volume(counters), saved.run["counters"], [], unsettled, lanes)
        else:
            unsettled += [list(place) for place in left_of_shards(pool, parts)]
            drawn = whole_shards(pool, num_learners)  # nobody draws from a shard any more
            load_counters(Volume(counters), saved.run["counters"], unsettled, lanes=drawn)


def _flat_model(saved: Saved, layout: Layout) -> Flat:
    missing = [e.name for e in layout.entries if e.name not in saved.model]
    if missing:
        raise CheckpointError(f"{saved.path}: the model has no parameter {missing[0]!r}")
    return layout.pack(torch.as_tensor(saved.model[e.name]) for e in layout.entries)
