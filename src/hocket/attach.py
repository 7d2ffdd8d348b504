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

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from hocket import config
from hocket.core.effects import Grad
from hocket.core.flat import Flat, Layout, Parts
from hocket.core.packing import flatten, unflatten
from hocket.core.strategy import Strategy
from hocket.errors import ConfigError, require
from hocket.experiment import Experiment, RuntimeOptions
from hocket.optim import NGSGD, Constant, Optimizer
from hocket.runtime.net.handshake import put_token
from hocket.runtime.net.store import Store
from hocket.runtime.real.faults import Fate, Fault
from hocket.runtime.real.user_loop import LoopRuntime, UserLoop
from hocket.strategies import STRATEGIES

_attached = 0  # how many times in this process: each time learners meet again


@dataclass(frozen=True)
class UsersOptimizer(Optimizer):
    """The user's torch optimizer, as a rule for one step. Its state stays in it."""

    torch_optimizer: Any = None
    model: Any = None
    scales: bool = True

    name: ClassVar[str] = "the user's"

    def rate(self) -> float:
        """Return the rate now, as the user's scheduler left it; of several groups the largest."""
        return float(max(group["lr"] for group in self.torch_optimizer.param_groups))

    @property
    def has_moments(self) -> bool:
        """Whether it remembers anything that is known to us."""
        return bool(_moments_of(self.torch_optimizer))

    def moments(self, params: Flat, state: Any) -> list[Flat]:
        """Gather what the torch optimizer remembers of each parameter."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        kept = self.torch_optimizer.state
        return [
            Layout.of(self.model).pack(
                torch.zeros_like(p) if kept[p].get(key) is None else kept[p][key] for p in trained
            )
            for key in _moments_of(self.torch_optimizer)
        ]

    def remember_(self, state: Any, moments: Sequence[Flat]) -> None:
        """Lay other values in their place; a parameter that never had a step has none."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        layout = Layout.of(self.model)
        for key, moment in zip(_moments_of(self.torch_optimizer), moments, strict=True):
            for p, view in zip(trained, layout.views(moment), strict=True):
                if self.torch_optimizer.state[p].get(key) is not None:
                    self.torch_optimizer.state[p][key].copy_(view)

    def forget_(self, state: Any) -> None:
        """Let the torch optimizer forget what it remembers."""
        self.torch_optimizer.state.clear()

    @property
    def scales_with_gain(self) -> bool:  # type: ignore[override]
        """Whether a step grows with the rate times the gradient."""
        return self.scales

    def init(self, params: Flat) -> None:
        """Nothing: what it remembers is in the torch optimizer."""

    def apply_(self, params: Flat, grad: Flat | Parts, state: Any, lr: float) -> None:
        """Let the user's optimizer step on `params` with `grad`."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        layout = Layout.of(self.model)
        for p, view in zip(trained, layout.views(params), strict=True):
            p.data = view
        if not _is_own(grad, trained):
            whole = grad.join() if isinstance(grad, Parts) else grad
            for p, view in zip(trained, layout.views(whole), strict=True):
                p.grad = view.clone() if p.grad is None else p.grad.copy_(view)
        self._step_at(lr)

    def _step_at(self, lr: float) -> None:
        """Step at another rate: groups that have lower ones keep their proportion to it."""
        groups, own = self.torch_optimizer.param_groups, self.rate()
        rates = [group["lr"] for group in groups]
        try:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = lr if rate == own else rate * (lr / own)
            self.torch_optimizer.step()
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def _step_(self, params: Flat, grad: Flat, state: Any, lr: float) -> None:
        raise NotImplementedError("apply_ does it all")


def _moments_of(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """Name what a torch optimizer remembers of a parameter, where we know it."""
    if isinstance(optimizer, torch.optim.SGD | NGSGD):
        momentum = any(group["momentum"] for group in optimizer.param_groups)
        return ("momentum_buffer",) if momentum else ()
    known = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam)
    return ("exp_avg", "exp_avg_sq") if isinstance(optimizer, known) else ()


def _is_own(grad: Flat | Parts, trained: list[nn.Parameter]) -> bool:
    """True if these are the very gradients that `backward` left, so nothing need be copied.

    A learner that has left its loop may have none at all, while a mean gradient has, by chance, as
    many pieces as the model has parameters.
    """
    if not isinstance(grad, Parts) or len(grad.pieces) != len(trained):
        return False
    if all(p.grad is None for p in trained):
        return False
    return all(
        p.grad is None or p.grad.data_ptr() == piece.data_ptr()
        for p, (_, piece) in zip(trained, grad.pieces, strict=True)
    )


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
        """This learner."""
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


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and size: as given, or from the environment, or alone."""
    env = os.environ
    if (rank is None) != (world_size is None):
        raise ConfigError("give both rank and world_size, or neither")
    if rank is not None and world_size is not None:
        return rank, world_size
    for names in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if all(name in env for name in names):
            return int(env[names[0]]), int(env[names[1]])
    return 0, 1


