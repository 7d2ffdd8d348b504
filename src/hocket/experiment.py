"""One experiment: everything that decides a run, as one frozen object that travels to learners."""

from __future__ import annotations

import math
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from hocket.core.codec import FLOAT32, Codec
from hocket.core.device import LIBRARIES, DeviceName, Precision, Transport
from hocket.core.flat import Flat, Layout
from hocket.core.limits import check_numbers
from hocket.core.strategy import Extent, InStages, Strategy
from hocket.core.task import Task
from hocket.data.pool import Pool, Sharding
from hocket.errors import require
from hocket.optim import SGD, Constant, Optimizer, Schedule
from hocket.optim.compensation import share_of_integral, target_factor

RATELESS: Final = ("constant", "newbob")  # schedules that do something without a rate: they end

OnLoss: TypeAlias = Literal["continue", "stop"]


@dataclass(frozen=True)
class RuntimeOptions:
    """The `[runtime]` table. Intervals are in epochs of committed frames."""

    learners: int = 1
    ranks_per_learner: int = 1  # each learner is a group of ranks that hold one stage each
    micro_batches: int = 1  # of a minibatch, so that all ranks of a group compute at once
    cut: tuple[int, ...] | None = None  # first layer of a group's stages but one. None: balanced
    seed: int = 0
    init: str | None = None  # start from this run's model, or from a model file
    sharding: Sharding = "pool"  # fixed: an item belongs to the same learner in every epoch
    threads: int = 1  # per learner
    device: DeviceName = "auto"  # CUDA where there is one; untested (docs/gpu.md)
    precision: Precision = "float32"  # bfloat16: autocast; flat vectors stay float32
    deterministic: bool = True  # sums are in rank order, bit for bit
    transport: Transport = "auto"  # memory within a host, sockets between; torch: NCCL or gloo; mpi
    listen: str = ""  # an address of this host: learners of other hosts may join (hocket join)
    timeout_s: float = 300.0  # limit of every wait for another learner
    on_loss: OnLoss = "continue"  # or stop when a learner dies
    silence_s: float = 10.0  # a learner that gives no sign of life for so long is lost
    evaluate_every: float | None = None  # None: as the strategy has it
    checkpoint_every: float = 1.0
    keep_checkpoints: int = 2
    log_every: float = 0.05
    guard_factor: float = 2.0  # a training loss this much above the first window's stops the run
    trace: bool = False  # write trace.jsonl
    tensorboard: bool = True

    def __post_init__(self) -> None:
        for key in (
            *("learners", "ranks_per_learner", "micro_batches"),
            *("threads", "keep_checkpoints"),
        ):
            value = getattr(self, key)
            require(value >= 1, f"runtime.{key} must be at least 1, not {value}")
        for key in ("timeout_s", "silence_s", "evaluate_every", "checkpoint_every", "log_every"):
            value = getattr(self, key)
            require(value is None or value > 0, f"runtime.{key} must be above 0, not {value}")
        require(
            math.isfinite(self.timeout_s), "runtime.timeout_s must be finite: no wait is endless"
        )
        require(
            self.guard_factor > 1, f"runtime.guard_factor must be above 1, not {self.guard_factor}"
        )
        self._check_transport()
        self._check_groups()
        require(self.seed >= 0, f"runtime.seed must be at least 0, not {self.seed}")

    def _check_groups(self) -> None:
        size, cut = self.ranks_per_learner, self.cut
        require(
            cut is None or len(cut) == size - 1,
            f"runtime.cut = {list(cut or ())} makes {len(cut or ()) + 1} stages, and "
            f"runtime.ranks_per_learner is {size}",
        )
        require(
            size > 1 or self.micro_batches == 1,
            f"runtime.micro_batches = {self.micro_batches} has no effect: a learner is one rank, "
            "which computes a minibatch at once; set runtime.ranks_per_learner, or leave it out",
        )
        if size == 1:
            return
        require(
            self.precision == "float32",
            f"runtime.precision = {self.precision!r} does not go together with "
            "runtime.ranks_per_learner: stages compute in float32 only; leave the precision out",
        )
        require(
            self.transport != "mpi",
            "runtime.transport = 'mpi' does not go together with runtime.ranks_per_learner: MPI "
            "would have to start the other ranks of each learner; leave the transport at 'auto'",
        )
        require(
            not self.listen,
            "runtime.listen has no effect together with runtime.ranks_per_learner: learners that "
            "are groups cannot join a running run; leave it out",
        )

    def _check_transport(self) -> None:
        name = f"runtime.transport = {self.transport!r}"
        require(
            self.deterministic or self.transport in LIBRARIES,
            "runtime.deterministic = false has no effect: sums in rank order cost nothing "
            "more here, so there is no other way; leave it out",
        )
        require(
            not (self.deterministic and self.transport == "torch"),
            f"{name} adds up in the library's own order, not in rank order: set "
            "runtime.deterministic = false",
        )
        require(
            self.on_loss == "stop" or self.transport not in LIBRARIES,
            f"{name} cannot go on without a learner that is lost: set "
            "runtime.on_loss = 'stop', or leave the transport at 'auto'",
        )


