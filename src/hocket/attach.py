"""`hocket.attach`: any strategy under a training loop of one's own.

    with hocket.attach(model, optimizer, strategy="kstep") as dist:
        for x, y in loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            dist.step(len(x))          # instead of optimizer.step()

The loop, its data and its rate stay the user's. `step` hands the gradients to the strategy, which
averages, sends, steps with the user's optimizer, and leaves the model's parameters where the next
gradient is wanted. Leaving the block finishes the strategy and loads the final model.

Processes find each other through what started them (`python -m hocket.launch`, torchrun, Slurm):
see docs/attach.md. Without any of them there is one learner, and the loop runs as it did.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal

import torch
from torch import nn

from hocket import config
from hocket.codecs import CODECS
from hocket.core.codec import Codec
from hocket.core.effects import Grad
from hocket.core.flat import Flat
from hocket.core.packing import flatten, unflatten
from hocket.core.strategy import Strategy
from hocket.errors import ConfigError, require
from hocket.experiment import Experiment, RuntimeOptions
from hocket.optim import NGSGD, Constant
from hocket.optim.users_optimizer import UsersOptimizer
from hocket.runtime.launch import engines, meeting, tokens
from hocket.runtime.launch.engines import Started
from hocket.runtime.net.addresses import LOOPBACK
from hocket.runtime.net.store import Store
from hocket.runtime.real.faults import Fate, Fault
from hocket.runtime.real.user_loop import LoopRuntime, UserLoop
from hocket.strategies import STRATEGIES

_attached = 0  # how many times in this process: each time learners meet again


class Attached:
    """A strategy under the user's loop; made by `hocket.attach`."""

    def __init__(self, runtime: LoopRuntime, model: nn.Module, optimizer: Any) -> None:
        self._runtime = runtime
        self._model = model
        self._optimizer = optimizer
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._own_memory = [p.data for p in self._trained]
        self._steps = 0
        self._open = False

    @property
    def rank(self) -> int:
        """The number of this learner, from 0; it stays the same after a loss."""
        return self._runtime.rank

    @property
    def size(self) -> int:
        """How many learners there were at the start."""
        return self._runtime.size

    @property
    def alive(self) -> tuple[int, ...]:
        """Who took part in the last collective."""
        return self._runtime.alive

    @property
    def frames(self) -> int:
        """What this learner handed in and the strategy has committed."""
        return self._runtime.frames

    @property
    def at_boundary(self) -> bool:
        """True where the strategy's state is complete: where `state_dict` may be taken."""
        return self._runtime.steps_since_boundary == 0

    def __enter__(self) -> Attached:
        self._runtime.start(self._runtime.state)
        self._open = True
        return self

    def step(self, frames: int = 1) -> None:
        """Hand in the gradients that `backward` left; `frames` is their weight in every mean."""
        require(self._open, "dist.step() works only inside `with hocket.attach(...) as dist:`")
        require(frames >= 1, f"dist.step(frames={frames}): give at least 1, or do not step")
        self._steps += 1
        self._runtime.step(lambda: self._gradient(frames))

    def _gradient(self, frames: int) -> Grad:
        missing = all(p.grad is None for p in self._trained)
        require(not missing, "dist.step() found no gradients: call loss.backward() before it")
        grads = [None if p.grad is None else p.grad.detach() for p in self._trained]
        return Grad(self._runtime.layout.parts(grads), frames, 0.0, 0.0)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish with the others and load the final model; after an error just let go of them."""
        self._open = False
        try:
            if error is None:
                self._load(*self._runtime.leave())
        finally:
            self._runtime.close()

    @torch.no_grad()
    def _load(self, model: Flat, buffers: dict[str, torch.Tensor]) -> None:
        for p, own, view in zip(
            self._trained, self._own_memory, self._runtime.layout.views(model), strict=True
        ):
            own.copy_(view)
            p.data = own
        for name, buffer in self._model.named_buffers():
            buffer.copy_(buffers[name])

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Return what this learner needs to go on; each learner saves its own."""
        require(
            self.at_boundary,
            f"state_dict() in the middle of a block, {self._runtime.steps_since_boundary} step(s) "
            "after its beginning, would be incomplete: take it where dist.at_boundary is true",
        )
        skeleton, tensors = flatten(self._runtime.state)
        return {
            "state": skeleton,
            "tensors": {k: t.clone() for k, t in tensors.items()},
            "buffers": {k: b.detach().clone() for k, b in self._model.named_buffers()},
            "optimizer": self._optimizer.state_dict(),
            "steps": self._steps,
        }

    @torch.no_grad()
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from a saved state; before the first step."""
        require(self._steps == 0, "load_state_dict() comes before the first dist.step()")
        tensors = {k: t.clone() for k, t in saved["tensors"].items()}
        state = unflatten(saved["state"], tensors, self._runtime.state)
        require(
            state.params.numel() == self._runtime.layout.size,
            f"the saved state has {state.params.numel()} values, this model has "
            f"{self._runtime.layout.size}: it belongs to another model",
        )
        self._optimizer.load_state_dict(saved["optimizer"])
        for name, buffer in self._model.named_buffers():
            buffer.copy_(saved["buffers"][name])
        self._runtime.start(state)


# ---------------------------------------------------------------------------- finding the others


def _place(rank: int | None, world_size: int | None) -> Started:
    """Return rank and size: as given, or as whatever started this process says, or alone."""
    if (rank is None) != (world_size is None):
        raise ConfigError("give both rank and world_size, or neither")
    if rank is not None and world_size is not None:
        require(0 <= rank < world_size, f"rank={rank} is no rank of world_size={world_size}")
        return Started(engines.GIVEN, rank, world_size)
    engines.refuse_separate_torchruns()
    return engines.started_by() or Started(engines.GIVEN, 0, 1)


def _store(started: Started, timeout_s: float) -> tuple[Store, str]:
    """Return the store of the learners that attach together, and the way to its host."""
    global _attached
    met = meeting.meet(started, timeout_s)
    if met.is_open and started.rank == 0:
        print(f"hocket: {tokens.OPEN}", file=sys.stderr, flush=True)
    _attached += 1
    store = met.place.store(timeout_s, started.rank)
    return store.prefix(f"attach/{_attached}"), met.place.towards


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    strategy: Strategy[Any] | str | Mapping[str, Any] = "allreduce",
    codec: Codec | str | Mapping[str, Any] = "float32",
    lr: Literal["own", "sequential"] = "own",
    rank: int | None = None,
    world_size: int | None = None,
    seed: int = 0,
    faults: tuple[Fault, ...] = (),
    **runtime: Any,
) -> Attached:
    """Put a strategy under a training loop of one's own; use it as a context manager.

    `codec`: what goes on the wire, a name, or what the `[codec]` table would hold.
    `lr="sequential"`: the optimizer's rate is meant for sequential SGD, and the local one is
    derived from it. `rank` and `world_size` come from the environment unless given. More keywords
    are `timeout_s` and `transport` of the `[runtime]` table; `faults` are planned by tests.
    """
    require(lr in ("own", "sequential"), f"lr must be 'own' or 'sequential', not {lr!r}")
    unknown = set(runtime) - {"timeout_s", "transport"}
    require(not unknown, f"{sorted(unknown)} has no effect in hocket.attach")
    require(
        runtime.get("transport") != "torch",
        "transport = 'torch' has no effect in hocket.attach, where the others go on when a "
        "learner is lost; leave it out",
    )
    require(
        not (isinstance(optimizer, NGSGD) and optimizer.in_backward),
        "NGSGD(..., in_backward=True) leaves no gradients that a strategy could work with: use "
        "in_backward=False under hocket.attach",
    )
    if runtime.get("transport") == "mpi":
        runtime["on_loss"] = "stop"  # MPI ends the job
    started = _place(rank, world_size)
    size = started.size
    rule = UsersOptimizer(
        weight_decay=max(g.get("weight_decay", 0.0) for g in optimizer.param_groups),
        torch_optimizer=optimizer,
        model=model,
        scales=isinstance(optimizer, torch.optim.SGD | NGSGD),
    )
    chosen = _strategy(strategy).on_hosts(max(2, size))  # nobody starts ranks that only attend
    require(
        not chosen.needs_scores,
        f"strategy {chosen.name!r} follows the held-out loss, which hocket.attach does not have: "
        "use hocket.train, or another strategy",
    )
    require(
        not chosen.needs_attendance,
        f"strategy {chosen.name!r} with these options lets ranks wait for others, which a training "
        "loop of your own cannot: leave warm start, ramp and barrier out, and let learners serve "
        "(servers = 0)",
    )
    experiment = Experiment(
        UserLoop(model),
        chosen,
        rule,
        Constant(epochs=1, lr_compensation="full" if lr == "sequential" else "none"),
        _codec(codec),
        options=RuntimeOptions(
            learners=size, seed=seed, threads=torch.get_num_threads(), **runtime
        ),
    )
    if experiment.options.transport == "mpi":
        engines.check_mpi(size)
    store, host = None, LOOPBACK
    if size > 1:
        store, host = _store(started, experiment.options.timeout_s)
    fate = Fate(faults, started.rank)
    runtime_ = LoopRuntime(experiment, started.rank, store, host, fate=fate)
    return Attached(runtime_, model, optimizer)


def _codec(given: Codec | str | Mapping[str, Any]) -> Codec:
    table = {"name": given} if isinstance(given, str) else given
    chosen = table if isinstance(table, Codec) else config.choose(CODECS, table, "codec", "float32")
    require(
        chosen.starts_at == 0,
        "codec.start_frames has no effect in hocket.attach, where nobody knows how many frames all "
        "learners have learnt: begin with codec='float32', then attach again with the codec",
    )
    return chosen


def _strategy(given: Strategy[Any] | str | Mapping[str, Any]) -> Strategy[Any]:
    if isinstance(given, Strategy):
        return given
    table = {"name": given} if isinstance(given, str) else given
    return config.choose(STRATEGIES, table, "strategy", "allreduce")
