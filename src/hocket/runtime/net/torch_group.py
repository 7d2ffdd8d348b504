"""Vectors through torch.distributed, without a copy in the memory of the host.

`runtime.transport = "torch"`: the few numbers of a collective (who takes part, weights, what is
piggybacked) travel as always. The vectors of collectives of all learners go through NCCL if they
are on a GPU, else through gloo. Collectives of groups and stripe exchanges use the memory of the
host.

It is the fast way between GPUs, with two drawbacks. A death inside a collective leaves the others
stuck (NCCL's watchdog even ends them), so a loss ends the run. And the library adds up in an order
of its own, so sums do not agree with the simulator bit for bit.
"""

from __future__ import annotations

import torch

from hocket.core.device import Lane
from hocket.core.flat import Flat
from hocket.runtime.net.store import Store, process_group


class DeviceGroup:
    """All learners, as one group of torch.distributed for their vectors."""

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
        """Return the sum of share * vector over all; a share of 0 adds 0, also if x has NaNs."""
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
