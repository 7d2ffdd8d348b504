"""Where the secret of a run, its *token*, comes from.

| who starts the run | the token |
|---|---|
| Hocket's own launchers, on one host | a random one; learners get it through a pipe |
| anything else | `HOCKET_TOKEN`, or the file that `HOCKET_TOKEN_FILE` names, the same everywhere |
| anything else, without these | one that anybody could work out; the run says so at its start |
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hocket.errors import ConfigError, require

VALUE: Final = "HOCKET_TOKEN"
FILE: Final = "HOCKET_TOKEN_FILE"
PIPE: Final = "HOCKET_TOKEN_FD"  # set by `python -m hocket.launch`: the number of a descriptor
MOST_BYTES: Final = 4096
_LEAST: Final = 16  # letters; `openssl rand -hex 32` gives 64
_MADE_BYTES: Final = 32

OPEN: Final = (
    f"warning: this run has no token, so anybody who reaches its ports can join it, change its "
    f"model and end it. To keep others out, set {VALUE} (or {FILE}) to the same secret in every "
    "process; see docs/security.md"
)


@dataclass(frozen=True)
class Token:
    """The secret of a run; `is_open`: it is none."""

    secret: bytes = field(repr=False)
    is_open: bool = False


def random() -> Token:
    """Return a token that nobody else has."""
    return Token(os.urandom(_MADE_BYTES))


def shared(run: str) -> Token:
    """Return the token that the user gave to all processes; without one, an open one for `run`."""
    given = _given()
    if given is None:
        return Token(hashlib.sha256(f"hocket without a token: {run}".encode()).digest(), True)
    require(
        len(given) >= _LEAST,
        f"the token in {VALUE} or {FILE} has {len(given)} letters, at least {_LEAST} are needed: "
        "make one with `openssl rand -hex 32`",
    )
    return Token(hashlib.sha256(given).digest())


def _given() -> bytes | None:
    value, file = os.environ.get(VALUE), os.environ.get(FILE)
    require(not (value and file), f"{VALUE} and {FILE} are both set: give one of them")
    if file:
        return _read_file(Path(file))
    return value.strip().encode() if value else None


def _read_file(path: Path) -> bytes:
    """Read a token from a file that only its owner can read."""
    try:
        with path.open("rb", buffering=0) as opened:
            mode = os.fstat(opened.fileno()).st_mode
            require(stat.S_ISREG(mode), f"{FILE}={path} is not a file")
            require(
                not mode & (stat.S_IRWXG | stat.S_IRWXO),
                f"{FILE}={path} can be read by others: chmod 600 {path}",
            )
            return opened.read(MOST_BYTES).strip()
    except OSError as error:
        raise ConfigError(f"{FILE}={path} cannot be read ({error.strerror})") from error


# ---------------------------------------------------------------------------- through a pipe

_received: Token | None = None  # a pipe can be read once, but a process may need the token again


def into_pipe(token: Token) -> int:
    """Put a token into a pipe; return the end that a learner reads, for the caller to close."""
    ours, theirs = os.pipe()
    try:
        os.write(theirs, token.secret)
    finally:
        os.close(theirs)
    return ours


def from_pipe() -> Token:
    """Return the token that `python -m hocket.launch` has handed to this process."""
    global _received
    if _received is None:
        _received = Token(_read_pipe())
    return _received


def _read_pipe() -> bytes:
    number = os.environ.get(PIPE, "")
    try:
        descriptor = int(number)
        secret = os.read(descriptor, MOST_BYTES)
        os.close(descriptor)
    except (ValueError, OSError):
        secret = b""
    if len(secret) != _MADE_BYTES:
        raise ConfigError(
            f"this process was started by `python -m hocket.launch`, but the pipe with the token "
            f"({PIPE}={number}) is not open in it: a program in between must leave open files open "
            "(subprocess: close_fds=False)"
        )
    return secret
