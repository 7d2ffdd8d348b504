"""What happens at a boundary, written once, as a coroutine over effects like a strategy.

Most boundaries only ask the agenda and go on. When something is due, all learners meet at a *quiet
point*: each has finished and applied its minibatch, messages in flight are delivered, services are
idle. Then the model is evaluated in slices, states are written, and all go on. It is the only
pause of an asynchronous run; its length is logged. The time of evaluating and writing does not
count in speed-ups; the time of waiting for a slower learner does.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hocket.core.effects import (
    AllReduce,
    BoundaryKind,
    Broadcast,
    Evaluate,
    Scores,
    Verdict,
)
from hocket.core.flat import Flat, Layout
from hocket.core.strategy import State
from hocket.errors import CheckpointError, ContractError, LearnerFailedError, PeerLostError
from hocket.experiment import Experiment
from hocket.optim.natural_gradient.preconditioning import saved_sides
from hocket.record.checkpoint import Checkpoints
from hocket.runtime.shared.boundary_effects import Attend, Gather, Quiet, Regroup, Resume
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.context.account import Account
from hocket.runtime.shared.context.agenda import Due
from hocket.runtime.shared.stages import meeting as stages
from hocket.runtime.shared.worker import WorkerState, mean_buffers


@dataclass
class BoundaryServices:
    """What a runtime gives to a boundary."""

    layout: Layout
    frozen: dict[str, torch.Tensor]  # parameters that are not trained, saved with the model
    now: Callable[[], float]
    checkpoints: Checkpoints | None
    common_state: Callable[[], dict[str, Any]]  # clocks; saved once
    inbox: Callable[[int], list[Any]]  # what has arrived at a rank and waits to be received
    forks: Callable[[int], int]  # how many forked effects of a rank are in flight
    # Where parts are left when the group goes on with other learners; None: in a checkpoint.
    handover: Callable[[], Checkpoints] | None = None


async def at_boundary(
    rank: RankContext, state: State, services: BoundaryServices, kind: BoundaryKind = "pass"
) -> Verdict:
    """Go on at once; or, if something is due, meet the others, evaluate, save, perhaps stop."""
    account, agenda = rank.account, rank.agenda
    account.ledger.refresh()
    if kind == "look":
        return account.verdict(go_on=not agenda.due().quiet)
    rank.trace("passed", "")  # a method may go by how far the run is known to be
    if account.held_back:
        await Gather(None)
        account.settle_held()
    if account.resumed and not agenda.due().quiet:
        account.resumed = False
        return account.verdict(go_on=True, met=True)  # of the meeting at which it was saved
    if kind == "attend":
        await Attend()
    else:
        account.check_progress()
        if not (agenda.due().quiet or kind == "meet"):
            return account.verdict(go_on=True)
    rank.trace("met", "")
    _no_forks(rank.rank, services.forks(rank.rank))
    arrived = services.now()
    await Quiet()
    began = services.now()
    regroups = await _agree(rank)
    due = agenda.due(agreed=True)
    wanted = due.evaluate or due.checkpoint or due.finished or regroups
    model = await _model(rank, state, services.layout) if wanted else state.params
    if due.evaluate:
        figures = await _figures(rank, state, model)
        await _evaluate(rank, state, model, services, began, figures)
        due = agenda.due(agreed=True)  # newbob may have decided to stop
    regroups = regroups and not (due.stop or due.finished)
    if due.checkpoint or due.finished or (regroups and services.handover is None):
        agenda.checkpointed()
        if services.checkpoints is not None:
            account.aside_s += services.now() - began
            began = services.now()
            await _save(rank, state, model, services, services.checkpoints, due, arrived)
    if regroups:
        if services.handover is not None:
            await _save(rank, state, model, services, services.handover(), due, arrived, told=False)
        account.aside_s += services.now() - began
        began = services.now()
        await Regroup()
    account.aside_s += services.now() - began
    await Resume()
    return account.verdict(go_on=not (due.stop or due.finished), met=True)


def _no_forks(rank: int, forks: int) -> None:
    if forks:
        raise ContractError(
            f"rank {rank}: {forks} forked effect(s) still in flight at a boundary: "
            "await every handle before `boundary` (contract rule 6)"
        )


async def _agree(rank: RankContext) -> bool:
    """Compare the learners' accounts, and settle what only some of them know.

    Return whether somebody waits to be let in, as far as anybody knows.
    """
    account, ledger = rank.account, rank.account.ledger
    ledger.refresh()
    notes = await Gather(
        {
            "stop": rank.agenda.stop_wanted,
            "meet": rank.agenda.meet_wanted,
            "frames": account.frames,
            "settled": ledger.settled_for_others(),
        }
    )
    if not account.learners:
        raise LearnerFailedError(f"rank {rank.rank} attends to nobody: no learner is left")
    rank.agenda.stop_agreed = any(note["stop"] for note in notes)
    synchronous = account.experiment.strategy.synchronous  # others share one account
    if synchronous and len({note["frames"] for note in notes}) > 1:
        raise ContractError(
            f"rank {rank.rank}: the learners' ledgers disagree at a quiet point: "
            f"{[note['frames'] for note in notes]} frames. A synchronous strategy must settle on "
            "every rank (contract rule 10)."
        )
    account.settle_held()
    ledger.reconcile([place for note in notes for place in note["settled"]])
    await _recover(account)
    rank.agenda.meet_agreed = False  # until it is piggybacked again
    return any(note["meet"] for note in notes)


async def _recover(account: Account) -> None:
    """Return to the pool what learners lost since the last quiet point had drawn; all are here.

    Nobody goes on before all have read the account: whoever settles an item that it has in hand
    would change it for those who have not, and they would find something else due than the others.
    """
    ledger = account.ledger
    while ledger.behind(account.learners):
        parts = await Gather(ledger.state_dict())
        alive = account.alive
        first = account.rank == alive[0]
        volume = ledger.recover(dict(zip(alive, parts, strict=True))) if first else 0
        volumes = await Gather(volume)
        if account.alive == alive:  # else the learner that recovered may have died while it did
            ledger.survived_by(account.learners, volumes[0])
            await Gather(None)


async def _model(rank: RankContext, state: State, layout: Layout) -> Flat:
    """Return the model that is evaluated and saved, the same on every learner."""
    account = rank.account
    strategy = account.experiment.strategy
    mine = strategy.model(state)
    if strategy.evaluates == "stages":
        return mine
    if strategy.evaluates == "parts":
        return await assembled(rank.rank, account.experiment, state, layout)
    if strategy.evaluates == "average":
        return (await AllReduce(mine, weight=1.0)).value
    if strategy.evaluates == "root":
        return await first_ones(account, mine)
    sums = await Gather(zlib.crc32(mine.contiguous().cpu().numpy().data))
    if len(set(sums)) > 1:
        raise ContractError(
            f"strategy {strategy.name!r} declares identical replicas, but at {account.frames} "
            f"frames the learners' models differ (checksums {sums})"
        )
    return mine


async def first_ones(account: Account, mine: Flat) -> Flat:
    """Return the vector of the first learner alive; if it dies meanwhile, that of the next."""
    while True:
        try:
            return await Broadcast(mine, root=account.alive[0])
        except PeerLostError:  # all see this alike
            await Gather(None)  # now they know who is left


async def assembled(rank: int, experiment: Experiment, state: State, layout: Layout) -> Flat:
    """Return a model that several ranks hold in parts, on all of them."""
    strategy, whole = experiment.strategy, torch.zeros_like(state.params)
    for owner, place in strategy.parts(layout, experiment.options.learners):
        mine = strategy.model(state) if owner == rank else whole[place.start : place.stop]
        whole[place.start : place.stop] = await Broadcast(mine, root=owner)
    return whole


async def _figures(rank: RankContext, state: State, model: Flat) -> dict[str, Any]:
    """Return what the strategy has measured, and how far the learners' models are apart."""
    strategy = rank.experiment.strategy
    apart = None
    if strategy.evaluates == "average":
        apart = float(torch.linalg.vector_norm(strategy.model(state) - model))
    taken = {"measures": rank.reporter.take_measures(), "counts": rank.reporter.take_counts()}
    notes = await Gather({"apart": apart, **taken})
    figures: dict[str, Any] = {}
    if apart is not None:
        squares = [note["apart"] ** 2 for note in notes]
        norm = float(torch.linalg.vector_norm(model))
        figures["consensus"] = math.sqrt(sum(squares) / len(squares)) / (norm or 1.0)
    for name in sorted({name for note in notes for name in note["measures"]}):
        given = [note["measures"][name] for note in notes if name in note["measures"]]
        figures[name] = sum(m[1] for m in given) / sum(m[0] for m in given)
        figures[f"{name}_max"] = max(m[2] for m in given)
    for name in sorted({name for note in notes for name in note["counts"]}):
        given = [note["counts"][name] for note in notes if name in note["counts"]]
        figures[f"{name}_histogram"] = added(given)
    return figures


