"""When does a codec pay? The time of a step by the simulator's cost model, without gradients.

A model of so many values (columns of `WIDTH`) on P hosts with one learner each: the minibatch, then
the coding, then both exchanges. `hocket codecs --pays` prints it as a table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hocket.codecs import coded
from hocket.core.codec import Codec
from hocket.core.flat import Entry, Layout
from hocket.runtime.sim.cost import Cluster, CostModel, Host

WIDTH: Final = 1024  # values in a column
SIZES: Final = (1_000_000, 7_000_000, 46_000_000)  # the last is that of Seide et al. 2014
LINKS_GBIT: Final = (0.1, 1.0, 10.0)
MINIBATCHES_S: Final = (0.01, 0.1, 1.0)
MEMORY_GBIT: Final = 100.0  # one core of a present server copies 4 to 50 GB/s
EVEN: Final = 0.97  # a codec pays if it takes at most this share of the time of float32


def layout_of(num_values: int) -> Layout:
    """Return one matrix of about so many values, and its biases."""
    rows = max(1, num_values // WIDTH)
    return Layout(
        (Entry("weight", (rows, WIDTH), 0), Entry("bias", (rows,), rows * WIDTH)),
        rows * (WIDTH + 1),
    )


def step_s(
    codec: Codec, num_values: int, link_gbit: float, minibatch_s: float, learners: int
) -> float:
    """Return the seconds of one step of `allreduce`, for a model of so many values."""
    return step_of_layout_s(codec, layout_of(num_values), link_gbit, minibatch_s, learners)


def step_of_layout_s(
    codec: Codec,
    layout: Layout,
    link_gbit: float,
    minibatch_s: float,
    learners: int,
    memory_gbit: float = MEMORY_GBIT,
) -> float:
    """Return the seconds of one step of `allreduce`, one learner on each host."""
    host = Host(
        count=learners,
        frames_per_s=1.0 / minibatch_s,
        bandwidth_gbit=link_gbit,
        memory_gbit=memory_gbit,
    )
    cost = CostModel(Cluster((host,)), seed=0)
    coder, members = codec.fitted(layout), tuple(range(learners))
    now = cost.compute(0, 0.0, 1)[1]
    if coder is None:
        return cost.collective(members, now, 4 * layout.size, 2.0)
    now = cost.arithmetic(0, now, coded.work(coder, learners))[1]
    return cost.collective(members, now, coder.size.total, 2.0)


def rows(codecs: Iterable[Codec], learners: int) -> list[list[str]]:
    """Return the table: one row for each size, link and minibatch; the first codec is the base."""
    base, *others = codecs
    table = []
    for size in SIZES:
        for link in LINKS_GBIT:
            for minibatch in MINIBATCHES_S:
                first = step_s(base, size, link, minibatch, learners)
                times = [step_s(codec, size, link, minibatch, learners) for codec in others]
                best = min(zip(times, others, strict=True), key=lambda pair: pair[0])
                chosen = best[1].name if best[0] <= EVEN * first else base.name
                shares = [f"{first / time:.2f}" for time in times]
                what = [f"{size / 1e6:.0f} M", f"{link:g} Gbit/s", f"{1000 * minibatch:.0f} ms"]
                table.append([*what, f"{1000 * first:.0f} ms", *shares, chosen])
    return table
