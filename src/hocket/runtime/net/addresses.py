"""Addresses as text, and how to listen and connect there.

`192.0.2.7:29500` is a port of a host. `@name` is a Unix socket in the abstract namespace of this
host: it has no file, so none is left behind. Anybody on the host can connect to it, so
both ends look whether the other belongs to the same user.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
import time
from typing import Final, TypeAlias

from hocket.errors import ConfigError

Kind: TypeAlias = socket.SocketKind

LOOPBACK: Final = "127.0.0.1"
NEARBY: Final = sys.platform == "linux"  # are there abstract Unix sockets?
_BACKLOG: Final = 128  # connections that wait to be accepted; all learners may call at once
_CREDENTIALS: Final = struct.Struct("iII")  # of the other end: process, user, group
_EVERYBODY: Final = ipaddress.ip_address("255.255.255.255")
_LEAST_S: Final = 1e-3  # a limit of 0 would mean: do not wait at all


def listen(address: str, kind: Kind = socket.SOCK_STREAM) -> socket.socket:
    """Wait for connections at one address of this host; port 0 is any port that is free."""
    if address.startswith("@"):
        listener = socket.socket(socket.AF_UNIX, kind)
        listener.bind("\0" + address[1:])
        listener.listen(_BACKLOG)
        return listener
    host, port = parse(address)
    listener = socket.create_server((host, port), backlog=_BACKLOG)
    meant = ipaddress.ip_address(listener.getsockname()[0])  # of a name, or of "0"
    if meant.is_unspecified or meant.is_multicast or meant == _EVERYBODY:
        listener.close()
        raise ConfigError(
            f"{host!r} ({meant}) is no address of one host, and others could not call it: give the "
            "address of this host in the network that the others are in (`hostname -I` prints all)"
        )
    return listener


def connect(address: str, kind: Kind, until: float) -> socket.socket:
    """Connect before a time; OSError if that fails."""
    left = max(until - time.monotonic(), _LEAST_S)
    if not address.startswith("@"):
        return socket.create_connection(parse(address), timeout=left)
    connection = socket.socket(socket.AF_UNIX, kind)
    try:
        connection.settimeout(left)
        connection.connect("\0" + address[1:])
        if not same_user(connection):
            raise PermissionError("a process of another user listens there")
    except OSError:
        connection.close()
        raise
    return connection


def same_user(connection: socket.socket) -> bool:
    """True unless a Unix socket's other end belongs to another user."""
    if connection.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return True
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(raw)[1] == os.geteuid())


def address_of(listener: socket.socket) -> str:
    """Return where somebody listens, as text."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return "@" + bytes(name)[1:].decode()
    return f"{name[0]}:{name[1]}"


def parse(address: str) -> tuple[str, int]:
    """Return host and port."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else -1
    if not _can_be_a_name(host) or not 0 <= number <= 65535:
        raise ConfigError(f"{address[:300]!r} is no address: it must be HOST:PORT")
    return host, number


def _can_be_a_name(host: str) -> bool:
    """True if the resolver can be asked for it; it fails on others in its own ways."""
    try:
        return bool(host.encode("idna")) and "\0" not in host
    except UnicodeError:
        return False


def own_address(towards: str) -> str:
    """Return the address under which this host is seen from `towards`, or HOCKET_ADDRESS."""
    if "HOCKET_ADDRESS" in os.environ:  # a name that resolves to loopback, several networks
        return os.environ["HOCKET_ADDRESS"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))  # no packet is sent; it only asks the routing table
        except OSError:  # a host without a network
            return LOOPBACK
        return str(probe.getsockname()[0])