def added(histograms: list[dict[str, int]]) -> dict[str, int]:
    """Add histograms up, value by value, the smallest first."""
    values = sorted({int(value) for one in histograms for value in one})
    return {str(v): sum(one.get(str(v), 0) for one in histograms) for v in values}


async def _scores(rank: RankContext, state: State, model: Flat) -> Scores:
    """Score the model on the dev split; all learners take a slice, or hold a stage."""
    if rank.experiment.strategy.evaluates == "stages":
        return await stages.scored(rank, state)
    if rank.worker_state.buffers:
        buffers = mean_buffers(await Gather(rank.worker_state.buffers))
        rank.scoring_state = WorkerState(buffers)
    scores = await Evaluate(model)
    while scores.frames < rank.account.pool.frames_in("dev"):  # one died before it had scored
        scores = await Evaluate(model)
    rank.scoring_state = None  # a strategy that scores a model uses its own buffers
    return scores


async def _evaluate(
    rank: RankContext,
    state: State,
    model: Flat,
    services: BoundaryServices,
    began: float,
    figures: dict[str, Any],
) -> None:
    account = rank.account
    scores = await _scores(rank, state, model)
    rank.agenda.evaluated(scores)
    if rank.rank == account.alive[0]:
        rank.reporter.event(
            "eval",
            None,
            loss=scores.loss,
            accuracy=scores.accuracy,
            eval_frames=scores.frames,
            eval_s=services.now() - began,
            train_s=began - account.aside_s,
            discarded_frames=account.ledger.discarded_frames,
            **figures,
        )


