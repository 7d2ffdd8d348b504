"""What all claims on decentralised training share: the methods, their speed, the published ratio.

*The published ratio.* IBM's acoustic model has 43 million parameters and is trained on minibatches
of 256 sequences of 21 frames. One V100 needs about a week for 16 epochs over 2,000 hours (Cui et
al., TASLP 2021, and IBM's report on it; recalled, not re-read). That is

    2,000 h * 360,000 frames/h / 21 / 256 * 16 epochs = 2.14 million minibatches in 604,800 s,

or 0.28 s each. Sending the model once over 100 Gbit/s takes 43e6 * 4 bytes * 8 / 1e11 = 13.8 ms:
a minibatch lasts 20 times as long.
"""

from __future__ import annotations

from typing import Any, Final

from hocket.core.flat import Layout
from hocket.core.strategy import Strategy
from hocket.core.task import Task
from hocket.reproduce.outcome import Arm
from hocket.runtime.sim.cost import Cluster, Host
from hocket.strategies import ADPSGD, AllReduceSGD, DelayByOne

METHODS: dict[str, Strategy[Any]] = {
    "allreduce": AllReduceSGD(),
    "delay-by-one": DelayByOne(),
    "fixed ring": ADPSGD(ring="fixed"),
    "random ring": ADPSGD(ring="random"),
}
RATIO: Final = 0.28 / (43e6 * 4 * 8 / 100e9)  # a minibatch to sending the model once
FRAMES_PER_S: Final = 10_000.0  # of one learner
LATENCY: Final = 0.001  # of a message, as a share of a minibatch: 0.28 ms against 0.28 s


def throughput(arm: Arm) -> float:
    """Return frames per second, the mean over the seeds."""
    return arm.mean(lambda o: o.frames_per_s).value


def published_cluster(task: Task, learners: int, net: float = 1.0, node: int = 1) -> Cluster:
    """Return equal learners whose links keep the published ratio for this task's model.

    `net`: the bandwidth as a multiple of the published one; `node`: learners of a host.
    """
    model_bits = Layout.of(task.build_model()).size * 32
    minibatch_s = task.items("train")[0].frames / FRAMES_PER_S
    gbit = net * RATIO * model_bits / minibatch_s / 1e9
    host = Host(
        count=learners // node,
        learners=node,
        frames_per_s=FRAMES_PER_S,
        jitter=0.1,
        bandwidth_gbit=gbit,
        memory_gbit=4 * gbit,
    )
    short = LATENCY * minibatch_s
    return Cluster((host,), latency_s=short, local_latency_s=short / 4)
