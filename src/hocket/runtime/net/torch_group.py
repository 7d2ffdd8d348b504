"""Vectors through torch.distributed, without a detour through the host's memory.

`runtime.transport = "torch"`: the few numbers of a collective (who takes part, weights, what rides
along) travel as always; the vectors of collectives of all learners go through NCCL where they lie
on a GPU, through gloo where they do not. Groups and stripe exchanges keep to host memory.

It is the fast way between GPUs, at a price: a death inside a collective leaves the others stuck
(NCCL's watchdog even ends them), so a loss ends the run; and sums are in the library's own order,
so they do not agree with the simulator to the bit.
"""

from __future__ import annotations

import torch

from hocket.core.device import Lane
from hocket.core.flat import Flat
from hocket.runtime.net.store import Store, process_group


class DeviceGroup:
    """All learners, as one group of torch.distributed that nobody else knows of."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        device: torch.device,
        address: str,
        timeout_s: float,
    ) -> None:
        self._lane = Lane(device)
        self._group = process_group(
            store.prefix("vectors"),
            rank,
            size,
            device=device,
            address=address,
            timeout_s=timeout_s,
        )

    def weighted_sum(self, x: Flat, share: float) -> Flat:
        """Return the sum of everybody's share * vector; who has no share adds nothing, not NaN."""
        with self._lane.work():
            total = torch.zeros_like(x) if share == 0.0 else x.detach() * share
            self._group.allreduce([total]).wait()
        return total

    def broadcast(self, x: Flat, root: int) -> Flat:
        """Return the root's vector."""
        with self._lane.work():
            value = x.detach().clone()
            self._group.broadcast(value, root).wait()
        return value
