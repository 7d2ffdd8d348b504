"""What happens at a boundary, written once, as a coroutine over effects like a strategy.

Most boundaries only ask the desk and go on. When something is due, all learners meet at a *quiet
point*: each has finished and applied its minibatch, messages in flight are delivered, services are
idle. Then the model is evaluated in slices, states are written, and everybody goes on. It is the
one pause an asynchronous run has; its length is logged. Evaluating and writing are left out of
speed-ups; waiting for a slower learner is not.
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
from hocket.data.shared_ledger import SharedLedger
from hocket.errors import CheckpointError, ContractError
from hocket.optim.natural_gradient.preconditioning import saved_sides
from hocket.record.checkpoint import Checkpoints
from hocket.runtime.shared.account import Desk, Due
from hocket.runtime.shared.boundary_effects import Gather, Quiet
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


async def hold(desk: Desk, state: State, meeting: Meeting) -> Verdict:
    """Go on, or meet the others, evaluate, save, and say whether to stop."""
    desk.ledger.refresh()
    desk.check_progress()
    if not desk.due().quiet:
        return desk.verdict(go_on=True)
    desk.record("met", "")
    if desk.forks:
        raise ContractError(
            f"rank {desk.rank}: {desk.forks} forked effect(s) still in flight at a boundary: "
            "await every handle before `boundary` (contract rule 6)"
        )
    arrived = meeting.now()
    await Quiet()
    began = meeting.now()
    await _agree(desk)
    due = desk.due(agreed=True)
    model = await _model(desk, state)
    if due.evaluate:
        figures = await _figures(desk, state, model)
        await _evaluate(desk, model, meeting, began, figures)
        due = desk.due(agreed=True)  # newbob may have decided to stop
    if due.checkpoint or due.finished:
        desk.checkpointed()
        if meeting.checkpoints is not None:
            desk.aside_s += meeting.now() - began
            began = meeting.now()
            await _save(desk, state, model, meeting, meeting.checkpoints, due, arrived)
    desk.aside_s += meeting.now() - began
    return desk.verdict(go_on=not (due.stop or due.finished))


async def _agree(desk: Desk) -> None:
    """Lay the learners' views side by side."""
    desk.ledger.refresh()
    shared = desk.ledger if isinstance(desk.ledger, SharedLedger) else None
    notes = await Gather(
        {
            "stop": desk.stop_wanted,
            "frames": desk.frames,
            "settled": shared.settled_for_others() if shared else [],
        }
    )
    desk.stop_agreed = any(note["stop"] for note in notes)
    if len({note["frames"] for note in notes}) > 1:
        raise ContractError(
            f"rank {desk.rank}: the learners' ledgers disagree at a quiet point: "
            f"{[note['frames'] for note in notes]} frames. A synchronous strategy must settle on "
            "every rank (contract rule 10)."
        )
    if shared:
        shared.reconcile([place for note in notes for place in note["settled"]])
        await _recover(desk, shared)


async def _recover(desk: Desk, ledger: SharedLedger) -> None:
    """Give back what was lost with learners since the last quiet point, all being here."""
    while desk.alive != ledger.members:
        held = await Gather(ledger.pending_places())
        alive = desk.alive
        if desk.rank == alive[0]:
            ledger.recover([place for one in held for place in one], alive)
        await Gather(None)
        if desk.alive == alive:  # else whoever recovered may have died over it
            ledger.survived_by(alive)


async def _model(desk: Desk, state: State) -> Flat:
    """Return the model that is evaluated and saved, the same on every learner."""
    strategy = desk.experiment.strategy
    mine = strategy.model(state)
    if strategy.evaluates == "average":
        return (await AllReduce(mine, weight=1.0)).value
    if strategy.evaluates == "root":
        return await Broadcast(mine, root=desk.alive[0])
    sums = await Gather(zlib.crc32(mine.contiguous().cpu().numpy().data))
    if len(set(sums)) > 1:
        raise ContractError(
            f"strategy {strategy.name!r} declares identical replicas, but at {desk.frames} frames "
            f"the learners' models differ (checksums {sums})"
        )
    return mine


