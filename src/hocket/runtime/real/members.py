"""The ranks of a learner that is a group, in processes of their own: their line, and what they do.

Each group has connections of its own, between its ranks alone. The first one, which is the learner
that strategies know, hands out jobs and waits for what comes back; the others do what comes in. The
whole group is lost with any of its ranks: the first one ends as a learner that was declared lost,
and the others, who have nothing without it, wait for their launcher to end them.

    first     job to all     forward ...              backward ...           done of all
    middle    job            forward ... handed on    backward ... on        done
    last      job            each piece forward, and back at once            done
"""

from __future__ import annotations

import queue
import time
from collections import defaultdict, deque
from typing import Any, Final

import torch

from hocket.core.accounts import Books, Vitals
from hocket.core.device import Transport
from hocket.core.effects import Message
from hocket.core.flat import Flat, Parts
from hocket.errors import FencedError, WaitTimeoutError
from hocket.experiment import Experiment, Seat
from hocket.optim.natural_gradient.preconditioning import restored_sides, saved_sides
from hocket.runtime.net.handshake import Handshake
from hocket.runtime.net.mailbox import Mailbox
from hocket.runtime.net.mesh import host_name
from hocket.runtime.net.store import Store
from hocket.runtime.real.faults import Fate
from hocket.runtime.shared.stages.group_stage import GroupStage, Handed, Job, Sums, moved
from hocket.runtime.shared.worker import WorkerState

FIRST: Final = 0


class StageLostError(Exception):
    """Another rank of this group has gone."""

    def __init__(self, stage: int) -> None:
        super().__init__(stage)
        self.stage = stage


class GroupLine:
    """What one rank of a group and the others say to each other, by stage and tag."""

    def __init__(
        self,
        store: Store,
        stage: int,
        size: int,
        address: str,
        transport: Transport,
        limit_s: float,
    ) -> None:
        self._limit_s = limit_s
        self._came: queue.SimpleQueue[Message | int | Exception] = queue.SimpleQueue()
        self._kept: dict[tuple[int, str], deque[Any]] = defaultdict(deque)
        self._gone: set[int] = set()
        here = host_name() if transport != "sockets" else f"{stage}"
        store.put(f"host/{stage}", here)
        patient = store.limited(limit_s)
        near = frozenset(s for s in range(size) if patient.get(f"host/{s}") == here)
        self._mailbox = Mailbox(
            patient,
            Handshake(stage, store.derived_key(), limit_s),
            address,
            size=size,
            near=near,
            arrived=self._came.put,
            lost=self._came.put,
            failed=self._came.put,
        )

    def send(self, to: int, tag: str, payload: Any) -> None:
        """Send something; to a rank that has gone, nothing."""
        self._mailbox.send(to, tag, payload)

    def receive(self, source: int, tag: str, *, patient: bool = False) -> Any:
        """Wait for something. `StageLostError` if a rank of the group has gone.

        `patient`: without a limit; only the end of the source itself is an error then. When a run
        ends, another rank may have gone before this one has heard of it.
        """
        kept, until = self._kept[source, tag], time.monotonic() + self._limit_s
        while not kept:
            gone = self._gone & {source} if patient else self._gone
            if gone:
                raise StageLostError(min(gone))
            try:
                self._take(None if patient else until - time.monotonic())
            except (queue.Empty, ValueError) as error:
                raise WaitTimeoutError(
                    f"waited {self._limit_s:g} s for stage {source + 1} of this learner to send "
                    f"{tag!r} and gave up: it is stuck, or slow: then raise runtime.timeout_s"
                ) from error
        return kept.popleft()

    def _take(self, timeout_s: float | None) -> None:
        """Wait for the next thing that comes in, whatever it is."""
        came = self._came.get(timeout=timeout_s)
        if isinstance(came, int):
            self._gone.add(came)
        elif isinstance(came, Exception):
            raise came
        else:
            self._kept[came.source, came.tag].append(came.payload)

    def close(self) -> None:
        """End the connections."""
        self._mailbox.close()


def line_of(experiment: Experiment, store: Store, seat: Seat, address: str) -> GroupLine:
    """Connect one rank of a learner to the others."""
    options = experiment.options
    return GroupLine(
        store.prefix(f"learner{seat.rank}"),
        seat.stage,
        options.ranks_per_learner,
        address,
        options.transport,
        options.timeout_s,
    )


# ---------------------------------------------------------------------------- the first rank


