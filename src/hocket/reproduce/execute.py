"""Runs what a claim declares: cached, several at once, resumed where it was interrupted.

The tuning seed tries every setting of an arm that has several; the judging seeds then run at the
setting that was best there. Budgets are tuned apart: twice the frames may want another rate. An arm
with one setting does without the tuning seed, and so does one that is `tuned_as` another. Nothing
that the tuning seed found is judged: with the best of many settings it would look better than the
method is. On a speech task, only what is judged at equal frames is decoded.
"""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from hocket import running
from hocket.core.accounts import Ticket
from hocket.core.task import Task
from hocket.errors import DivergedError
from hocket.record.rundir import RunDirectory
from hocket.reproduce import cache, outcome
from hocket.reproduce.claim import Run
from hocket.reproduce.outcome import Arm, Found, Outcome
from hocket.reproduce.setups import two_hosts
from hocket.reproduce.statistics import MARGIN
from hocket.runtime.shared.worker import Worker
from hocket.speech.chunk_task import SpeechChunks
from hocket.speech.task import SpeechTask
from hocket.support.ownership import owned
from hocket.support.parallel import in_one_thread, ordered_map
from hocket.support.progress import print_line

PROBES: Final = 12  # gradients that are timed to say how long an experiment will take
OVERHEAD: Final = 1.3  # evaluation, checkpoints and averaging, over gradients alone
ITEM_S: Final = 0.0002  # beside, for every minibatch: drawing, settling, the optimizer's step


@dataclass(frozen=True)
class Piece:
    """A run to do: where it is kept, and until when it may begin."""

    run: Run
    folder: Path
    deadline_s: float  # by time.monotonic, which all processes of a host share

    @property
    def decode(self) -> bool:
        """True if its words are shown: decoding costs as much as training."""
        return self.run.judges and self.run.budget == 1


def folder(store: Path, run: Run) -> Path:
    """Return where a run is kept."""
    return store / cache.key(run)


def known(store: Path, run: Run) -> Outcome | None:
    """Return a run's outcome if it has been computed."""
    path = folder(store, run) / "outcome.json"
    return outcome.read(path) if path.exists() else None


def planned(runs: Sequence[Run], store: Path) -> list[Run]:
    """Return the runs that count; until an arm has been tuned, its first setting stands in."""
    tuning = _tuning(runs)
    return [*tuning, *(run for run in _judging(runs, store) if run not in tuning)]


