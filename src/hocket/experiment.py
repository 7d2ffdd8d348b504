"""One experiment: everything that decides a run, as one frozen object that travels to learners."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from hocket.core.codec import FLOAT32, Codec
from hocket.core.device import DeviceName, Precision, Transport
from hocket.core.strategy import Strategy
from hocket.core.task import Task
from hocket.data.pool import Pool, Sharding
from hocket.errors import require
from hocket.optim import SGD, Constant, Optimizer, Schedule
from hocket.optim.compensation import target_factor

OnLoss: TypeAlias = Literal["continue", "stop"]


@dataclass(frozen=True)
class RuntimeOptions:
    """The `[runtime]` table. Intervals are in epochs of committed frames."""

    learners: int = 1
    seed: int = 0
    sharding: Sharding = "pool"  # fixed: an item belongs to the same learner in every epoch
    threads: int = 1  # per learner
    device: DeviceName = "auto"  # CUDA where there is one; untested (docs/gpu.md)
    precision: Precision = "float32"  # bfloat16: autocast; flat vectors stay float32
    deterministic: bool = True  # sums are in rank order, bit for bit
    transport: Transport = "auto"  # memory within a host, sockets between; torch: NCCL or gloo
    timeout_s: float = 300.0  # limit of every wait for another learner
    on_loss: OnLoss = "continue"  # or stop when a learner dies
    silence_s: float = 10.0  # a learner that gives no sign of life for so long is lost
    evaluate_every: float = 1.0
    checkpoint_every: float = 1.0
    keep_checkpoints: int = 2
    log_every: float = 0.05
    guard_factor: float = 2.0  # a training loss this much above the first window's stops the run
    trace: bool = False  # write trace.jsonl
    tensorboard: bool = True

    def __post_init__(self) -> None:
        for key in ("learners", "threads", "keep_checkpoints"):
            value = getattr(self, key)
            require(value >= 1, f"runtime.{key} must be at least 1, not {value}")
        for key in ("timeout_s", "silence_s", "evaluate_every", "checkpoint_every", "log_every"):
            value = getattr(self, key)
            require(value > 0, f"runtime.{key} must be above 0, not {value}")
        require(
            math.isfinite(self.timeout_s), "runtime.timeout_s must be finite: no wait is endless"
        )
        require(
            self.guard_factor > 1, f"runtime.guard_factor must be above 1, not {self.guard_factor}"
        )
        self._check_transport()
        require(self.seed >= 0, f"runtime.seed must be at least 0, not {self.seed}")

    def _check_transport(self) -> None:
        if self.transport != "torch":
            require(
                self.deterministic,
                "runtime.deterministic = false has no effect: sums in rank order cost nothing "
                "more here, so there is no other way; leave it out",
            )
            return
        require(
            not self.deterministic,
            "runtime.transport = 'torch' adds up in the library's own order, not in rank order: "
            "set runtime.deterministic = false",
        )
        require(
            self.on_loss == "stop",
            "runtime.transport = 'torch' cannot go on without a learner that is lost: set "
            "runtime.on_loss = 'stop', or leave the transport at 'auto'",
        )


@dataclass(frozen=True)
class Experiment:
    """Task x strategy x optimizer x codec, and how to run them."""

    task: Task
    strategy: Strategy[Any]
    optimizer: Optimizer = SGD()  # noqa: RUF009  (frozen: safe to share)
    schedule: Schedule = Constant()  # noqa: RUF009
    codec: Codec = FLOAT32
    options: RuntimeOptions = RuntimeOptions()

    def __post_init__(self) -> None:
        for key, kind in (
            ("task", Task),
            ("strategy", Strategy),
            ("optimizer", Optimizer),
            ("schedule", Schedule),
        ):
            value = getattr(self, key)
            made = f"{value.__name__}()" if isinstance(value, type) else kind.__name__
            require(
                isinstance(value, kind),
                f"{key} must be a {kind.__name__} object, not {value!r}: give {made}",
            )
        self.strategy.check_world(self.options.learners)
        self.strategy.check_optimizer(self.optimizer)
        self.lr_factor()

    @property
    def goes_on_without(self) -> bool:
        """True if a run goes on when a learner is lost."""
        return self.options.on_loss != "stop"

    def lr_factor(self, learners: int | None = None) -> float:
        """Return the factor between the sequential and the local rate, after the ramp."""
        asked = self.schedule.lr_compensation
        if not self.strategy.compensates:
            require(
                asked in (None, "none"),
                f"schedule.lr_compensation = {asked!r} has no effect: {self.strategy.name!r} "
                "has a rule of its own for the rate of a learner; leave it out",
            )
            return 1.0
        gain = self.strategy.gain(learners or self.options.learners)
        return target_factor(self.schedule, self.optimizer, gain)

    def pool(self) -> Pool:
        """Open the task's pool."""
        return Pool(
            self.task,
            epochs=self.schedule.epochs,
            seed=self.options.seed,
            sharding=self.options.sharding,
        )
