"""The contenders of `throughput.py`: one training job, done in several ways.

The job is the same for all: a 440-5x1024-2000 sigmoid network, minibatches of 256 frames that lie
in memory, SGD with momentum, one thread per process. Each process notes the time whenever it takes
a minibatch; a contender's speed is the sum over its processes of frames per second between the
first and the last of these, after a few to warm up. Processor time is noted too: it says what the
work costs on a machine that is not quiet. That of all processes of the contender includes those
that only serve.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

import hocket
from hocket.core.learner import Learner

BATCH, INPUTS, WIDTH, LAYERS, CLASSES = 256, 440, 1024, 5, 2000
WARM_UP = 4
SYNC_EVERY = 16
LR, MOMENTUM = 0.01, 0.9
DISTINCT = 16  # minibatches that are really different


def build_model() -> nn.Sequential:
    sizes = [INPUTS] + [WIDTH] * LAYERS
    hidden = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.Sigmoid())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, CLASSES))


def minibatches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(BATCH, INPUTS, generator=rng),
            torch.randint(CLASSES, (BATCH,), generator=rng),
        )
        for _ in range(DISTINCT)
    ]


class Clock:
    """Notes the time of every minibatch, in a file of its process."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._fd = os.open(f"{folder}/{os.getpid()}.f64", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tick(self) -> None:
        """Note the time at which a minibatch begins."""
        everybody = sum(processor_time(int(path.stem)) for path in self._folder.glob("*.f64"))
        now = [time.perf_counter(), time.process_time(), everybody]
        os.write(self._fd, np.array(now).tobytes())