async def _save(
    rank: RankContext,
    state: State,
    model: Flat,
    services: BoundaryServices,
    checkpoints: Checkpoints,
    due: Due,
    arrived: float,
    *,
    told: bool = True,
) -> None:
    """Write every learner's part, then make the checkpoint visible; all or nothing."""
    account = rank.account
    began = services.now()
    in_stages = account.experiment.strategy.evaluates == "stages"
    buffers: dict[str, torch.Tensor] = {}
    if rank.worker_state.buffers and not in_stages:
        buffers = mean_buffers(await Gather(rank.worker_state.buffers))
    members = await _write_parts(rank, state, services, checkpoints)
    if in_stages:
        own = services.frozen | rank.worker_state.buffers
        problem = await stages.written(rank, state, services.layout, own, checkpoints)
        await _nobody_failed(problem, checkpoints, account.frames)
    frames, writer = account.frames, None
    while writer != account.alive[0]:  # if the writer dies, the next learner writes
        writer = account.alive[0]
        problem = None
        if rank.rank == writer:
            common = _common(account, members, services, due)
            whole = None if in_stages else _named(model, services, buffers)
            write = partial(checkpoints.finish, common["frames"], common, whole)
            problem = _attempt(write)
        await _nobody_failed(problem, checkpoints, frames)
    if rank.rank == writer and told:
        rank.reporter.event(
            "checkpoint",
            None,
            path=f"checkpoints/{frames:012d}",
            wait_s=began - arrived,
            write_s=services.now() - began,
        )


async def _write_parts(
    rank: RankContext, state: State, services: BoundaryServices, checkpoints: Checkpoints
) -> tuple[int, ...]:
    """Write every learner's part; return whose parts are there, and make up the whole account.

    A learner that dies after this is one of them: its part is complete. One that dies before may
    have had items in hand that are in nobody's part. So they return to the pool first, and all
    write again.
    """
    account = rank.account
    while True:
        await _recover(account)
        part = {
            "state": state,
            "buffers": rank.worker_state.buffers,
            "sides": saved_sides(rank.worker_state.sides),
            "desk": rank.state_dict(),  # the key is old and must stay: checkpoints have it
            "ledger": account.ledger.state_dict(),
            "inbox": services.inbox(rank.rank),
        }
        frames = account.frames
        write = partial(checkpoints.write_part, frames, rank.rank, part)
        await _nobody_failed(_attempt(write), checkpoints, frames)
        if not account.ledger.behind(account.learners):
            return account.alive
        checkpoints.abandon(frames)  # all do, before they meet again in `_recover`


def _common(
    account: Account, members: tuple[int, ...], services: BoundaryServices, due: Due
) -> dict[str, Any]:
    """Return what is common to all parts."""
    return {
        "ranks": list(members),
        "learners": sum(rank < account.experiment.options.learners for rank in members),
        "frames": account.frames,
        "committed_frames": account.ledger.committed_frames,
        "epoch": account.ledger.epoch,
        "finished": due.finished,
        "ended_by_schedule": account.schedule_state.stop,
        "time_s": services.now(),
        **account.ledger.common_state(),
        **services.common_state(),
    }


def _named(
    model: Flat, services: BoundaryServices, buffers: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return what is saved as the model, by name."""
    trained = {k: v.clone() for k, v in services.layout.named(model).items()}
    return trained | services.frozen | buffers


def _attempt(write: Callable[[], Any]) -> str | None:
    try:
        write()
    except Exception as error:  # a full disk, a lost mount: all learners must hear of it
        return f"{type(error).__name__}: {error}"
    return None


async def _nobody_failed(problem: str | None, checkpoints: Checkpoints, frames: int) -> None:
    problems = await Gather(problem)
    first = next((p for p in problems if p), None)
    if first is not None:
        checkpoints.abandon(frames)
        raise CheckpointError(
            f"{checkpoints.dir}: the checkpoint at {frames} frames could not be written: {first}. "
            "Earlier checkpoints are kept: make room, then go on with --resume."
        )
