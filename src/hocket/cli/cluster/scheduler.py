"""What a job asks of a scheduler, and its submission through submitit.

Why submitit and no batch script of ours: it counts how often the limit of time has ended a job,
requeues it from inside, keeps the logs of all nodes in one folder, and has a local executor that
takes the same way without a cluster. What it writes for Slurm is a plain batch script
(`hocket submit --dry-run` prints it).
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hocket.cli.cluster.job import Training
from hocket.errors import ConfigError, HocketError, require

_TIME: Final = re.compile(r"(?:(\d{1,4})-)?(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?", re.ASCII)
_KEY: Final = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
# Options of sbatch that have one of ours, or that the job needs as they are.
_OURS: Final = {
    "partition": "--partition",
    "nodes": "--nodes",
    "time": "--time",
    "cpus-per-task": "--cpus",
    "gpus-per-node": "--gpus",
    "mem": "--mem",
    "account": "--account",
    "qos": "--qos",
    "signal": "--warn",
}
_NEEDED: Final = ("ntasks", "ntasks-per-node", "requeue", "no-requeue", "array", "output", "error")


def minutes(text: str) -> int:
    """Return a duration as Slurm writes it: 90, 1:30:00, 2-12 (days-hours), 2-12:00."""
    match = _TIME.fullmatch(text)
    numbers = [int(part) for part in match.groups() if part is not None] if match else []
    if match and match[1] is not None:  # days-hours[:minutes[:seconds]]
        found = _seconds(*numbers)
    elif len(numbers) == 3:  # hours:minutes:seconds
        found = _seconds(0, *numbers)
    else:  # minutes[:seconds]
        found = _seconds(0, 0, *numbers)
    require(
        found > 0,
        f"--time {text!r} is no duration: give minutes (90), hours:minutes:seconds (12:00:00) or "
        "days-hours (2-12)",
    )
    return math.ceil(found / 60)


def _seconds(days: int = 0, hours: int = 0, minutes: int = 0, seconds: int = 0) -> int:
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


@dataclass(frozen=True)
class JobResources:
    """What a job asks for."""

    time_min: int  # the longest stretch
    nodes: int = 1
    cpus: int = 1  # of each node
    gpus: int = 0  # of each node
    memory: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    warn_s: int = 120  # the run is stopped so long before the limit of time
    stretches: int = 100  # so often may the limit of time be reached
    setup: tuple[str, ...] = ()  # commands of the shell, before anything else
    more: Mapping[str, str | bool] = field(default_factory=dict)  # further options of sbatch

    def __post_init__(self) -> None:
        require(self.nodes >= 1, f"--nodes must be at least 1, not {self.nodes}")
        require(self.cpus >= 1, f"--cpus must be at least 1, not {self.cpus}")
        require(self.gpus >= 0, f"--gpus must be at least 0, not {self.gpus}")
        require(self.stretches >= 0, f"--stretches must be at least 0, not {self.stretches}")
        require(self.warn_s >= 1, f"--warn must be at least 1, not {self.warn_s}")
        require(
            self.warn_s < 60 * self.time_min,
            f"--warn {self.warn_s} leaves no time to train: --time is {self.time_min} min",
        )
        for text in (self.memory, self.partition, self.account, self.qos, *self.setup):
            require(text is None or text.isprintable(), f"{text!r} is no single line of text")

    def for_slurm(self, name: str) -> dict[str, Any]:
        """Return these as submitit's parameters for Slurm."""
        given = {
            "mem": self.memory,
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "gpus_per_node": self.gpus or None,
            "setup": list(self.setup) or None,
        }
        return {
            "job_name": name,
            "time": self.time_min,
            "nodes": self.nodes,
            "ntasks_per_node": 1,  # the launcher; it starts the learners of its node
            "cpus_per_task": self.cpus,
            "signal_delay_s": self.warn_s,
            "stderr_to_stdout": True,
            "additional_parameters": {"requeue": True, **self.more},
            # srun does not take the number over from sbatch, and learners may be lost one by one
            "srun_args": [f"--cpus-per-task={self.cpus}", "--kill-on-bad-exit=0"],
            **{key: value for key, value in given.items() if value is not None},
        }

    def for_this_machine(self) -> dict[str, Any]:
        """Return these as submitit's parameters for its local executor."""
        return {
            "timeout_min": self.time_min,
            "signal_delay_s": self.warn_s,
            "gpus_per_node": self.gpus,
            "setup": list(self.setup),
            "stderr_to_stdout": True,
        }


def further(options: list[str]) -> dict[str, str | bool]:
    """Read further options of sbatch, KEY or KEY=VALUE; those that are set already are refused."""
    found: dict[str, str | bool] = {}
    for option in options:
        key, given, value = option.removeprefix("--").partition("=")
        require(
            _KEY.fullmatch(key) is not None and value.isprintable(),
            f"--sbatch {option!r}: give an option of sbatch as KEY or KEY=VALUE",
        )
        if key in _OURS:
            raise ConfigError(f"--sbatch {option}: use {_OURS[key]}")
        if key in _NEEDED:
            raise ConfigError(f"--sbatch {option}: `hocket submit` sets this itself; leave it out")
        found[key] = value if given else True
    return found


# ---------------------------------------------------------------------------- through submitit


def script(resources: JobResources, job: Training, folder: Path) -> str:
    """Return the batch script that would be submitted; no Slurm is needed for that."""
    _submitit()
    from submitit.slurm.slurm import SlurmExecutor

    class Anywhere(SlurmExecutor):  # type: ignore[misc]
        """Asks for no srun."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    executor = Anywhere(folder, max_num_timeout=resources.stretches)
    executor.update_parameters(**resources.for_slurm(job.run.name))
    return str(executor._make_submission_file_text(executor._submitit_command_str, ""))


def submit(resources: JobResources, job: Training, folder: Path, *, local: bool) -> str:
    """Submit the job; return its number."""
    submitit = _submitit()
    if local:
        executor = submitit.LocalExecutor(folder, max_num_timeout=resources.stretches)
        executor.update_parameters(**resources.for_this_machine())
        return str(executor.submit(job).job_id)
    if shutil.which("srun") is None or shutil.which("sbatch") is None:
        raise ConfigError(
            "there is no sbatch and srun here: submit on a host of a Slurm cluster. --dry-run "
            "prints the batch script, and --local runs the job on this machine"
        )
    executor = submitit.SlurmExecutor(folder, max_num_timeout=resources.stretches)
    executor.update_parameters(**resources.for_slurm(job.run.name))
    try:
        return str(executor.submit(job).job_id)
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        told = [line for line in str(error).splitlines() if line.strip()]
        raise HocketError(f"Slurm did not take the job: {told[-1] if told else error}") from error


def _submitit() -> Any:
    try:
        import submitit
    except ImportError as error:
        raise HocketError(
            f"{error.name} is not installed: pip install 'hocket[slurm]' (docs/engines.md has a "
            "batch script that does without)"
        ) from error
    return submitit