async def _figures(desk: Desk, state: State, model: Flat) -> dict[str, Any]:
    """Return what the method measured of itself, and how far the learners' models are apart."""
    strategy = desk.experiment.strategy
    apart = None
    if strategy.evaluates == "average":
        apart = float(torch.linalg.vector_norm(strategy.model(state) - model))
    notes = await Gather({"apart": apart, "measures": desk.take_measures()})
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
    desk: Desk, model: Flat, meeting: Meeting, began: float, figures: dict[str, Any]
) -> None:
    if desk.worker_state.buffers:
        buffers = mean_buffers(await Gather(desk.worker_state.buffers))
        desk.scoring_state = WorkerState(buffers)
    scores = await Evaluate(model)
    while scores.frames < desk.pool.frames_in("dev"):  # somebody died with a slice in hand
        scores = await Evaluate(model)
    desk.scoring_state = None  # a strategy that scores a model by itself has its own buffers
    desk.evaluated(scores)
    if desk.rank == desk.alive[0]:
        desk.report(
            {
                "event": "eval",
                "frames": desk.ledger.committed_frames,
                "epoch": desk.ledger.epoch,
                "rank": None,
                "loss": scores.loss,
                "accuracy": scores.accuracy,
                "eval_frames": scores.frames,
                "eval_s": meeting.now() - began,
                "train_s": began - desk.aside_s,
                **figures,
            }
        )


async def _save(
    desk: Desk,
    state: State,
    model: Flat,
    meeting: Meeting,
    checkpoints: Checkpoints,
    due: Due,
    arrived: float,
) -> None:
    """Write every learner's part, then make the checkpoint visible; all or nothing."""
    frames, began = desk.frames, meeting.now()
    part = {
        "state": state,
        "buffers": desk.worker_state.buffers,
        "sides": saved_sides(desk.worker_state.sides),
        "desk": desk.state_dict(),
        "ledger": desk.ledger.state_dict(),
        "inbox": meeting.inbox(desk.rank),
    }
    problem = _attempt(lambda: checkpoints.write_part(frames, desk.rank, part))
    buffers: dict[str, torch.Tensor] = {}
    if desk.worker_state.buffers:
        buffers = mean_buffers(await Gather(desk.worker_state.buffers))
    await _nobody_failed(problem, checkpoints, frames)
    writer = None
    while writer != desk.alive[0]:  # whoever writes may die over it; then the next one does
        writer = desk.alive[0]
        problem = None
        if desk.rank == writer:
            problem = _attempt(lambda: _finish(desk, model, meeting, checkpoints, due, buffers))
        await _nobody_failed(problem, checkpoints, frames)
    if desk.rank == writer:
        desk.report(
            {
                "event": "checkpoint",
                "frames": desk.ledger.committed_frames,
                "epoch": desk.ledger.epoch,
                "rank": None,
                "path": f"checkpoints/{frames:012d}",
                "wait_s": began - arrived,
                "write_s": meeting.now() - began,
            }
        )


def _finish(
    desk: Desk,
    model: Flat,
    meeting: Meeting,
    checkpoints: Checkpoints,
    due: Due,
    buffers: dict[str, torch.Tensor],
) -> None:
    """Write what is common to all, and make the checkpoint visible."""
    common = {
        "ranks": list(desk.alive),
        "learners": len(desk.alive),
        "frames": desk.frames,
        "committed_frames": desk.ledger.committed_frames,
        "epoch": desk.ledger.epoch,
        "finished": due.finished,
        "ended_by_schedule": desk.schedule_state.stop,
        "time_s": meeting.now(),
        **meeting.common_state(),
    }
    trained = {k: v.clone() for k, v in meeting.layout.named(model).items()}
    checkpoints.finish(desk.frames, common, trained | meeting.frozen | buffers)


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
