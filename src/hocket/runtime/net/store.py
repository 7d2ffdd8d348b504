"""The store where learners find each other, and groups of torch.distributed.

Nothing is built from the global state of `init_process_group`: a store, a rank and a size are
handed in, so that survivors can regroup, and torchrun can bring a store of its own.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from hocket.errors import StoreLostError
from hocket.support.distributed import dist


class Store:
    """Names and numbers that all learners can read; one process serves it."""

    def __init__(self, inner: Any, limit_s: float | None = None) -> None:
        self._inner = inner
        self._limit_s = limit_s

    @classmethod
    def serve(cls, host: str, timeout_s: float, port: int = 0) -> Store:
        """Open a store that others connect to; port 0: any that is free."""
        limit = timedelta(seconds=timeout_s)
        return cls(dist.TCPStore(host, port, None, True, limit, wait_for_workers=False))

    @classmethod
    def connect(cls, host: str, port: int, timeout_s: float) -> Store:
        """Connect to a store that is being served."""
        return cls(dist.TCPStore(host, port, None, False, timedelta(seconds=timeout_s)))

    @property
    def inner(self) -> Any:
        """Return torch's own store."""
        return self._inner

    @property
    def port(self) -> int:
        """Return the port it is served on."""
        return int(self._inner.port)

    def prefix(self, name: str) -> Store:
        """Return a view in which every key begins with `name`."""
        return Store(dist.PrefixStore(name, self._inner), self._limit_s)

    def limited(self, limit_s: float) -> Store:
        """Return a view in which each call ends within `limit_s`, also if its host is cut off.

        torch's own limit does not hold for a connection that was cut: the call would wait for the
        kernel to give up, which takes a quarter of an hour.
        """
        return Store(self._inner, limit_s)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return it; atomic."""
        return int(self._within(lambda: self._inner.add(key, amount)))

    def put(self, key: str, value: str) -> None:
        """Store a value."""
        self._within(lambda: self._inner.set(key, value))

    def get(self, key: str) -> str:
        """Return a value; waits for it, up to the limit."""
        raw: bytes = self._within(lambda: self._inner.get(key))
        return raw.decode()

    def _within(self, call: Callable[[], Any]) -> Any:
        if self._limit_s is None:
            return call()
        ended: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

        def attempt() -> None:
            try:
                ended.put((call(), None))
            except Exception as error:
                ended.put((None, error))

        threading.Thread(target=attempt, name="store", daemon=True).start()
        try:
            value, error = ended.get(timeout=self._limit_s)
        except queue.Empty:
            value, error = None, TimeoutError(f"no answer within {self._limit_s:g} s")
        if error is not None:
            raise StoreLostError(
                f"the store that brought the hosts together cannot be reached ({error}): its host "
                "has ended or is cut off, so this part of the run ends; --resume continues it"
            ) from error
        return value


class ProcessGroup:
    """One group of torch.distributed."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        """Begin a sum in place; `wait()` on what is returned."""
        return self._inner.allreduce(tensors)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        """Begin to send the root's tensor to all; `wait()` on what is returned."""
        return self._inner.broadcast(tensor, root)


def process_group(
    store: Store, rank: int, size: int, *, device: torch.device, address: str, timeout_s: float
) -> ProcessGroup:
    """Join the group of all learners: NCCL for a GPU, gloo for the CPU."""
    if device.type == "cuda":
        kind, options = dist.ProcessGroupNCCL, dist.ProcessGroupNCCL.Options()
    else:
        kind, options = dist.ProcessGroupGloo, dist.ProcessGroupGloo._Options()
        options._devices = [kind.create_device(hostname=address)]
    options._timeout = timedelta(seconds=timeout_s)
    return ProcessGroup(kind(store.inner, rank, size, options))


def own_address(towards: str) -> str:
    """Return the address under which this host is seen from `towards`, or HOCKET_ADDRESS."""
    if "HOCKET_ADDRESS" in os.environ:  # a name that resolves to loopback, several networks
        return os.environ["HOCKET_ADDRESS"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))  # no packet is sent; it only asks the routing table
        return str(probe.getsockname()[0])
