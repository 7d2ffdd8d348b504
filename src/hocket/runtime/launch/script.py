"""Starts a script on several learners of this host; when one dies, the others go on.

    python -m hocket.launch --learners 4 train.py --my-option 3

For scripts that use `hocket.attach`. torchrun works too, but it ends all processes when one dies;
this launcher says which one died and lets the others finish. When the launcher is ended, it ends
them all.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from hocket.errors import require
from hocket.runtime.net.store import Store
from hocket.support.signals import end_program_with_parent, on_signals

HOST = "127.0.0.1"
PATIENCE_S = 5.0
_POLL_S = 0.05


def main(argv: Sequence[str] | None = None) -> int:
    """Start the learners, wait for them, and say who was lost."""
    parser = argparse.ArgumentParser(prog="python -m hocket.launch", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--learners", type=int, required=True, metavar="N")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="of the store")
    parser.add_argument("script", help="a Python script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    args = parser.parse_args(argv)
    require(args.learners >= 1, f"--learners must be at least 1, not {args.learners}")
    store = Store.serve(HOST, args.timeout)
    learners = [
        _start(rank, args.learners, store.port, [args.script, *args.arguments])
        for rank in range(args.learners)
    ]
    with on_signals(lambda: sys.exit(128 + signal.SIGTERM), [signal.SIGTERM]):
        try:
            return _watch(learners)
        finally:
            _end(learners)


def _start(rank: int, size: int, port: int, command: list[str]) -> subprocess.Popen[bytes]:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    env = os.environ | {key: str(value) for key, value in place.items()}
    env["HOCKET_STORE"] = f"{HOST}:{port}"
    return subprocess.Popen([sys.executable, *command], env=env, preexec_fn=end_program_with_parent)


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