def processor_time(process: int) -> float:
    """Return the processor time of a process and its threads; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user, kernel


def ticks(folder: str) -> list[NDArray[np.float64]]:
    """Return what every learner noted, a row per minibatch.

    By the clock, by its processor time, by that of all processes. A process that only serves others
    has no minibatches and is left out.
    """
    noted = [np.fromfile(path).reshape(-1, 3) for path in Path(folder).glob("*.f64")]
    return [times for times in noted if len(times)]


def speed(folder: str) -> tuple[float, float, float]:
    """Return frames per second: by the clock, of a learner's processor time, of everybody's.

    The first is of all learners together. The others do not depend on what else the machine does,
    but leave out waiting; the third has the processes that only serve, too.
    """
    wall = processor = 0.0
    processes = ticks(folder)
    fewest = min(map(len, processes))
    if fewest < WARM_UP + 2:  # where learners draw from one pool, one of them may get little of it
        raise SystemExit(f"a learner began {fewest} minibatches, the warm-up: use more --steps")
    for times in processes:
        frames = BATCH * (len(times) - WARM_UP - 1)
        wall += frames / (times[-1, 0] - times[WARM_UP, 0])
        processor += frames / (times[-1, 1] - times[WARM_UP, 1])
    return wall, processor / len(processes), _everybodys(processes)


def _everybodys(processes: list[NDArray[np.float64]]) -> float:
    """Return frames per second of the processor time of all, while all are at work."""
    begin = max(times[WARM_UP, 0] for times in processes)
    end = min(times[-1, 0] for times in processes)
    inside = [times[(times[:, 0] >= begin) & (times[:, 0] <= end)] for times in processes]
    first, last = (np.stack([rows[i] for rows in inside]) for i in (0, -1))
    frames = sum(BATCH * (len(rows) - 1) for rows in inside)
    return float(frames / np.mean(last[:, 2] - first[:, 2]))


# ---------------------------------------------------------------------------- plain PyTorch


def loop(model: nn.Module, optimizer: Any, steps: int, folder: str) -> None:
    """The training loop that a user writes; also the one of DDP and PostLocalSGD."""
    batches, clock = minibatches(), Clock(folder)
    for step in range(steps + 1):
        clock.tick()
        x, labels = batches[step % DISTINCT]
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)


def plain(steps: int, folder: str) -> None:
    model = build_model()
    loop(model, sgd(model), steps, folder)


def _child(target: Callable[..., None], rank: int, *args: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    target(rank, *args)


def _two(target: Callable[..., None], *args: Any) -> None:
    context = torch.multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [
        context.Process(target=_child, args=(target, rank, barrier, *args)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


def _apart(rank: int, barrier: Any, steps: int, folder: str) -> None:
    model = build_model()
    barrier.wait()
    loop(model, sgd(model), steps, folder)


def two_apart(steps: int, folder: str) -> None:
    _two(_apart, steps, folder)


def _group(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )


def _ddp(rank: int, barrier: Any, steps: int, folder: str) -> None:
    _group(rank, folder)
    model = DistributedDataParallel(build_model(), gradient_as_bucket_view=True)
    barrier.wait()
    loop(model, sgd(model), steps, folder)
    barrier.wait()


def ddp(steps: int, folder: str) -> None:
    _two(_ddp, steps, folder)


def _post_local_sgd(rank: int, barrier: Any, steps: int, folder: str) -> None:
    _group(rank, folder)
    model = DistributedDataParallel(build_model(), gradient_as_bucket_view=True)
    state = post_localSGD_hook.PostLocalSGDState(  # type: ignore[no-untyped-call]
        process_group=None, subgroup=dist.new_group([rank]), start_localSGD_iter=WARM_UP
    )
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=SYNC_EVERY, warmup_steps=WARM_UP)
    optimizer = PostLocalSGDOptimizer(optim=sgd(model), averager=averager)
    barrier.wait()
    loop(model, optimizer, steps, folder)
    barrier.wait()


def post_local_sgd(steps: int, folder: str) -> None:
    _two(_post_local_sgd, steps, folder)


# ---------------------------------------------------------------------------- Hocket


@dataclass(frozen=True)
class Job(hocket.Task):
    """The same job as a task."""

    folder: str
    num_items: int

    def build_model(self) -> nn.Module:
        """The network."""
        return build_model()

    def items(self, split: str) -> Sequence[hocket.Item]:
        """As many minibatches as asked for."""
        return [hocket.Item(i, BATCH) for i in range(self.num_items if split == "train" else 1)]

    def prepare(self) -> None:
        """Put the data into memory."""
        object.__setattr__(self, "_batches", minibatches())
        object.__setattr__(self, "_clock", Clock(self.folder))

    def load(self, split: str, item: hocket.Item, epoch: int) -> Any:
        """Take a minibatch, and note when; its parts may be taken one by one."""
        if split == "train" and self.__dict__.get("_last") != item.id:
            object.__setattr__(self, "_last", item.id)
            self.__dict__["_clock"].tick()
        return self.__dict__["_batches"][int(str(item.id)) % DISTINCT]

    def loss(self, model: nn.Module, batch: Any) -> hocket.Loss:
        """Cross-entropy."""
        x, labels = batch
        total = nn.functional.cross_entropy(model(x), labels, reduction="sum")
        return hocket.Loss(total, len(labels))


def train(strategy: Any, learners: int, steps: int, folder: str) -> None:
    result = hocket.train(
        Job(folder, learners * (steps + 1)),
        strategy=strategy,
        learners=learners,
        optimizer=hocket.SGD(lr=LR, momentum=MOMENTUM),
        schedule=hocket.Constant(epochs=1, lr_compensation="none"),
        progress=False,
    )
    assert result.frames + result.discarded_frames == BATCH * learners * (steps + 1)


def hocket_one(steps: int, folder: str) -> None:
    train("sequential", 1, steps, folder)


def hocket_allreduce(steps: int, folder: str) -> None:
    train("allreduce", 2, steps, folder)


def hocket_kstep(steps: int, folder: str) -> None:
    train(hocket.KStep(sync_every=SYNC_EVERY), 2, steps, folder)


def hocket_adpsgd(steps: int, folder: str) -> None:
    train(hocket.ADPSGD(), 2, steps, folder)


def hocket_asgd(steps: int, folder: str) -> None:
    """Two learners and a server process: gradients are pushed, the model is pulled."""
    train(hocket.ASGD(servers=1), 2, steps, folder)


def hocket_asgd_shared(steps: int, folder: str) -> None:
    """Two learners, each of which serves half of the model."""
    train(hocket.ASGD(servers=0), 2, steps, folder)


def hocket_delay_by_one(steps: int, folder: str) -> None:
    train(hocket.DelayByOne(), 2, steps, folder)


@dataclass(frozen=True)
class Meet(hocket.Strategy[hocket.State]):
    """Meets after every minibatch and exchanges one number: what waiting alone costs."""

    name: ClassVar[str] = "meet"
    paper: ClassVar[str] = ""
    summary: ClassVar[str] = "for comparison only"
    commits_when: ClassVar[str] = "all have met"
    synchronous: ClassVar[bool] = True
    evaluates: ClassVar = "average"

    def gain(self, num_learners: int) -> float:
        """Return 1/P, as if the models were averaged."""
        return 1.0 / num_learners

    async def run(self, me: Learner, state: hocket.State) -> hocket.State:
        """Step alone, then meet."""
        while (await me.boundary(state)).go_on:
            me.step_(state.params, await me.gradient(state.params), state.optimizer)
            await me.allreduce(torch.zeros(1))
            await me.commit()
        return state


def hocket_meet(steps: int, folder: str) -> None:
    train(Meet(), 2, steps, folder)


# ---------------------------------------------------------------------------- the core itself


def gemm(steps: int, folder: str) -> None:
    """The matrix products of one minibatch and nothing else: what the core can do."""
    sizes = [INPUTS] + [WIDTH] * LAYERS + [CLASSES]
    products = []
    for i, (a, b) in enumerate(pairwise(sizes)):
        x, w, g = torch.randn(BATCH, a), torch.randn(b, a), torch.randn(BATCH, b)
        products.append((x, w.T, torch.empty(BATCH, b)))  # forward
        products.append((g.T, x, torch.empty(b, a)))  # of the weights
        if i:
            products.append((g, w, torch.empty(BATCH, a)))  # of the inputs
    clock = Clock(folder)
    for _ in range(steps + 1):
        clock.tick()
        for x, y, out in products:
            torch.mm(x, y, out=out)


CONTENDERS: dict[str, Callable[[int, str], None]] = {
    "gemm": gemm,
    "plain": plain,
    "hocket-1": hocket_one,
    "apart-2": two_apart,
    "ddp-2": ddp,
    "post-local-sgd-2": post_local_sgd,
    "hocket-allreduce-2": hocket_allreduce,
    "hocket-kstep-2": hocket_kstep,
    "hocket-meet-2": hocket_meet,
    "hocket-delay-by-one-2": hocket_delay_by_one,
    "hocket-adpsgd-2": hocket_adpsgd,
    "hocket-asgd-2": hocket_asgd,
    "hocket-asgd-shared-2": hocket_asgd_shared,
}

# With --averaging: two learners that meet every SYNC_EVERY minibatches, method by method.
AVERAGING: dict[str, Callable[[int, str], None]] = {
    f"hocket-{strategy.name}-2": partial(train, strategy, 2)
    for strategy in (
        hocket.KStep(sync_every=SYNC_EVERY, local_momentum="average"),
        hocket.BMUF(sync_every=SYNC_EVERY),
        hocket.DiLoCo(sync_every=SYNC_EVERY),
        hocket.EASGD(sync_every=SYNC_EVERY),
        hocket.AsyncEASGD(sync_every=SYNC_EVERY),
        hocket.ADMM(sync_every=SYNC_EVERY),
    )
}
AVERAGING["hocket-kstep-average-2"] = AVERAGING.pop("hocket-kstep-2")
