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
from typing import Any

import torch

from hocket.core.effects import AllReduce, Broadcast, Evaluate, Verdict
from hocket.core.flat import Flat, Layout
from hocket.core.strategy import State
from hocket.errors import CheckpointError, ContractError
from hocket.optim.natural_gradient.preconditioning import saved_sides
from hocket.record.checkpoint import Checkpoints
from hocket.runtime.shared.account import Account
from hocket.runtime.shared.agenda import Due
from hocket.runtime.shared.boundary_effects import Gather, Quiet
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.worker import WorkerState, mean_buffers


@dataclass
class Meeting:
    """What the world lends to a boundary."""

    layout: Layout
    frozen: dict[str, torch.Tensor]  # parameters that are not trained, saved with the model
    now: Callable[[], float]
    checkpoints: Checkpoints | None
    common_state: Callable[[], dict[str, Any]]  # shared ledger, clocks; saved once
    inbox: Callable[[int], list[Any]]  # what has arrived at a rank and waits to be received
    forks: Callable[[int], int]  # how many forked effects of a rank are in flight


async def hold(rank: RankContext, state: State, meeting: Meeting) -> Verdict:
    """Go on at once; or, if something is due, meet the others, evaluate, save, perhaps stop."""
    account, agenda = rank.account, rank.agenda
    account.ledger.refresh()
    account.check_progress()
    if not agenda.due().quiet:
        return account.verdict(go_on=True)
    rank.trace("met", "")
    _no_forks(rank.rank, meeting.forks(rank.rank))
    arrived = meeting.now()
    await Quiet()
    began = meeting.now()
    await _agree(rank)
    due = agenda.due(agreed=True)
    model = await _model(account, state)
    if due.evaluate:
        figures = await _figures(rank, state, model)
        await _evaluate(rank, model, meeting, began, figures)
        due = agenda.due(agreed=True)  # newbob may have decided to stop
    if due.checkpoint or due.finished:
        agenda.checkpointed()
        if meeting.checkpoints is not None:
            account.aside_s += meeting.now() - began
            began = meeting.now()
            await _save(rank, state, model, meeting, meeting.checkpoints, due, arrived)
    account.aside_s += meeting.now() - began
    return account.verdict(go_on=not (due.stop or due.finished))


def _no_forks(rank: int, forks: int) -> None:
    if forks:
        raise ContractError(
            f"rank {rank}: {forks} forked effect(s) still in flight at a boundary: "
            "await every handle before `boundary` (contract rule 6)"
        )


async def _agree(rank: RankContext) -> None:
    """Compare the learners' accounts, and settle what only some of them know."""
    account, ledger = rank.account, rank.account.ledger
    ledger.refresh()
    notes = await Gather(
        {
            "stop": rank.agenda.stop_wanted,
            "frames": account.frames,
            "settled": ledger.settled_for_others(),
        }
    )
    rank.agenda.stop_agreed = any(note["stop"] for note in notes)
    if len({note["frames"] for note in notes}) > 1:
        raise ContractError(
            f"rank {rank.rank}: the learners' ledgers disagree at a quiet point: "
            f"{[note['frames'] for note in notes]} frames. A synchronous strategy must settle on "
            "every rank (contract rule 10)."
        )
    ledger.reconcile([place for note in notes for place in note["settled"]])
    await _recover(account)


async def _recover(account: Account) -> None:
    """Return to the pool what learners lost since the last quiet point had drawn; all are here."""
    ledger = account.ledger
    while ledger.behind(account.alive):
        held = await Gather(ledger.pending_places())
        alive = account.alive
        if account.rank == alive[0]:
            ledger.recover([place for one in held for place in one], alive)
        await Gather(None)
        if account.alive == alive:  # else the learner that recovered may have died while it did
            ledger.survived_by(alive)


async def _model(account: Account, state: State) -> Flat:
    """Return the model that is evaluated and saved, the same on every learner."""
    strategy = account.experiment.strategy
    mine = strategy.model(state)
    if strategy.evaluates == "average":
        return (await AllReduce(mine, weight=1.0)).value
    if strategy.evaluates == "root":
        return await Broadcast(mine, root=account.alive[0])
    sums = await Gather(zlib.crc32(mine.contiguous().cpu().numpy().data))
    if len(set(sums)) > 1:
        raise ContractError(
            f"strategy {strategy.name!r} declares identical replicas, but at {account.frames} "
            f"frames the learners' models differ (checksums {sums})"
        )
    return mine


