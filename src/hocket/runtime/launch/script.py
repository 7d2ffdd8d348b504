"""Starts a script on several learners of this host; when one dies, the others go on.

    python -m hocket.launch --learners 4 train.py --my-option 3

For scripts that use `hocket.attach`. torchrun works too, but it ends all processes when one dies;
this launcher says which one died and lets the others finish. When the launcher is ended, it ends
them all. Unless OMP_NUM_THREADS is set, the learners share the cores: with as many threads each as
there are cores, they would wait for one another's threads.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from hocket.core.limits import MOST_PROCESSES
from hocket.errors import HocketError, require
from hocket.runtime.launch import engines, tokens
from hocket.runtime.launch.tokens import Token
from hocket.runtime.net.store_server import StoreServer
from hocket.support.parallel import default_jobs
from hocket.support.signals import end_program_with_parent, on_signals

PATIENCE_S = 5.0
THREADS = "OMP_NUM_THREADS"  # what torch and numpy look at; whoever has set it is obeyed
_POLL_S = 0.05


def main(argv: Sequence[str] | None = None) -> int:
    """Start the learners, wait for them, and say who was lost."""
    parser = argparse.ArgumentParser(prog="python -m hocket.launch", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--learners", type=int, required=True, metavar="N")
    parser.add_argument("script", help="a Python script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    args = parser.parse_args(argv)
    try:
        require(
            1 <= args.learners <= MOST_PROCESSES,
            f"--learners must be from 1 to {MOST_PROCESSES:,}, not {args.learners:,}",
        )
        engines.refuse_several("python -m hocket.launch")
    except HocketError as error:
        print(f"hocket: {error}", file=sys.stderr)
        return 2
    token = tokens.random()
    server = StoreServer.nearby(token.secret)
    command = [args.script, *args.arguments]
    learners: list[subprocess.Popen[bytes]] = []
    with on_signals(lambda: sys.exit(128 + signal.SIGTERM), [signal.SIGTERM]):
        try:
            for rank in range(args.learners):
                learners.append(_start(rank, args.learners, server.address, token, command))
            return _watch(learners)
        except OSError as error:
            told = f"rank {len(learners)} of {args.learners} cannot be started ({error})"
            print(f"hocket: {told}: use fewer learners", file=sys.stderr)
            return 1
        finally:
            _end(learners)


def _start(
    rank: int, size: int, store: str, token: Token, command: list[str]
) -> subprocess.Popen[bytes]:
    """Start a learner; it gets the token through a pipe, where nobody else can read it."""
    pipe = tokens.into_pipe(token)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    told = {"HOCKET_STORE": store, tokens.PIPE: str(pipe)}
    usual = {THREADS: str(max(1, default_jobs() // size))}  # the learners share the cores
    try:
        return subprocess.Popen(
            [sys.executable, *command],
            env=usual | os.environ | {key: str(value) for key, value in place.items()} | told,
            preexec_fn=end_program_with_parent,
            pass_fds=[pipe],
        )
    finally:
        os.close(pipe)


def _watch(learners: list[subprocess.Popen[bytes]]) -> int:
    """Wait for all, and return the exit code: a lost learner is no error, a failed one is."""
    running = dict(enumerate(learners))
    lost, failed = 0, 0
    while running:
        for rank, process in list(running.items()):
            code = process.poll()
            if code is None:
                continue
            del running[rank]
            if code < 0:
                lost += 1
                name = signal.Signals(-code).name
                print(f"hocket: rank {rank} is lost ({name})", file=sys.stderr, flush=True)
            elif code > 0:
                failed = failed or code
                print(f"hocket: rank {rank} failed (exit code {code})", file=sys.stderr, flush=True)
        time.sleep(_POLL_S)
    return failed or int(lost == len(learners))


def _end(learners: list[subprocess.Popen[bytes]]) -> None:
    for process in learners:
        if process.poll() is None:
            process.terminate()
    until = time.monotonic() + PATIENCE_S
    for process in learners:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