@dataclass(frozen=True)
class Seat:
    """Where a process belongs: the rank that strategies know, and its stage of that one's model."""

    rank: int
    stage: int  # 0: it is that rank itself, alone or the first of a group


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
            ("codec", Codec),
        ):
            value = getattr(self, key)
            made = f"{value.__name__}()" if isinstance(value, type) else kind.__name__
            require(
                isinstance(value, kind),
                f"{key} must be a {kind.__name__} object, not {value!r}: give {made}",
            )
        if self.options.evaluate_every is None:  # recorded as it is, so that a run can be resumed
            usual = replace(self.options, evaluate_every=self.strategy.evaluate_every)
            object.__setattr__(self, "options", usual)
        self._check_numbers()
        self.strategy.check_world(self.options.learners)
        self.strategy.check_optimizer(self.optimizer)
        self._check_rate()
        self.strategy.check_codec(self.codec)
        if self.options.transport == "mpi":
            self._check_mpi()
        if self.options.ranks_per_learner > 1:
            self._check_groups()
        self.lr_factor()

    def _check_groups(self) -> None:
        """Refuse what cannot be done by learners of which no rank has the whole model at work."""
        strategy, options = self.strategy, self.options
        named = f"runtime.ranks_per_learner = {options.ranks_per_learner}"
        require(
            not isinstance(strategy, InStages),
            f"{named} has no effect: strategy {strategy.name!r} cuts the model into stages itself; "
            "set strategy.stages and leave ranks_per_learner out",
        )
        require(
            not strategy.takes_products,
            f"{named} does not go together with strategy {strategy.name!r}: a curvature product "
            "goes through the model twice, and stages do not do that; choose another method",
        )
        require(
            options.micro_batches == 1 or self.optimizer.natural_gradient is None,
            f"runtime.micro_batches = {options.micro_batches} does not go together with natural "
            f"gradient (optimizer {self.optimizer.name!r}): it takes a minibatch as a whole; leave "
            "micro_batches out",
        )

    def _check_mpi(self) -> None:
        """Refuse what would not travel over MPI, though the user asked for it."""
        strategy, leave = self.strategy, "leave runtime.transport at 'auto'"
        require(
            strategy.synchronous and not strategy.uses_messages,
            f"runtime.transport = 'mpi' carries collectives alone, and strategy {strategy.name!r} "
            f"sends messages: {leave}, or choose a synchronous method without messages",
        )
        require(
            self.codec == FLOAT32,
            f"runtime.transport = 'mpi' carries plain vectors, and codec {self.codec.name!r} makes "
            f"others of them: leave the codec out, or {leave}",
        )

    def _check_numbers(self) -> None:
        """Refuse sizes and fractions that cannot be meant; a user's own task has its own rules."""
        parts: dict[str, Any] = {
            **{"strategy": self.strategy, "optimizer": self.optimizer, "schedule": self.schedule},
            **{"codec": self.codec, "runtime": self.options},
        }
        if type(self.task).__module__.startswith("hocket."):
            parts |= {"task": self.task, "model": getattr(self.task, "model", None)}
        for table, part in parts.items():
            if is_dataclass(part):
                check_numbers(part, table)

    def _check_rate(self) -> None:
        """Refuse an optimizer or a schedule of the rate where the method has no rate."""
        if self.strategy.uses_rate:
            return
        why = f"has no effect: {self.strategy.name!r} makes steps of its own, without a rate"
        require(self.optimizer == SGD(), f"[optimizer] {why}; leave the table out")
        require(
            self.schedule.name in RATELESS,
            f"schedule.name = {self.schedule.name!r} {why}; use {' or '.join(RATELESS)}",
        )

    def first_state(self, params: Flat, layout: Layout) -> Any:
        """Return a learner's state before its first step; `params` belongs to it from now on."""
        state = self.strategy.init(params, self.optimizer)
        coder = self.codec.fitted(layout)
        state.memory = None if coder is None else coder.memory(params.device)
        return state

    def coded_size(self, layout: Layout) -> list[str]:
        """Say, for the record, what the codec makes of a vector."""
        coder = self.codec.fitted(layout)
        return [] if coder is None else [f"codec {self.codec.name}: {coder.size.describe()}"]

    @property
    def num_ranks(self) -> int:
        """Learners, and the ranks that attend to them."""
        return self.options.learners + self.strategy.attendants(self.options.learners)

    @property
    def num_processes(self) -> int:
        """Ranks, and the other ranks of learners that are groups: what an engine is to bring."""
        return self.num_ranks + self.options.learners * (self.options.ranks_per_learner - 1)

    def seat(self, number: int) -> Seat:
        """Return the place of a process: learners and attendants, then the others of each group."""
        others = self.options.ranks_per_learner - 1
        beyond = number - self.num_ranks
        if beyond < 0 or not others:
            return Seat(number, 0)
        return Seat(beyond // others, 1 + beyond % others)

    def others_of(self, learner: int) -> range:
        """Return the numbers of the processes that a learner consists of besides its first."""
        others = self.options.ranks_per_learner - 1 if learner < self.options.learners else 0
        first = self.num_ranks + learner * others
        return range(first, first + others)

    def on_hosts(self, num_hosts: int) -> Experiment:
        """Return it as it runs on so many hosts: a default of the strategy may depend on that."""
        return replace(self, strategy=self.strategy.on_hosts(num_hosts))

    def with_learners(self, num_learners: int) -> Experiment:
        """Return it as it goes on with other learners; a number it cannot use is refused."""
        return replace(self, options=replace(self.options, learners=num_learners))

    @property
    def goes_on_without(self) -> bool:
        """True if a run goes on when a learner is lost."""
        return self.options.on_loss != "stop"

    def lr_factor(self, learners: int | None = None, gain: float | None = None) -> float:
        """Return the factor between the sequential and the local rate, after the ramp.

        `gain`: of a phase in which the method moves with another one than it declares.
        """
        if not self.strategy.compensates:
            for key in ("lr_compensation", "lr_limit", "lr_ramp_frames"):
                asked = getattr(self.schedule, key)
                require(
                    asked in (None, "none"),
                    f"schedule.{key} = {asked!r} has no effect: {self.strategy.name!r} "
                    "has a rule of its own for the rate of a learner; leave it out",
                )
            return 1.0
        own = self.strategy.gain(learners or self.options.learners)
        return target_factor(self.schedule, self.optimizer, own if gain is None else gain)

    def rate_share(self, pool: Pool, upto: float = 1.0) -> float:
        """Return how far the method moves in the first `upto` of a run, relative to sequential SGD.

        The gradient is taken as constant; see `hocket.optim.compensation`.
        """
        gain = self.strategy.gain(self.options.learners) if self.strategy.compensates else 1.0
        factor = self.lr_factor()
        return share_of_integral(self.schedule, pool.epoch_frames, factor, gain, upto)

    def extent(self, pool: Pool) -> Extent:
        """Return how long the run is, for the strategy's remarks."""
        return Extent(
            num_learners=self.options.learners,
            num_items=len(pool) * pool.epochs,
            num_epochs=pool.epochs,
            share_of_rate=lambda upto: self.rate_share(pool, upto),
        )

    def pool(self) -> Pool:
        """Open the task's pool."""
        return Pool(
            self.task,
            epochs=self.schedule.epochs,
            seed=self.options.seed,
            sharding=self.options.sharding,
        )