def _store(rank: int, timeout_s: float) -> tuple[Store, str]:
    """Return the store in which learners find each other, and the host that serves it."""
    env = os.environ
    if "HOCKET_STORE" in env:
        host, _, port = env["HOCKET_STORE"].rpartition(":")
        return Store.connect(host, int(port), timeout_s), host
    if "MASTER_ADDR" not in env or "MASTER_PORT" not in env:
        raise ConfigError(
            "hocket.attach knows of several learners but not where they meet: start them with "
            "`python -m hocket.launch`, or set MASTER_ADDR and MASTER_PORT"
        )
    host, number = env["MASTER_ADDR"], int(env["MASTER_PORT"])
    if rank == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return Store.serve(host, timeout_s, number), host
    return Store.connect(host, number, timeout_s), host


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    strategy: Strategy[Any] | str | Mapping[str, Any] = "allreduce",
    lr: Literal["own", "sequential"] = "own",
    rank: int | None = None,
    world_size: int | None = None,
    seed: int = 0,
    faults: tuple[Fault, ...] = (),
    **runtime: Any,
) -> Attached:
    """Put a strategy under a training loop of one's own; use it as a context manager.

    `lr="sequential"`: the optimizer's rate is meant for sequential SGD, and the local one is
    derived from it. `rank` and `world_size` come from the environment unless given. More keywords
    are `timeout_s` and `transport` of the `[runtime]` table; `faults` are planned by tests.
    """
    global _attached
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
    place, size = _place(rank, world_size)
    rule = UsersOptimizer(
        weight_decay=max(g.get("weight_decay", 0.0) for g in optimizer.param_groups),
        torch_optimizer=optimizer,
        model=model,
        scales=isinstance(optimizer, torch.optim.SGD | NGSGD),
    )
    chosen = _strategy(strategy)
    require(
        not chosen.needs_scores,
        f"strategy {chosen.name!r} is led by held-out loss, which hocket.attach does not have: use "
        "hocket.train, or another strategy",
    )
    experiment = Experiment(
        UserLoop(model),
        chosen,
        rule,
        Constant(epochs=1, lr_compensation="full" if lr == "sequential" else "none"),
        options=RuntimeOptions(
            learners=size, seed=seed, threads=torch.get_num_threads(), **runtime
        ),
    )
    store, host = None, "127.0.0.1"
    if size > 1:
        store, host = _store(place, experiment.options.timeout_s)
        store = store.prefix(f"hocket/attach/{_attached}")
        if place == 0:
            put_token(store)
        _attached += 1
    runtime_ = LoopRuntime(experiment, place, store, host, fate=Fate(faults, place))
    return Attached(runtime_, model, optimizer)


def _strategy(given: Strategy[Any] | str | Mapping[str, Any]) -> Strategy[Any]:
    if isinstance(given, Strategy):
        return given
    table = {"name": given} if isinstance(given, str) else given
    return config.choose(STRATEGIES, table, "strategy", "allreduce")
