"""Runs beside which something happens: they are held until it has, and then end quickly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hocket
from helpers.tasks import Quadratic
from hocket import Result, api
from hocket.experiment import Experiment, RuntimeOptions
from hocket.record.rundir import RunDirectory

EPOCH_FRAMES = 44
HELD_S = 0.1
EPOCHS = 200  # held for two minutes with four learners; released, they take a second


@dataclass(frozen=True)
class Held(Quadratic):
    """Takes a while to load, until a file is there."""

    released: str = ""

    def load(self, split: str, item: hocket.Item, epoch: int) -> Any:
        if not Path(self.released).exists():
            time.sleep(HELD_S)
        return super().load(split, item, epoch)


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    """What the record of a run says of one kind."""
    if not (run / "metrics.jsonl").exists():
        return []
    lines = RunDirectory(run).metrics_lines()
    return [event for _, event in lines if event is not None and event["event"] == kind]


def until(what: Callable[[], Any], limit_s: float = 100.0) -> None:
    """Wait until something is true."""
    end = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def held(out: Path, strategy: Any, learners: int, epochs: int = EPOCHS) -> Experiment:
    """A run that is held until `release`."""
    options = RuntimeOptions(
        learners=learners,
        tensorboard=False,
        timeout_s=60.0,
        log_every=0.5,
        evaluate_every=100.0,
        checkpoint_every=100.0,
    )
    return Experiment(
        Held(released=str(_released(out))),
        strategy,
        hocket.SGD(lr=0.01),
        schedule=hocket.Constant(epochs=epochs),
        options=options,
    )


def _released(out: Path) -> Path:
    return out.with_suffix(".released")


def release(out: Path) -> None:
    """Let a run end quickly."""
    _released(out).touch()


def run_beside(meanwhile: Callable[[], None], out: Path, held: Experiment, cluster: Any) -> Result:
    """Run; once it trains let something happen, and then let it end."""
    failed: list[BaseException] = []

    def company() -> None:
        try:
            until(lambda: events(out, "train"))
            meanwhile()
        except BaseException as error:
            failed.append(error)
        finally:
            release(out)

    beside = threading.Thread(target=company, daemon=True)
    beside.start()
    result = api.run_real(held, out, progress=False, cluster=cluster)
    beside.join(30)
    if failed:
        raise failed[0]
    assert result.frames + result.discarded_frames == held.schedule.epochs * EPOCH_FRAMES
    return result
