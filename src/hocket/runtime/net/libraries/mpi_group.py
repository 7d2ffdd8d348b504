"""Vectors through MPI, where that is the only fast wire between hosts.

`runtime.transport = "mpi"`: the few numbers of a collective (who takes part, weights, what is
piggybacked) travel as always. The vectors of collectives of all learners go through MPI (mpi4py),
from the memory of the host, also if they are on a GPU. With `runtime.deterministic = true` they are
cut into stripes: everybody sends each stripe to its owner, who adds it up in rank order, as our own
sockets do and the simulator does. With false, MPI adds up in an order of its own.

A learner is then the process that MPI knows. A job of MPI ends when one of its processes is lost,
and takes nobody in. Messages do not go through MPI.

mpi4py is imported here and nowhere else, and only when it is used: the import alone begins MPI.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final

import torch

from hocket.core.flat import Flat
from hocket.core.numerics import weighted_sum
from hocket.errors import ConfigError, HocketError, WaitTimeoutError, require
from hocket.runtime.net.operations import stripes

# MPI goes on only while somebody asks it to. A vector of a few MB takes less than this long.
_EAGER_S: Final = 0.02
_WIRE: Final = "PMI_FD"
_PAUSE_S: Final = 5e-5  # between two questions after that


def _library() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: no library of MPI is found
        raise ConfigError(
            f"runtime.transport = 'mpi' needs mpi4py and a library of MPI ({error}): "
            "pip install 'hocket[mpi]', or build mpi4py with the MPI of this cluster"
        ) from error
    return MPI


def wire_of_mpi() -> Connection | None:
    """Launcher: return the descriptor through which MPICH and Intel MPI talk to its process.

    A learner becomes that process, so it needs it; others (Open MPI) name a socket in a variable.
    """
    number = os.environ.get(_WIRE, "")
    return Connection(os.dup(int(number))) if number.isdigit() else None


def take_wire(wire: Connection) -> None:
    """Learner: use the descriptor that its launcher has handed on."""
    os.environ[_WIRE] = str(os.dup(wire.fileno()))


def end_mpi() -> None:
    """Leave MPI, if this process is in it: one that just ended would end the whole job."""
    library = sys.modules.get("mpi4py.MPI")
    if library is not None and library.Is_initialized() and not library.Is_finalized():
        library.Finalize()


class MpiGroup:
    """All learners, as one communicator of MPI."""

    def __init__(self, rank: int, size: int, *, in_order: bool, timeout_s: float) -> None:
        self._mpi = _library()
        self._in_order = in_order
        self._timeout_s = timeout_s
        world = self._mpi.COMM_WORLD
        found = world.Get_rank(), world.Get_size()
        require(
            found == (rank, size),
            f"MPI says that this process is rank {found[0]} of {found[1]}, but it is learner "
            f"{rank} of {size}: mpirun and mpi4py must belong to the same MPI (mpirun --version; "
            "python -m mpi4py --mpi-lib-version)",
        )
        if self._mpi.Query_thread() < self._mpi.THREAD_SERIALIZED:
            raise HocketError(
                "MPI was begun without threads, but collectives may run in a thread of their own: "
                "leave mpi4py.rc.thread_level at 'multiple'"
            )
        self._everyone = world.Dup()  # whatever the user does with MPI is not mixed with ours
        self._rank, self._size = rank, size

    def weighted_sum(self, x: Flat, shares: Sequence[float]) -> Flat:
        """Return the sum of share * vector over all; a share of 0 adds 0, also if x has NaNs."""
        mine = x.detach().to("cpu", torch.float32).contiguous()
        total = self._sum_in_order(mine, shares) if self._in_order else self._sum(mine, shares)
        return total.to(x.device)

    def _sum(self, mine: Flat, shares: Sequence[float]) -> Flat:
        share = shares[self._rank]
        total = torch.zeros_like(mine) if share == 0.0 else mine * share
        self._finish(self._everyone.Iallreduce(self._mpi.IN_PLACE, total.numpy()))
        return total

    def _sum_in_order(self, mine: Flat, shares: Sequence[float]) -> Flat:
        cuts = stripes(mine.numel(), self._size)
        counts, places = [b - a for a, b in cuts], [a for a, _ in cuts]
        width = counts[self._rank]
        parts = torch.empty(self._size, width)
        sent = [mine.numpy(), counts, places, self._mpi.FLOAT]
        taken = [parts.numpy(), [width] * self._size, None, self._mpi.FLOAT]
        self._finish(self._everyone.Ialltoallv(sent, taken))
        stripe = weighted_sum(list(parts), shares) if width else torch.empty(0)
        total = torch.empty_like(mine)
        gathered = [total.numpy(), counts, places, self._mpi.FLOAT]
        self._finish(self._everyone.Iallgatherv([stripe.numpy(), self._mpi.FLOAT], gathered))
        return total

    def broadcast(self, x: Flat, root: int) -> Flat:
        """Return the root's vector."""
        value = x.detach().to("cpu", torch.float32, copy=True).contiguous()
        self._finish(self._everyone.Ibcast(value.numpy(), root))
        return value.to(x.device)

    def _finish(self, request: Any) -> None:
        """Wait until a collective is complete, at most as long as for any other learner."""
        wait_for(request.Test, self._timeout_s)


def wait_for(done: Callable[[], bool], limit_s: float) -> None:
    """Ask until the answer is yes: without a pause at first, as MPI works while it is asked."""
    began = time.monotonic()
    while not done():
        waited = time.monotonic() - began
        if waited > limit_s:
            raise WaitTimeoutError("MPI has not completed it: another process of the job is stuck")
        time.sleep(0.0 if waited < _EAGER_S else _PAUSE_S)