def _tuning(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that choose a setting: the tuning seed of arms that have several."""
    tuned = _tuned(runs)
    return [run for run in runs if run.arm in tuned and run.tunes and not run.tuned_as]


def _judging(runs: Sequence[Run], store: Path) -> list[Run]:
    """Return the runs of the judging seeds, at the chosen settings."""
    chosen = _chosen(runs, store)
    return [run for run in runs if run.judges and chosen.get(run.row, run.setting) == run.setting]


def _chosen(runs: Sequence[Run], store: Path) -> dict[str, str]:
    """Return the best setting of every arm and budget, by the loss of the tuning seed."""
    losses: dict[str, dict[str, float]] = {}
    for run in _tuning(runs):
        kept = known(store, run)
        losses.setdefault(run.row, {})[run.setting] = math.inf if kept is None else kept.loss
    best = {row: min(found, key=lambda setting: found[setting]) for row, found in losses.items()}
    lent = {run.row: replace(run, arm=run.tuned_as).row for run in runs if run.tuned_as}
    return best | {row: best[other] for row, other in lent.items() if other in best}


def _tuned(runs: Sequence[Run]) -> set[str]:
    settings = {(run.arm, run.setting) for run in runs}
    several = Counter(arm for arm, _ in settings)
    return {arm for arm, count in several.items() if count > 1}


def expected_s(runs: Sequence[Run], jobs: int) -> float:
    """Return how long some runs will take here, from the time of a few gradients of each task."""
    seconds: dict[Task, float] = {}
    total = 0.0
    for run in runs:
        task = run.experiment.task
        if task not in seconds:
            seconds[task] = _probe(run)
        items = len(task.items("train")) * run.experiment.schedule.epochs
        side_by_side = jobs if run.cluster is not None else run.experiment.options.learners
        total += run.work * (OVERHEAD * seconds[task] + ITEM_S) * items / side_by_side
    return total


def _probe(run: Run) -> float:
    """Return the seconds of one gradient, in one thread, as runs have.

    It is processor time, as by the clock, with a thread for each core, a busy machine gave days for
    minutes; but by the clock for real learners, some of which are made to sleep.
    """
    return in_one_thread(_time_gradients, run)


def _time_gradients(run: Run) -> float:
    clock = time.perf_counter if run.cluster is None else time.thread_time
    pool = run.experiment.pool()
    worker = Worker(run.experiment.task, pool, 0)
    params, state, spent = worker.initial.clone(), worker.new_state(), []
    for index in range(min(PROBES, len(pool))):
        began = clock()
        worker.gradient(params, Ticket(0, index, int(pool.frames[index])), state)
        spent.append(clock() - began)
    return median(spent)


def execute(
    runs: Sequence[Run],
    store: Path,
    *,
    jobs: int,
    limit_s: float,
    advance: Callable[[float], None],
) -> int:
    """Compute what is missing and return how many runs are still missing when time is up."""
    deadline_s = time.monotonic() + limit_s
    missing = _compute(_tuning(runs), store, jobs, deadline_s, advance)
    judging = _judging(runs, store)
    if missing:
        return missing + sum(known(store, run) is None for run in judging)
    return _compute(judging, store, jobs, deadline_s, advance)


def _compute(
    runs: Sequence[Run],
    store: Path,
    jobs: int,
    deadline_s: float,
    advance: Callable[[float], None],
) -> int:
    """Run what is not known yet, the longest first; return how many there was no time for."""
    ahead = {folder(store, run): run for run in runs if known(store, run) is None}  # once each
    pieces = [Piece(run, path, deadline_s) for path, run in ahead.items()]
    pieces.sort(key=lambda piece: -piece.run.budget)
    missing = 0
    for simulated in (True, False):  # real processes fill the machine: one run at a time
        mine = [p for p in pieces if (p.run.cluster is not None) == simulated]
        width = min(jobs, len(mine)) if simulated else 1
        for done in ordered_map(_one, mine, jobs=width, what="running an experiment"):
            missing += not done
            advance(1.0)
    return missing


def _one(piece: Piece) -> bool:
    """Run and decode one; False: no time was left, or Ctrl-C.

    What was trained is kept until it is decoded: an interruption there costs the decoding alone.
    """
    if time.monotonic() > piece.deadline_s:
        return False
    piece.folder.mkdir(parents=True, exist_ok=True)
    with owned(piece.folder, "hocket reproduce", print_line):
        done = (piece.folder / "outcome.json").exists()  # by another call, a moment ago
        return done or _computed(piece)


def _computed(piece: Piece) -> bool:
    trained = piece.folder / "trained.json"
    found = outcome.read(trained) if trained.exists() else _trained(piece)
    if found is None:
        return False
    if piece.decode and found.diverged is None and _has_words(piece.run.experiment.task):
        outcome.write(trained, found)
        found = replace(found, wer=_word_errors(piece.run, piece.folder / "run"))
    outcome.write(piece.folder / "outcome.json", found)
    trained.unlink(missing_ok=True)
    shutil.rmtree(piece.folder / "run", ignore_errors=True)  # checkpoints of hundreds of runs
    return True


def _trained(piece: Piece) -> Outcome | None:
    """Train one, from its last checkpoint if it has one; None if it was stopped."""
    run, path, began = piece.run, piece.folder / "run", time.perf_counter()
    directory = RunDirectory(path)
    resume = bool(directory.checkpoints())
    try:
        if run.link_mbit is not None:
            shutil.rmtree(path, ignore_errors=True)  # what was timed in part is timed again
            two_hosts.train(run.experiment, path, run.link_mbit)
            return outcome.of_record(directory, time.perf_counter() - began)
        if run.cluster is None:
            result = running.run_real(run.experiment, path, resume=resume, progress=False)
        else:
            result = running.run_simulated(
                run.experiment, run.cluster, path, resume=resume, progress=False
            )
    except DivergedError as error:
        return outcome.of_divergence(str(error), time.perf_counter() - began)
    if result.stopped:
        return None
    wall_s = time.perf_counter() - began
    return outcome.of_result(result, directory.evaluations(), wall_s)


def _has_words(task: Task) -> bool:
    """True of a speech task that can be decoded."""
    if not isinstance(task, SpeechTask | SpeechChunks):
        return False
    return (task.folder / "graph" / "HCLG.fst").exists()


def _word_errors(run: Run, path: Path) -> float:
    """Decode a run; return its word error rate."""
    from hocket.speech.decode.decoding import Search
    from hocket.speech.decode.recognition import decode_run

    return decode_run(path, split=None, jobs=1, search=Search(), show=False).score.errors.rate


def collect(runs: Sequence[Run], store: Path, margin: float = MARGIN) -> Found:
    """Return all outcomes by row and setting, those of tuning apart from those that judge."""
    tuning, judging = _tuning(runs), _judging(runs, store)
    arms = []
    for row, setting in dict.fromkeys((run.row, run.setting) for run in runs):
        tried, judged = (
            [run for run in some if (run.row, run.setting) == (row, setting)]
            for some in (tuning, judging)
        )
        kept = _outcomes(judged, store)
        found = Arm(row, setting, kept, _outcomes(tried, store), _longer(judged, judging, store))
        if found.outcomes or found.tuned:
            arms.append(found)
    return Found(arms, margin)


def _longer(
    judged: Sequence[Run], judging: Sequence[Run], store: Path
) -> tuple[tuple[Outcome, ...], ...]:
    """Return what each seed of an arm reached with larger budgets; nothing for these themselves."""
    return tuple(
        _outcomes(
            [r for r in judging if (r.arm, r.seed) == (run.arm, run.seed) and r.budget > 1], store
        )
        if run.budget == 1
        else ()
        for run in judged
        if known(store, run) is not None
    )


def _outcomes(runs: Sequence[Run], store: Path) -> tuple[Outcome, ...]:
    return tuple(kept for run in runs if (kept := known(store, run)) is not None)
