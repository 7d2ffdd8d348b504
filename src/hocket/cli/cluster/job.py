"""What a scheduler runs on every node of a job: `hocket train`, and what follows when it ends.

    it has finished         so has the job
    it was stopped          there is a checkpoint: submitit puts the job back into the queue, and it
                            goes on from there; unless the user has cancelled the job
    anything else           the job has failed; why is in its log

Slurm signals every process of a job: `hocket train` hears what this process hears. The local
executor of submitit signals this process alone, which passes it on. To hear it twice does no harm.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from hocket import config
from hocket.cli.boundary import STOPPED
from hocket.errors import ConfigError, LearnerFailedError
from hocket.record.rundir import RunDirectory
from hocket.runtime.launch import tokens
from hocket.support.signals import WARNINGS, end_program_with_parent, on_signals

FINISHED: Final = "finished"
STOPPED_FOR_GOOD: Final = "stopped"
_ASK_S: Final = 60.0  # for Slurm's controller to answer
# Ports that nothing is given by the system (it begins at 32768), a different one for each job.
_FIRST_PORT, _NUM_PORTS = 10_000, 20_000
# What submitit installs there stops and requeues a job; see its documentation of checkpointing.
_REQUEUES: Final = f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}"


@dataclass(frozen=True)
class Training:
    """A run of `hocket train` that goes on from its newest checkpoint each time it is called."""

    run: Path
    settings: Path  # its configuration, as it was when the job was submitted
    token: Path | None = None  # the file with the secret of a run on several nodes
    quiet: bool = False  # show no progress in the log

    def __call__(self) -> str:
        """Train until the run is finished, or until it was stopped for good."""
        if self.has_finished():
            print(f"the run in {self.run} has finished already", flush=True)
            return FINISHED
        requeue = signal.getsignal(getattr(signal, _REQUEUES))
        with heard_signals() as heard:
            status = self._train(heard)
        if status == 0:
            return FINISHED
        if status not in _BY_SIGNAL:
            raise LearnerFailedError(
                f"`hocket train` ended with exit status {status}; its message is in this log. "
                "Once that is mended, submit the run again with --resume"
            )
        if self.has_finished():  # the signal came after the last line of the record
            return FINISHED
        if _cancelled(heard.numbers) or not callable(requeue):
            print(f"the run in {self.run} was stopped; --resume continues it", flush=True)
            return STOPPED_FOR_GOOD
        requeue(getattr(signal, _REQUEUES), None)  # returns on all nodes but the first
        return STOPPED_FOR_GOOD

    def checkpoint(self) -> Any:
        """Return what submitit is to run when the job is started again: the same."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def has_finished(self) -> bool:
        """True if the record says that this very run came to its end."""
        run = RunDirectory(self.run)
        try:
            asked = config.read(self.settings)["schedule"]
            return run.table("schedule") == asked and not run.summary()["stopped"]
        except (ConfigError, KeyError):
            return False

    def command(self) -> list[str]:
        """Return the command of this node."""
        resume = ["--resume"] if RunDirectory(self.run).checkpoints() else []
        quiet = ["--quiet"] if self.quiet else []
        given = ["--config", str(self.settings), "--out", str(self.run)]
        return [sys.executable, "-u", "-m", "hocket", "train", *given, *resume, *quiet]

    def _train(self, heard: Heard) -> int:
        env = {**os.environ, **meeting_place(os.environ), **self._secret(os.environ)}
        program = subprocess.Popen(self.command(), env=env, preexec_fn=end_program_with_parent)
        heard.pass_on_to(program)
        return program.wait()

    def _secret(self, env: Mapping[str, str]) -> dict[str, str]:
        given = tokens.VALUE in env or tokens.FILE in env
        return {} if self.token is None or given else {tokens.FILE: str(self.token)}


# How `hocket train` ends when it is asked to stop: with a checkpoint; or at once, before it could.
_BY_SIGNAL: Final = (STOPPED, *(-number for number in WARNINGS))


@dataclass
class Heard:
    """The signals that came while a program ran; it hears of them, too."""

    numbers: set[signal.Signals] = field(default_factory=set)
    _program: subprocess.Popen[bytes] | None = None

    def note(self, number: signal.Signals) -> None:
        """Note a signal and pass it on."""
        self.numbers.add(number)
        if self._program is not None:
            self._program.send_signal(number)

    def pass_on_to(self, program: subprocess.Popen[bytes]) -> None:
        """Pass on what comes from now on, and what has come before."""
        self._program = program
        for number in list(self.numbers):
            program.send_signal(number)


@contextmanager
def heard_signals() -> Iterator[Heard]:
    """Let warnings of a scheduler be heard here, instead of what submitit does about them."""
    heard = Heard()
    with ExitStack() as usual_again:
        for number in WARNINGS:
            usual_again.enter_context(on_signals(partial(heard.note, number), [number]))
        yield heard


# ---------------------------------------------------------------------------- what Slurm says


def meeting_place(env: Mapping[str, str]) -> dict[str, str]:
    """Return where the launchers of several nodes meet: at the first one's."""
    if int(env.get("SLURM_JOB_NUM_NODES", "1")) == 1 or "MASTER_ADDR" in env:
        return {}
    from submitit import JobEnvironment

    port = _FIRST_PORT + int(env["SLURM_JOB_ID"]) % _NUM_PORTS
    return {"MASTER_ADDR": JobEnvironment().hostnames[0], "MASTER_PORT": str(port)}


def _cancelled(heard: set[signal.Signals]) -> bool:
    """True if the job was ended by the user, or if somebody else requeues it."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return signal.SIGTERM in heard
    said = subprocess.run(
        ["scontrol", "show", "job", "--oneliner", job],
        capture_output=True,
        text=True,
        timeout=_ASK_S,
        check=False,
    )
    return ends_for_good(said.stdout)


def ends_for_good(told: str) -> bool:
    """Read from what Slurm tells of a job whether nobody is to requeue it.

    A job that is warned, or about to be preempted, is still running. One that ends otherwise than
    by its limit of time was cancelled, or is in the queue again without our doing.
    """
    facts = dict(re.findall(r"(\w+)=(\S+)", told))
    ending = facts.get("JobState", "RUNNING") != "RUNNING"
    return ending and facts.get("Reason") != "TimeLimit"
