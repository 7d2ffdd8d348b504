"""Replays metrics.jsonl into a tracker of experiments: Weights & Biases, MLflow or Trackio.

It reads files and runs in a process of its own, so a tracker can neither slow nor break a run. The
tracker is imported only here, when it is asked for. Figures have the names that they have on
TensorBoard, over frames.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

from hocket.errors import ConfigError, HocketError, TrackerError
from hocket.record.metrics import HEAD, frames_of
from hocket.record.rundir import Event, RunDirectory

LOOK_EVERY_S: Final = 2.0
Figures = dict[str, float]


class Tracker(Protocol):
    """Where figures go."""

    def log(self, figures: Figures, frames: int) -> None:
        """Record figures of the moment at which so many frames had been learnt."""
        ...

    def close(self) -> None:
        """Send what waits to be sent."""
        ...


class WeightsAndBiases:
    """wandb; its own steps only count calls, so frames are an axis of their own."""

    def __init__(self, wandb: Any, project: str, name: str, settings: dict[str, Any]) -> None:
        self._run = wandb.init(project=project, name=name, config=settings)
        self._run.define_metric("frames")
        self._run.define_metric("*", step_metric="frames")

    def log(self, figures: Figures, frames: int) -> None:
        """Log over frames."""
        self._run.log({"frames": frames, **figures})

    def close(self) -> None:
        """End wandb's run."""
        self._run.finish()


class MLflow:
    """mlflow; a run of an experiment."""

    def __init__(self, mlflow: Any, project: str, name: str, settings: dict[str, Any]) -> None:
        self._mlflow = mlflow
        mlflow.set_experiment(project)
        mlflow.start_run(run_name=name)
        # MLflow takes at most 100 parameters at once, and texts of a limited length.
        flat = list(_flat(settings))
        for first in range(0, len(flat), 100):
            mlflow.log_params({key: str(v)[:250] for key, v in flat[first : first + 100]})

    def log(self, figures: Figures, frames: int) -> None:
        """Log over frames."""
        self._mlflow.log_metrics(figures, step=frames)

    def close(self) -> None:
        """End mlflow's run."""
        self._mlflow.end_run()


class Trackio:
    """trackio; local unless its own variables say otherwise."""

    def __init__(self, trackio: Any, project: str, name: str, settings: dict[str, Any]) -> None:
        self._trackio = trackio
        trackio.init(project=project, name=name, config=settings)

    def log(self, figures: Figures, frames: int) -> None:
        """Log over frames."""
        self._trackio.log(figures, step=frames)

    def close(self) -> None:
        """End trackio's run."""
        self._trackio.finish()


TRACKERS: Final[dict[str, Callable[[Any, str, str, dict[str, Any]], Tracker]]] = {
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
    "trackio": Trackio,
}


def _flat(tables: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def open_tracker(kind: str, run: RunDirectory, project: str) -> Tracker:
    """Open a tracker for a run; one that is not installed is named."""
    try:
        module: ModuleType = importlib.import_module(kind)
    except ImportError as error:
        raise ConfigError(
            f"{kind} is not installed ({error}): pip install 'hocket[{kind}]'"
        ) from error
    settings = {k: v for k, v in run.config().items() if k not in ("facts", "data")}
    return TRACKERS[kind](module, project, run.path.resolve().name, settings)


def figures_of(event: Event) -> Figures:
    """Return what a tracker is told of an event; losses and joinings count learners."""
    kind, rank = event["event"], event.get("rank")
    if kind not in ("train", "eval", "summary"):
        return {}
    prefix = kind if rank is None else f"{kind}/rank-{rank}"
    numbers = {
        key: float(value)
        for key, value in event.items()
        if key not in HEAD and isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {f"{prefix}/{key}": value for key, value in numbers.items()}


def replay(
    run: RunDirectory, tracker: Tracker, *, follow: bool, wait: Callable[[], None] | None = None
) -> int:
    """Send every event once, and return how many; `follow`: go on until the run has ended.

    A run that is resumed rewrites its record without what came after its checkpoint: lines that
    were sent before are known again, and new ones are sent.
    """
    wait = wait or (lambda: time.sleep(LOOK_EVERY_S))
    sent: set[int] = set()
    told = 0
    while True:
        ended = False
        for line, event in _lines(run):
            if event is None or hash(line) in sent:
                ended = ended or (event is not None and event["event"] == "summary")
                continue
            sent.add(hash(line))
            ended = event["event"] == "summary"
            figures = figures_of(event)
            if figures:
                tracker.log(figures, int(frames_of(event)))
                told += 1
        if ended or not follow:
            return told
        wait()


def _lines(run: RunDirectory) -> Iterator[tuple[str, Event | None]]:
    """Yield what there is; a run that has just begun has no record yet."""
    if run.metrics_path.exists():
        yield from run.metrics_lines()


def track(path: Path, kind: str, project: str, *, follow: bool) -> int:
    """Replay a run into a tracker; return how many events were sent.

    Trackers raise errors of all kinds, of settings, accounts and networks: they are theirs to tell.
    """
    run = RunDirectory(path)
    try:
        tracker = open_tracker(kind, run, project)
        try:
            return replay(run, tracker, follow=follow)
        finally:
            tracker.close()
    except (HocketError, OSError):
        raise
    except Exception as error:
        raise TrackerError(
            f"{kind} failed: {error} ({type(error).__name__}). The run and its record in {path} "
            "are as they were; the same command sends all of it again"
        ) from error
