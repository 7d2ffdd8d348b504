"""Where processes meet that another program has started.

All that decides a run is in its own store (`runtime/net/store.py`), which the first process serves.
The others must find it:

* `python -m hocket.launch` serves it and says where (`HOCKET_STORE`);
* torchrun, and a torch.distributed that the user has initialised, bring a store of torch. Whoever
  reaches that can read and change it, so it carries one address, signed with the token;
* `MASTER_ADDR` and `MASTER_PORT` name the place itself;
* otherwise, if one engine has started all of them on this host (mpirun, srun), they meet at a Unix
  socket that is named after the job; whoever gets in belongs to the same user.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from hocket.errors import ConfigError, HocketError, StoreLostError
from hocket.runtime.launch import engines, tokens
from hocket.runtime.launch.engines import INITIALISED, Started
from hocket.runtime.launch.tokens import Token
from hocket.runtime.net import addresses
from hocket.runtime.net.store import Place
from hocket.runtime.net.store_server import StoreServer
from hocket.support import distributed
from hocket.support.waiting import within

T = TypeVar("T")
_ANYWHERE: Final = "192.0.2.1"  # of RFC 5737, never reached: the way there is the usual one
_serving: dict[str, StoreServer] = {}  # of this process, by run: held until it ends
_met: dict[str, Meeting] = {}


@dataclass(frozen=True)
class Meeting:
    """Where the store of the run is, and whether the run lets anybody in."""

    place: Place
    is_open: bool


def meet(started: Started, timeout_s: float) -> Meeting:
    """Return where the processes of this run meet; the first of them serves the store.

    Every call of a process gives the same answer: `hocket.attach` may be used several times.
    """
    run = _name_of_run()
    if run not in _met:
        _met[run] = _meet(started, run, timeout_s)
    return _met[run]


def _name_of_run() -> str:
    """Return what all processes of a run agree on, and others hopefully do not."""
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT", "HOCKET_STORE")
    return "/".join(["hocket", *(os.environ.get(name, "") for name in names)])


def _meet(started: Started, run: str, timeout_s: float) -> Meeting:
    env = os.environ
    if "HOCKET_STORE" in env:
        return Meeting(Place(env["HOCKET_STORE"], tokens.from_pipe().secret), False)
    token = tokens.shared(run)
    towards = env.get("MASTER_ADDR", _ANYWHERE)
    carrier = _carrier(started, timeout_s)
    job = engines.job_on_one_host(started, env)
    if carrier is None and job and "MASTER_ADDR" not in env and addresses.NEARBY:
        return _meet_nearby(started, run, job)
    if carrier is None:  # each host may know the first one by another name
        address = _master(started)
        if started.rank == 0:
            _serving[run] = StoreServer(token.secret, _listeners(address), known_by=run)
        return Meeting(Place(address, token.secret, towards, known_by=run), token.is_open)
    if started.rank == 0:
        own = addresses.listen(f"{addresses.own_address(towards)}:0")
        _serving[run] = StoreServer(token.secret, [own])
        address = _serving[run].address
        _within(timeout_s, lambda: carrier.set(run, _signed(address, run, token)))
    else:
        address = _checked(_within(timeout_s, lambda: carrier.get(run)), run, token)
    return Meeting(Place(address, token.secret, towards), token.is_open)


# ---------------------------------------------------------------------------- one job, one host


def _meet_nearby(started: Started, run: str, job: str) -> Meeting:
    """Meet at a socket that only processes of this user can use; all that follows is keyed by it.

    The keys of all other connections hold a random number of the store (`Store.derived_key`), which
    nobody else can ask for. So such a run lets nobody else in, with a token or without.
    """
    token = tokens.shared(f"{run} of {job}")
    digest = hashlib.sha256(f"{os.geteuid()} {job}".encode()).hexdigest()
    address = f"@hocket-job-{digest[:32]}"
    if started.rank == 0:
        try:
            listener = addresses.listen(address)
        except OSError as error:
            raise ConfigError(
                f"the meeting place of this job is taken ({error.strerror}): another run of the "
                "same job is still under way, or another user is in the way: set MASTER_ADDR and "
                "MASTER_PORT"
            ) from error
        _serving[run] = StoreServer(token.secret, [listener])
    return Meeting(Place(address, token.secret), False)


# ---------------------------------------------------------------------------- MASTER_ADDR


def _master(started: Started) -> str:
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not host or not port:
        raise ConfigError(
            f"{started.engine.name} has started {started.size} processes, but nothing says where "
            f"they meet: {started.engine.remedy}. On one host, `python -m hocket.launch --learners "
            f"{started.size} SCRIPT` needs nothing else"
        )
    return f"{host}:{port}"


def _listeners(address: str) -> list[socket.socket]:
    """Listen at the address that others call: as this host knows it, and as others see it."""
    host, port = addresses.parse(address)
    found: list[socket.socket] = []
    try:
        here = socket.gethostbyname(host)
    except OSError as error:
        raise ConfigError(f"MASTER_ADDR={host} is not known to this host ({error})") from error
    for name in dict.fromkeys([here, addresses.own_address(host)]):
        try:
            found.append(addresses.listen(f"{name}:{port}"))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"MASTER_PORT={port} is used by another program on this host (a "
                    "torch.distributed that was initialised there?): choose another port"
                ) from error
            if error.errno != errno.EADDRNOTAVAIL:  # else the name is that of a router
                raise
    if not found:
        raise ConfigError(
            f"the first process cannot listen at MASTER_ADDR={host}: is that another host? "
            "Give the address of the host that the first process runs on"
        )
    return found


# ---------------------------------------------------------------------------- a store of torch's


def _carrier(started: Started, timeout_s: float) -> Any:
    """Return a store of torch's that brings the processes together; None if there is none."""
    env = os.environ
    if started.engine is INITIALISED or distributed.num_processes() > 1:
        return distributed.initialised_store()
    if env.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        host, port = env["MASTER_ADDR"], int(env["MASTER_PORT"])
        return distributed.connect_store(host, port, timeout_s)
    return None


def _signature(address: str, run: str, token: Token) -> str:
    return hmac.new(token.secret, f"{run} is at {address}".encode(), "sha256").hexdigest()


def _signed(address: str, run: str, token: Token) -> str:
    return f"{address} {_signature(address, run, token)}"


def _checked(told: bytes, run: str, token: Token) -> str:
    """Return the address that the first process has signed."""
    address, _, signature = told.decode(errors="replace").partition(" ")
    if not hmac.compare_digest(signature.encode(), _signature(address, run, token).encode()):
        raise HocketError(
            f"the address {address!r} in the store of torch was not written by a process with this "
            f"token: {tokens.VALUE} must be the same in every process, or somebody has changed it"
        )
    return address


def _within(limit_s: float, call: Callable[[], T]) -> T:
    """Ask torch's store: its own limit does not hold for a connection that was cut."""
    try:
        return within(limit_s, call, "meeting")
    except Exception as error:
        raise StoreLostError(
            f"the first process was not found in the store that brings the processes together "
            f"({error}): it has not started, has ended or is cut off"
        ) from error
