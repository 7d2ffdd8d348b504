"""A Slurm of one's own: its daemons, started by hand in a folder, with two nodes on this host."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from helpers.programs import wait_for

PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
LIMIT_S: Final = 60.0
_CONFIG: Final = """\
ClusterName=hocket
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=4 State=UNKNOWN
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=4 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Say why there can be no Slurm here; empty if there can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)}: apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return "Slurm's daemons start jobs as other users: needs root"
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        return "this host does not know its own name"
    return "" if socket.gethostname() != "localhost" else "two nodes need two names of this host"


@dataclass(frozen=True)
class Slurm:
    """A cluster that runs."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        """The environment in which commands of Slurm find it."""
        mine = ("SLURM_", "SBATCH_", "SRUN_", "MASTER_", "HOCKET_", "SUBMITIT_")
        env = {k: v for k, v in os.environ.items() if not k.startswith(mine)}
        return env | {"SLURM_CONF": str(self.folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}

    def run(self, *command: str, limit_s: float = LIMIT_S, check: bool = True) -> str:
        """Run a command to its end; return what it printed."""
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=limit_s, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def facts(self, job: str) -> dict[str, str]:
        """What Slurm tells of a job."""
        told = self.run("scontrol", "show", "job", "--oneliner", job)
        return dict(re.findall(r"(\w+)=(\S+)", told))

    def state(self, job: str) -> str:
        return self.facts(job)["JobState"]

    def at_once(self, job: str) -> None:
        """Let a job that was requeued begin now: Slurm waits two minutes."""
        wait_for(lambda: self.state(job) == "PENDING", LIMIT_S)
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def cluster() -> Iterator[Slurm]:
    """Start a cluster, and end all of it."""
    with ExitStack() as stack:
        # The path of a Unix socket must be short, which pytest's folders are not.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp")))
        host = socket.gethostname()
        first, second, port = _free_ports(3)
        text = _CONFIG.format(folder=folder, host=host, port=port, first=first, second=second)
        (folder / "slurm.conf").write_text(text)
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        slurm = Slurm(folder)

        def daemon(*command: str) -> None:
            log = stack.enter_context((folder / f"{len(list(folder.iterdir()))}.log").open("w"))
            process = subprocess.Popen(command, env=slurm.env, stdout=log, stderr=log)
            stack.callback(_end, process)

        named = {"socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log"}
        files = {"key-file": "munge.key", "seed-file": "munge.seed", **named}
        daemon(
            "munged", "--foreground", "--force", *(f"--{k}={folder / v}" for k, v in files.items())
        )
        wait_for((folder / "munge.socket").exists, LIMIT_S)
        daemon("slurmctld", "-D")
        wait_for(lambda: "UP" in slurm.run("scontrol", "ping", check=False), LIMIT_S)
        for name in (host, "localhost"):
            daemon("slurmd", "-D", "-N", name)
        idle = ("sinfo", "--noheader", "--format=%T %D")
        wait_for(lambda: slurm.run(*idle).split() == ["idle", "2"], LIMIT_S)
        stack.callback(_no_jobs, slurm)
        yield slurm


def _no_jobs(slurm: Slurm) -> None:
    slurm.run("scancel", "--user=root", check=False)
    wait_for(lambda: not slurm.run("squeue", "--noheader", check=False).strip(), LIMIT_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(20)
