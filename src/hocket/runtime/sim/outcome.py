"""What is said of a simulation: how it stands, and how it ended."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hocket.record import results
from hocket.record.results import Result
from hocket.record.status import LearnerStatus, State, Status
from hocket.runtime.sim.simulator import Simulator


def status_of(
    simulator: Simulator, total: int, state: Literal["running", "ended"] = "running"
) -> Status:
    """Return how a simulation stands."""
    account = simulator.context((simulator.alive or (0,))[0]).account
    learners = []
    for name, one in simulator.past().items():
        word: State = "lost" if one.lost_s is not None else "working"
        word = "finished" if word == "working" and state == "ended" else word
        times = {"until_s": one.lost_s, "joined_s": one.joined_s}
        learners.append(LearnerStatus.of(name, word, one.books, **times))
    train_s, ledger = simulator.now - account.aside_s, account.ledger
    where = (ledger.committed_frames, total, ledger.epoch)
    return Status(simulator.now, train_s, "virtual", *where, state, tuple(learners))


def result_of(simulator: Simulator, path: Path, out: Path | None) -> Result:
    """Return the result of a simulation."""
    first = simulator.context(simulator.alive[0])
    account, scores = first.account, first.account.scores
    time_s = simulator.now - account.aside_s
    reports = {
        name: results.learner_report(name, one.books, time_s, one.lost_s)
        for name, one in simulator.past().items()
    }
    attending = set(simulator.attending())
    return Result(
        loss=scores.loss if scores else float("nan"),
        accuracy=scores.accuracy if scores else float("nan"),
        frames=account.ledger.committed_frames,
        discarded_frames=account.ledger.discarded_frames,
        epoch=account.ledger.epoch,
        time_s=time_s,
        aside_s=account.aside_s,
        clock="virtual",
        learners=[one for name, one in reports.items() if name not in attending],
        attendants=[one for name, one in reports.items() if name in attending],
        model=results.final_model(path, out),
        stopped=first.agenda.stop_agreed and not account.ledger.closed(),
        run_dir=out,
        trace_digest=simulator.trace.digest,
        rate_share=account.experiment.rate_share(account.pool),
    )