class RemoteMembers:
    """The other ranks of a group, as its first one sees them."""

    def __init__(self, line: GroupLine, rank: int, size: int, device: torch.device) -> None:
        self._line = line
        self._rank = rank
        self._size = size
        self._device = device  # of the first stage

    def _receive(self, source: int, tag: str) -> Any:
        try:
            return self._line.receive(source, tag)
        except StageLostError as lost:
            raise FencedError(
                f"rank {self._rank} has lost the rank that held stage {lost.stage + 1} of its "
                "model, and ends: without it there is no gradient"
            ) from lost

    def begin(self, params: list[Flat], states: list[WorkerState], job: Job) -> None:
        """Hand them a job."""
        for stage, (mine, state) in enumerate(zip(params, states, strict=True), 1):
            packed = [job.plain(), mine, state.buffers, saved_sides(state.sides)]
            self._line.send(stage, "job", packed)

    def forward(self, number: int, handed: Handed) -> None:
        """Hand a piece to the second stage."""
        self._line.send(1, "forward", [handed.x, handed.drawn])

    def sums(self, number: int) -> Sums:
        """Wait for what the last stage has made of a held-out item."""
        frames, loss, correct = self._receive(self._size - 1, "sums")
        return frames, loss, correct

    def backward(self, number: int) -> tuple[torch.Tensor | None, Sums]:
        """Wait for what comes back of a piece."""
        dy, (frames, loss, correct) = self._receive(1, "backward")
        return dy.to(self._device), (frames, loss, correct)

    def end(self, states: list[WorkerState]) -> list[Parts]:
        """Wait for each one's gradient, and for what has become of its state."""
        wholes = []
        for stage, state in enumerate(states, 1):
            size, count, state.buffers, sides = self._receive(stage, "done")
            state.sides = restored_sides(sides)
            pieces = [self._receive(stage, "piece") for _ in range(count)]
            wholes.append(Parts(size, [(offset, piece) for offset, piece in pieces]))
        return wholes

    def close(self) -> None:
        """Let them go."""
        for stage in range(1, self._size):
            self._line.send(stage, "job", None)


# ---------------------------------------------------------------------------- the others


class MemberRuntime:
    """Runs one rank of a group that is not its first: it does what comes in."""

    def __init__(self, stage: GroupStage, line: GroupLine, seat: Seat, fate: Fate) -> None:
        self._stage = stage
        self._line = line
        self._seat = seat
        self._fate = fate
        self._drawn = 0
        self._doing = "waits for the first rank of its learner"
        self._books = Books()

    def run(self) -> None:
        """Work until the first rank says that it is over."""
        while (told := self._line.receive(FIRST, "job", patient=True)) is not None:
            plain, params, buffers, sides = told
            job, device = Job.of_plain(plain), self._stage.device
            state = moved(WorkerState(buffers, restored_sides(sides)), device)
            del told, buffers
            began = time.monotonic()
            self._stage.begin(params.to(device), state, job)
            del params
            if job.learns:
                self._learn(job, state)
            else:
                self._score(job)
            self._books.compute_s += time.monotonic() - began
            self._doing = "waits for the first rank of its learner"

    def _learn(self, job: Job, state: WorkerState) -> None:
        if job.pieces[0][1][0] == 0:  # the first part of what was drawn, or all of it
            self._drawn += 1
            self._fate.drawn(self._drawn)
        stage, numbers = self._stage, range(len(job.pieces))
        self._doing = f"computes item {job.pieces[0][0]} of epoch {job.epoch}"
        sums = []
        for number in numbers:
            handed = stage.forward_piece(number, self._entering())
            if stage.last:
                self._send_back(stage.backward_piece(number, None, handed.sums), handed.sums)
            else:
                self._hand_on(handed)
        if not stage.last:
            for number in numbers:
                dy, sums = self._line.receive(stage.stage + 1, "backward")
                frames, loss, correct = sums
                found = frames, loss, correct
                self._send_back(stage.backward_piece(number, dy.to(stage.device), found), found)
        whole = stage.end()
        stage.let_go()  # before the first rank fills the memory of the parameters again
        told = [whole.size, len(whole.pieces), state.buffers, saved_sides(state.sides)]
        self._line.send(FIRST, "done", told)
        while whole.pieces:  # one by one: what has been handed over is not held any more
            offset, piece = whole.pieces.pop(0)
            self._line.send(FIRST, "piece", [offset, piece])

    def _score(self, job: Job) -> None:
        self._doing = f"scores items of {job.split!r}"
        for number in range(len(job.pieces)):
            handed = self._stage.forward_piece(number, self._entering())
            if self._stage.last:
                self._line.send(FIRST, "sums", list(handed.sums))
            else:
                self._hand_on(handed)
        self._stage.let_go()

    def _entering(self) -> Handed:
        x, drawn = self._line.receive(self._stage.stage - 1, "forward")
        return Handed(x.to(self._stage.device), drawn)

    def _hand_on(self, handed: Handed) -> None:
        self._line.send(self._stage.stage + 1, "forward", [handed.x, handed.drawn])

    def _send_back(self, dx: torch.Tensor, sums: Sums) -> None:
        self._line.send(self._stage.stage - 1, "backward", [dx, list(sums)])

    # ------------------------------------------------------------------ what a launcher asks

    def describe(self) -> str:
        """Say what it is doing."""
        return f"(stage {self._seat.stage + 1} of rank {self._seat.rank}) {self._doing}"

    def vitals(self) -> Vitals:
        """Return its signs of life; where the run is, the first rank says."""
        return Vitals(books=self._books)

    def stop(self) -> None:
        """Leave it to the first rank, which says when it is over."""

    def meet(self) -> None:
        """Leave it to the first rank."""