async def _figures(rank: RankContext, state: State, model: Flat) -> dict[str, Any]:
    """Return what the strategy has measured, and how far the learners' models are apart."""
    strategy = rank.experiment.strategy
    apart = None
    if strategy.evaluates == "average":
        apart = float(torch.linalg.vector_norm(strategy.model(state) - model))
    notes = await Gather({"apart": apart, "measures": rank.reporter.take_measures()})
    figures: dict[str, Any] = {}
    if apart is not None:
        squares = [note["apart"] ** 2 for note in notes]
        norm = float(torch.linalg.vector_norm(model))
        figures["consensus"] = math.sqrt(sum(squares) / len(squares)) / (norm or 1.0)
    for name in sorted({name for note in notes for name in note["measures"]}):
        given = [note["measures"][name] for note in notes if name in note["measures"]]
        figures[name] = sum(m[1] for m in given) / sum(m[0] for m in given)
        figures[f"{name}_max"] = max(m[2] for m in given)
    return figures


async def _evaluate(
    rank: RankContext, model: Flat, meeting: Meeting, began: float, figures: dict[str, Any]
) -> None:
    account = rank.account
    if rank.worker_state.buffers:
        buffers = mean_buffers(await Gather(rank.worker_state.buffers))
        rank.scoring_state = WorkerState(buffers)
    scores = await Evaluate(model)
    while scores.frames < account.pool.frames_in(
        "dev"
    ):  # a learner died before its slice was scored
        scores = await Evaluate(model)
    rank.scoring_state = None  # a strategy that scores a model uses its own buffers
    rank.agenda.evaluated(scores)
    if rank.rank == account.alive[0]:
        rank.reporter.event(
            "eval",
            None,
            loss=scores.loss,
            accuracy=scores.accuracy,
            eval_frames=scores.frames,
            eval_s=meeting.now() - began,
            train_s=began - account.aside_s,
            **figures,
        )


async def _save(
    rank: RankContext,
    state: State,
    model: Flat,
    meeting: Meeting,
    checkpoints: Checkpoints,
    due: Due,
    arrived: float,
) -> None:
    """Write every learner's part, then make the checkpoint visible; all or nothing."""
    account = rank.account
    frames, began = account.frames, meeting.now()
    part = {
        "state": state,
        "buffers": rank.worker_state.buffers,
        "sides": saved_sides(rank.worker_state.sides),
        "desk": rank.state_dict(),  # the key is old and must stay: checkpoints have it
        "ledger": account.ledger.state_dict(),
        "inbox": meeting.inbox(rank.rank),
    }
    problem = _attempt(lambda: checkpoints.write_part(frames, rank.rank, part))
    buffers: dict[str, torch.Tensor] = {}
    if rank.worker_state.buffers:
        buffers = mean_buffers(await Gather(rank.worker_state.buffers))
    await _nobody_failed(problem, checkpoints, frames)
    writer = None
    while writer != account.alive[0]:  # if the writer dies, the next learner writes
        writer = account.alive[0]
        problem = None
        if rank.rank == writer:
            problem = _attempt(lambda: _finish(account, model, meeting, checkpoints, due, buffers))
        await _nobody_failed(problem, checkpoints, frames)
    if rank.rank == writer:
        rank.reporter.event(
            "checkpoint",
            None,
            path=f"checkpoints/{frames:012d}",
            wait_s=began - arrived,
            write_s=meeting.now() - began,
        )


def _finish(
    account: Account,
    model: Flat,
    meeting: Meeting,
    checkpoints: Checkpoints,
    due: Due,
    buffers: dict[str, torch.Tensor],
) -> None:
    """Write what is common to all, and make the checkpoint visible."""
    common = {
        "ranks": list(account.alive),
        "learners": len(account.alive),
        "frames": account.frames,
        "committed_frames": account.ledger.committed_frames,
        "epoch": account.ledger.epoch,
        "finished": due.finished,
        "ended_by_schedule": account.schedule_state.stop,
        "time_s": meeting.now(),
        **meeting.common_state(),
    }
    trained = {k: v.clone() for k, v in meeting.layout.named(model).items()}
    checkpoints.finish(account.frames, common, trained | meeting.frozen | buffers)


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
