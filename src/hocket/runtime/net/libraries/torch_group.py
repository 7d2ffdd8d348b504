"""Vectors through torch.distributed, without a copy in the memory of the host.

`runtime.transport = "torch"`: the few numbers of a collective (who takes part, weights, what is
piggybacked) travel as always. The vectors of collectives of all learners go through NCCL if they
are on a GPU, else through gloo. Collectives of groups and stripe exchanges use the memory of the
host.

It is the fast way between GPUs, with three drawbacks. A death inside a collective leaves the others
stuck (NCCL's watchdog even ends them), so a loss ends the run. The library adds up in an order
of its own, so sums do not agree with the simulator bit for bit. And its connections ask nobody for
a token (docs/security.md); its ends do find each other through the store of the run.

Groups are built from a store, a rank and a size that are handed in, never from the global state of
`init_process_group`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from hocket.core.device import Lane
from hocket.core.flat import Flat
from hocket.runtime.net.store import Store
from hocket.support.distributed import dist


class TorchStore(dist.Store):  # type: ignore[misc]
    """The store of a run, as torch.distributed wants to see one."""

    def __init__(self, store: Store, timeout_s: float) -> None:
        super().__init__()
        self._store = store
        self._timeout_s = timeout_s

    def set(self, key: str, value: bytes | str) -> None:
        """Store a value, text or bytes, for all ranks."""
        self._store.put_bytes(key, value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        """Return a value; waits for it."""
        return self._store.get_bytes(key)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter."""
        return self._store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """True if all these values are there."""
        return all(self._store.look(key) is not None for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all these values are there."""
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        for key in keys:
            self._store.limited(limit_s).get_bytes(key)

    def compare_set(self, key: str, expected: str | bytes, wanted: str | bytes) -> bytes:
        """Store a value if the present one is the expected one; return what is there."""
        old, new = (v.encode() if isinstance(v, str) else v for v in (expected, wanted))
        return self._store.swap(key, old, new)

    def delete_key(self, key: str) -> bool:
        """Remove a value."""
        return self._store.drop(key)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the limit of waits."""
        self._timeout_s = timeout.total_seconds()


def _process_group(
    store: TorchStore, rank: int, size: int, device: torch.device, address: str, timeout_s: float
) -> Any:
    """Join the group of all learners: NCCL for a GPU, gloo for the CPU."""
    if device.type == "cuda":
        kind, options = dist.ProcessGroupNCCL, dist.ProcessGroupNCCL.Options()
    else:
        kind, options = dist.ProcessGroupGloo, dist.ProcessGroupGloo._Options()
        options._devices = [kind.create_device(hostname=address)]
    options._timeout = timedelta(seconds=timeout_s)
    return kind(store, rank, size, options)


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
        self._rank = rank
        # Held here, too: the group knows only the part of it that is not Python's.
        self._store = TorchStore(store.prefix("vectors"), timeout_s)
        self._group = _process_group(self._store, rank, size, device, address, timeout_s)

    def weighted_sum(self, x: Flat, shares: Sequence[float]) -> Flat:
        """Return the sum of share * vector over all; a share of 0 adds 0, also if x has NaNs."""
        share = shares[self._rank]
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
