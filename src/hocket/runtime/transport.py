"""The only place that imports `torch.distributed`: a store, and groups built from it.

Groups are built from a store, a rank and a size that are handed in, never from the global state of
`init_process_group`: only so can survivors regroup, a learner join, and another engine bring its
own rendezvous.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from hocket.flat import Flat
from hocket.numerics import weighted_sum

dist: Any = torch.distributed  # its stubs lack the group objects that are used here


class Store:
    """Names and numbers that all learners can read; one process serves it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @classmethod
    def serve(cls, host: str, timeout_s: float) -> Store:
        """Open a store that others connect to."""
        limit = timedelta(seconds=timeout_s)
        return cls(dist.TCPStore(host, 0, None, True, limit, wait_for_workers=False))

    @classmethod
    def connect(cls, host: str, port: int, timeout_s: float) -> Store:
        """Connect to a store that is being served."""
        return cls(dist.TCPStore(host, port, None, False, timedelta(seconds=timeout_s)))

    @property
    def port(self) -> int:
        """Return the port it is served on."""
        return int(self._inner.port)

    def prefix(self, name: str) -> Store:
        """Return a view in which every key begins with `name`."""
        return Store(dist.PrefixStore(name, self._inner))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return it; atomic."""
        return int(self._inner.add(key, amount))

    def put(self, key: str, value: str) -> None:
        """Store a value."""
        self._inner.set(key, value)

    def get(self, key: str) -> str:
        """Return a value; waits for it, up to the limit."""
        raw: bytes = self._inner.get(key)
        return raw.decode()


class Group:
    """Collectives among some learners, over gloo. Every call blocks, up to the limit."""

    def __init__(
        self, store: Store, member: int, size: int, *, address: str, timeout_s: float
    ) -> None:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timedelta(seconds=timeout_s)
        self._pg = dist.ProcessGroupGloo(store._inner, member, size, options)
        self.member = member
        self.size = size

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Everybody's tensor, in order; all of one shape."""
        gathered = [torch.empty_like(x) for _ in range(self.size)]
        self._pg.allgather([gathered], [x]).wait()
        return gathered

    def all_gather_numbers(self, values: Sequence[float]) -> list[list[float]]:
        """Everybody's numbers, as float64."""
        rows = self.all_gather(torch.tensor(values, dtype=torch.float64))
        return [[float(v) for v in row.tolist()] for row in rows]

    def all_gather_bytes(self, data: bytes, lengths: Sequence[int]) -> list[bytes]:
        """Everybody's bytes, given how many each has."""
        padded = torch.zeros(max(*lengths, 1), dtype=torch.uint8)
        if data:
            padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        rows = self.all_gather(padded)
        return [bytes(row[:n].numpy()) for row, n in zip(rows, lengths, strict=True)]

    def weighted_sum(self, x: Flat, shares: Sequence[float], *, deterministic: bool) -> Flat:
        """Sum of share * vector over the members; in rank order if deterministic."""
        if deterministic:
            return weighted_sum(self.all_gather(x.contiguous()), shares)
        share = shares[self.member]
        scaled = x * share if share else torch.zeros_like(x)
        self._pg.allreduce([scaled]).wait()
        return scaled

    def broadcast(self, x: Flat, root: int) -> Flat:
        """Return the root's vector, as a new one."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        received = x.clone()
        self._pg.broadcast([received], options).wait()
        return received

    def all_to_all(self, stripes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Stripe s goes to member s; all members' stripes s are of one shape."""
        mine = stripes[self.member]
        sizes = [s.numel() for s in stripes]
        received = torch.empty(mine.numel() * self.size, dtype=mine.dtype)
        sent = torch.cat([s.reshape(-1) for s in stripes])
        self._pg.alltoall_base(
            received, sent, [mine.numel()] * self.size, sizes, dist.AllToAllOptions()
        ).wait()
        return [row.view(mine.shape).clone() for row in received.view(self.size, -1)]


def is_backend_error(error: RuntimeError) -> bool:
    """True if gloo said it: a time-out, or a connection that a peer has closed."""
    return type(error) is RuntimeError or isinstance(error, dist.DistError)


def own_address(towards: str) -> str:
    """Return the address under which this host is seen from `towards`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))  # no packet is sent; it only asks the routing table
        return str(probe.getsockname()[0])
