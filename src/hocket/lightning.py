"""Any strategy under Lightning's Trainer. Needs the extra `hocket[lightning]`.

    trainer = lightning.Trainer(strategy=HocketStrategy("bmuf", lr="sequential"), ...)

    python -m hocket.launch --learners 2 train.py

Lightning runs the loop; where it would step, it runs the closure (forward, backward) and hands the
gradients to `hocket.attach`. Training data are divided by Lightning's DistributedSampler, which it
inserts (and which shuffles, also a loader that did not) unless the Trainer is told
`use_distributed_sampler=False`. When training ends, every learner has the final model.

Limits: one optimizer, stepped automatically; the CPU. What Lightning decides while training
(early stopping, the best checkpoint) every learner decides for itself, from its own part of the
data; `self.log(..., sync_dist=True)` is refused. Checkpoints hold rank 0's current model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only

from hocket.attach import Attached, attach
from hocket.core.codec import Codec
from hocket.core.strategy import Strategy
from hocket.errors import ConfigError, require
from hocket.runtime.launch import engines


class HocketStrategy(ParallelStrategy):  # type: ignore[misc]
    """Lets a Hocket strategy step for Lightning's Trainer; the arguments are `attach`'s."""

    strategy_name = "hocket"

    def __init__(
        self,
        strategy: Strategy[Any] | str | Mapping[str, Any] = "allreduce",
        *,
        codec: Codec | str | Mapping[str, Any] = "float32",
        lr: Literal["own", "sequential"] = "own",
        frames: Callable[[Any], int] | None = None,
        **more: Any,
    ) -> None:
        """`frames`: a minibatch's weight in every mean, given the batch; unset: all weigh 1."""
        super().__init__()
        engines.refuse_separate_torchruns()
        started = engines.started_by()
        self._rank, self._size = (started.rank, started.size) if started else (0, 1)
        self._options = {"strategy": strategy, "codec": codec, "lr": lr, **more}
        self._weigh = frames or (lambda batch: 1)
        self._frames = 0
        self._attached: Attached | None = None

    # ------------------------------------------------------------------ where we are

    @property
    def root_device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def global_rank(self) -> int:
        """This learner's number."""
        return self._rank

    @property
    def local_rank(self) -> int:
        """Each learner is a process of its own, with one device."""
        return 0

    @property
    def node_rank(self) -> int:
        """As far as Lightning needs to know."""
        return 0

    @property
    def world_size(self) -> int:
        """How many learners there are."""
        return self._size

    @property
    def is_distributed(self) -> bool:
        """Whether data are to be divided.

        Lightning knows this of its own strategies only: without this property all learners would
        train on the same minibatches.
        """
        return self._size > 1

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Which part of the data is this learner's."""
        return {"num_replicas": self._size, "rank": self._rank}

    def setup_environment(self) -> None:
        """Let only rank 0 print and write."""
        rank_zero_only.rank = self._rank
        super().setup_environment()

    def model_to_device(self) -> None:
        """It is there."""

    # ------------------------------------------------------------------ training

    def setup(self, trainer: Any) -> None:
        """Attach the strategy to the model and its optimizer, before the first step."""
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        _require_one(self.optimizers)
        assert self.lightning_module is not None
        require(
            self.lightning_module.automatic_optimization,
            "HocketStrategy steps by itself: leave automatic_optimization on",
        )
        self._attached = attach(self.lightning_module, self.optimizers[0], **self._options)
        self._attached.__enter__()

    def setup_optimizers(self, trainer: Any) -> None:
        """Refuse several optimizers by name; Lightning would advise to step them by hand."""
        try:
            super().setup_optimizers(trainer)
        except RuntimeError:
            assert self.lightning_module is not None
            _require_one(list(_optimizers_in(self.lightning_module.configure_optimizers())))
            raise

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Note the weight of the minibatch; accumulated ones add up."""
        self._frames += self._weigh(args[0] if args else kwargs)
        return super().training_step(*args, **kwargs)

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Run forward and backward, then hand the gradients in."""
        stand_in = _Steps(optimizer, self._step)
        return super().optimizer_step(stand_in, closure, model, **kwargs)

    def _step(self) -> None:
        assert self._attached is not None
        frames, self._frames = self._frames, 0
        self._attached.step(frames)

    def on_train_end(self) -> None:
        """Finish with the others; all have the final model then."""
        self._leave(None)

    def on_exception(self, exception: BaseException) -> None:
        """Let go of the others after an error."""
        self._leave(exception)
        super().on_exception(exception)

    def teardown(self) -> None:
        """Let go of the others, if training has not come to its end."""
        self._leave(KeyboardInterrupt())
        if self.cluster_environment is None:
            self.cluster_environment: Any = _NoCluster()
        super().teardown()

    def _leave(self, error: BaseException | None) -> None:
        attached, self._attached = self._attached, None
        if attached is not None:
            attached.__exit__(None if error is None else type(error), error, None)

    # ------------------------------------------------------------------ what Lightning asks for

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return what this learner has: lengths that Lightning compares; metrics are refused."""
        if self._size > 1 and isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            raise ConfigError(
                "self.log(..., sync_dist=True) has no effect under HocketStrategy: learners are at "
                "different places, and only models meet; log without it"
            )
        return tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Every learner decides for itself."""
        return decision

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> Any:
        """Refuse it for several learners, as `reduce` does."""
        return self.reduce(tensor)

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Nobody waits but in the strategy."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Every learner has come to the same, from the same configuration."""
        return obj


def _require_one(optimizers: list[torch.optim.Optimizer]) -> None:
    # Lightning makes an optimizer without parameters out of none.
    names = [type(optimizer).__name__ for optimizer in optimizers if optimizer.param_groups]
    require(
        len(names) == 1,
        f"HocketStrategy needs exactly one optimizer, and configure_optimizers returned "
        f"{', '.join(names) or 'none'}: let one optimizer have all parameters, in groups",
    )


def _optimizers_in(configured: Any) -> Iterator[torch.optim.Optimizer]:
    """All optimizers in what `configure_optimizers` returned: alone, in lists, in tables."""
    if isinstance(configured, torch.optim.Optimizer):
        yield configured
    elif isinstance(configured, Mapping):
        yield from _optimizers_in(configured.get("optimizer"))
    elif isinstance(configured, list | tuple):
        for one in configured:
            yield from _optimizers_in(one)


class _Steps:
    """The user's optimizer for Lightning's hooks, whose step is ours."""

    def __init__(self, optimizer: torch.optim.Optimizer, step: Callable[[], None]) -> None:
        self._optimizer, self._after = optimizer, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def step(self, closure: Callable[[], Any], **kwargs: Any) -> Any:
        result = closure()
        self._after()
        return result


class _NoCluster:
    """What is asked for a last time when Lightning ends."""

    def teardown(self) -> None:
        """Nothing was started."""
