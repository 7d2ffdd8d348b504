"""Runs what a claim declares: cached, several at once, resumed where it was interrupted.

An arm with several settings is tuned with its first seed; the other seeds run at the setting that
was best there. That saves half of the runs or more, and is the same for every arm. On a speech
task, only runs at the chosen settings are decoded.
"""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from hocket import api
from hocket.core.accounts import Ticket
from hocket.core.task import Task
from hocket.errors import DivergedError
from hocket.record.rundir import RunDirectory
from hocket.reproduce import cache, outcome
from hocket.reproduce.claim import Run
from hocket.reproduce.outcome import Arm, Found, Outcome
from hocket.runtime.shared.worker import Worker
from hocket.speech.task import SpeechTask
from hocket.support.parallel import ordered_map

PROBES: Final = 12  # gradients that are timed to say how long an experiment will take
OVERHEAD: Final = 1.3  # evaluation, checkpoints and averaging, over gradients alone


@dataclass(frozen=True)
class Piece:
    """A run to do: where it is kept, and until when it may begin."""

    run: Run
    folder: Path
    deadline_s: float  # by time.monotonic, which all processes of a host share
    decode: bool = True  # at once; else its model is kept until it is known who did best


def folder(store: Path, run: Run) -> Path:
    """Return where a run is kept."""
    return store / cache.key(run)


def known(store: Path, run: Run) -> Outcome | None:
    """Return a run's outcome if it has been computed."""
    path = folder(store, run) / "outcome.json"
    return outcome.read(path) if path.exists() else None


def planned(runs: Sequence[Run], store: Path) -> list[Run]:
    """Return the runs that count; until an arm has been tuned, any setting stands for its best."""
    return [*_tuning(runs), *_confirming(runs, store)]


def _tuning(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that need no tuning before: arms with one setting, and first seeds."""
    tuned, first = _tuned(runs), min(run.seed for run in runs)
    return [run for run in runs if run.arm not in tuned or run.seed == first]


def _confirming(runs: Sequence[Run], store: Path) -> list[Run]:
    """Return the other seeds of tuned arms, at the setting that was best for the first one."""
    found, tuned = collect(_tuning(runs), store), _tuned(runs)
    best = {run.arm: run.setting for run in reversed(runs) if run.arm in tuned}
    best |= {name: found[name].setting for name in found.names if name in tuned}
    first = min(run.seed for run in runs)
    return [run for run in runs if best.get(run.arm) == run.setting and run.seed != first]


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
        total += OVERHEAD * seconds[task] * items / side_by_side
    return total


def _probe(run: Run) -> float:
    """Return the seconds of one gradient."""
    pool = run.experiment.pool()
    worker = Worker(run.experiment.task, pool, 0)
    params, state, spent = worker.initial.clone(), worker.new_state(), []
    for index in range(min(PROBES, len(pool))):
        began = time.perf_counter()
        worker.gradient(params, Ticket(0, index, int(pool.frames[index])), state)
        spent.append(time.perf_counter() - began)
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
    tuned = _tuned(runs)
    missing = _compute(_tuning(runs), store, jobs, deadline_s, advance, later=tuned)
    others = _confirming(runs, store)
    if missing:
        return missing + sum(known(store, run) is None for run in others)
    _decode_best(_tuning(runs), others, store, jobs)
    return _compute(others, store, jobs, deadline_s, advance)


def _decode_best(tuning: Sequence[Run], others: Sequence[Run], store: Path, jobs: int) -> None:
    """Decode the runs at the chosen settings, and delete the models of all others."""
    chosen = {(run.arm, run.setting) for run in others}
    places = [(folder(store, run), run) for run in tuning]
    kept = [(path, run) for path, run in places if (path / "run").exists()]
    best = {path: run for path, run in kept if (run.arm, run.setting) in chosen or not others}
    pieces = [Piece(run, path, math.inf) for path, run in best.items()]
    for _ in ordered_map(_decode, pieces, jobs=min(jobs, len(pieces)), what="decoding"):
        pass
    for path, _ in kept:
        shutil.rmtree(path / "run", ignore_errors=True)


def _decode(piece: Piece) -> None:
    path = piece.folder / "outcome.json"
    found = replace(outcome.read(path), wer=_word_errors(piece.run, piece.folder / "run"))
    outcome.write(path, found)
    shutil.rmtree(piece.folder / "run")


def _compute(
    runs: Sequence[Run],
    store: Path,
    jobs: int,
    deadline_s: float,
    advance: Callable[[float], None],
    later: Collection[str] = (),
) -> int:
    ahead = {folder(store, run): run for run in runs if known(store, run) is None}  # once each
    pieces = [
        Piece(run, path, deadline_s, decode=run.arm not in later) for path, run in ahead.items()
    ]
    missing = 0
    for simulated in (True, False):  # real processes fill the machine: one run at a time
        mine = [p for p in pieces if (p.run.cluster is not None) == simulated]
        width = min(jobs, len(mine)) if simulated else 1
        for done in ordered_map(_one, mine, jobs=width, what="running an experiment"):
            missing += not done
            advance(1.0)
    return missing


def _one(piece: Piece) -> bool:
    """Run one, from its last checkpoint if it has one; False: no time was left, or Ctrl-C."""
    if time.monotonic() > piece.deadline_s:
        return False
    piece.folder.mkdir(parents=True, exist_ok=True)
    run, path, began = piece.run, piece.folder / "run", time.perf_counter()
    directory = RunDirectory(path)
    resume = bool(directory.checkpoints())
    try:
        if run.cluster is None:
            result = api.run_real(run.experiment, path, resume=resume, progress=False)
        else:
            result = api.run_simulated(
                run.experiment, run.cluster, path, resume=resume, progress=False
            )
    except DivergedError as error:
        found = outcome.of_divergence(str(error), time.perf_counter() - began)
    else:
        if result.stopped:
            return False
        wall_s = time.perf_counter() - began
        wer = _word_errors(run, path) if piece.decode else math.nan
        found = outcome.of_result(result, directory.evaluations(), wall_s, wer)
    outcome.write(piece.folder / "outcome.json", found)
    if piece.decode or found.diverged is not None or not _has_words(run.experiment.task):
        shutil.rmtree(path)  # the outcome is what is kept; checkpoints of hundreds of runs are not
    return True


def _has_words(task: Task) -> bool:
    """True of a speech task that can be decoded."""
    return isinstance(task, SpeechTask) and (task.folder / "graph" / "HCLG.fst").exists()


def _word_errors(run: Run, path: Path) -> float:
    """Decode a run; NaN if there are no words."""
    if not _has_words(run.experiment.task):
        return math.nan
    from hocket.speech.decode.decoding import Search
    from hocket.speech.decode.recognition import decode_run

    return decode_run(path, split=None, jobs=1, search=Search(), show=False).score.errors.rate


def collect(runs: Sequence[Run], store: Path) -> Found:
    """Return all outcomes, by arm and setting."""
    by_arm: dict[tuple[str, str], list[Outcome]] = {}
    for run in runs:
        kept = known(store, run)
        if kept is not None:
            by_arm.setdefault((run.arm, run.setting), []).append(kept)
    return Found(Arm(*names, tuple(outcomes)) for names, outcomes in by_arm.items())
