"""What may have started this process as one of several, and as which of them: one table.

Each row is an *engine*: the variables in which it says who this process is. An engine that is
visible and is not used would train as many separate models, silently; so it is used, or refused
with what to do instead.

Engines may be nested (`srun torchrun ...`; mpirun, too, starts its own servers with srun): the
innermost one, which comes first in the table, has started this very process. Those that start no
process of their own (variables set by hand, a torch.distributed that the user's script has
initialised) must agree with whatever has.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hocket.errors import ConfigError
from hocket.support import distributed

Environment = Mapping[str, str]


@dataclass(frozen=True)
class Engine:
    """One way to start processes, and the variables in which it numbers them."""

    name: str
    rank: str
    size: str
    local_rank: str
    signs: tuple[str, ...]  # one of these variables shows that it is there
    remedy: str = ""  # how to let several processes meet, if nothing says where
    job: tuple[str, ...] = ()  # variables that together name the job, the same for all of it
    on_one_host: tuple[str, str] = ("", "")  # it is on one host if these two are equal
    starts: bool = True  # False: it only says what another engine has started


@dataclass(frozen=True)
class Started:
    """What an engine says about this process."""

    engine: Engine
    rank: int
    size: int
    local_rank: int | None = None


_MEET: Final = "set MASTER_ADDR (the first process's host) and MASTER_PORT (a free port there)"
OURS: Final = Engine(
    "python -m hocket.launch", "RANK", "WORLD_SIZE", "LOCAL_RANK", ("HOCKET_STORE",)
)
TORCHRUN: Final = Engine(
    "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", ("TORCHELASTIC_RUN_ID",), _MEET
)
OPEN_MPI: Final = Engine(
    "mpirun (Open MPI)",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    f"{_MEET}: mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 python SCRIPT",
    job=("PMIX_NAMESPACE",),
    on_one_host=("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
)
HYDRA: Final = Engine(
    "mpiexec (MPICH or Intel MPI)",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    ("PMI_RANK", "PMI_SIZE"),
    f"{_MEET}: mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT 29500 python SCRIPT",
)
# A batch script and an interactive shell are one process, however many tasks the job may start:
# only a step (srun) has several.
SLURM: Final = Engine(
    "srun (Slurm)",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    ("SLURM_STEP_NUM_TASKS",),
    f"{_MEET}: export them before srun",
    job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
    on_one_host=("SLURM_STEP_NUM_NODES", "1"),
)
# Some launchers number processes by PMIx alone, which does not say how many there are.
PMIX: Final = Engine("a PMIx launcher", "PMIX_RANK", "", "", ("PMIX_RANK",))
VARIABLES: Final = Engine(
    "whatever has set RANK and WORLD_SIZE",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    (),
    _MEET,
    starts=False,
)
INITIALISED: Final = Engine(
    "torch.distributed, which this script has initialised,", "", "", "LOCAL_RANK", (), starts=False
)
GIVEN: Final = Engine("hocket.attach(rank=..., world_size=...)", "", "", "", (), _MEET)

SPEAKS_MPI: Final = (OPEN_MPI, HYDRA, SLURM)

ENGINES: Final = (OURS, TORCHRUN, OPEN_MPI, HYDRA, SLURM, PMIX, VARIABLES, INITIALISED)


# ---------------------------------------------------------------------------- who is there


def seen(engine: Engine, env: Environment) -> Started | None:
    """Return what an engine says about this process; None if it is not there."""
    if engine is INITIALISED:
        if (group := distributed.initialised()) is None:
            return None
        return Started(engine, *group, local_rank=_number(env, engine.local_rank))
    named = engine.signs or (engine.rank, engine.size)
    there = any(name in env for name in named) if engine.signs else all(n in env for n in named)
    if not there:
        return None
    rank, size = _number(env, engine.rank), _number(env, engine.size)
    if rank is None or size is None:
        missing = engine.rank if rank is None else engine.size or "how many there are"
        raise ConfigError(
            f"{engine.name} has started this process, but {missing} is not known: start it in "
            "another way, give rank and world_size to hocket.attach, or hide the launcher: "
            f"env {' '.join('-u ' + name for name in named)} ..."
        )
    if not 0 <= rank < size:
        raise ConfigError(f"{engine.rank}={rank} is no rank of {engine.size}={size} processes")
    return Started(engine, rank, size, _number(env, engine.local_rank))


def _number(env: Environment, name: str) -> int | None:
    if not name or name not in env:
        return None
    try:
        return int(env[name])
    except ValueError as error:
        raise ConfigError(f"{name}={env[name]!r} must be a number") from error


def started_by(env: Environment | None = None) -> Started | None:
    """Return which engine has started this process as one of how many; None: nothing has."""
    env = os.environ if env is None else env
    found = [one for engine in ENGINES if (one := _unless_unclear(engine, env)) is not None]
    if not found:
        return None
    first, others = found[0], found[1:]
    for other in others:
        # An outer engine numbers what it has started: mpirun's own servers, say. But if the inner
        # one has started one process alone, the outer one has started several of that kind.
        nested = other.engine.starts and (first.size > 1 or other.size == 1)
        if not nested and (first.rank, first.size) != (other.rank, other.size):
            raise _contradiction(first, other)
    return first


def _unless_unclear(engine: Engine, env: Environment) -> Started | None:
    """Leave PMIx out where a launcher that uses it says more."""
    if engine is PMIX and any(seen(other, env) for other in ENGINES if other is not PMIX):
        return None
    return seen(engine, env)


def _contradiction(one: Started, other: Started) -> ConfigError:
    return ConfigError(
        f"{one.engine.name} says that this process is rank {one.rank} of {one.size}, but "
        f"{other.engine.name} says rank {other.rank} of {other.size}: let them agree, hide one "
        "(env -u VARIABLE ...), or give rank and world_size to hocket.attach"
    )


def job_on_one_host(started: Started, env: Environment) -> str | None:
    """Return a name that only the processes of this job have, if all of them are on this host."""
    engine = started.engine
    named = [env[name] for name in engine.job if name in env]
    this, other = engine.on_one_host
    if not engine.job or len(named) < len(engine.job) or this not in env:
        return None
    return "/".join([engine.name, *named]) if env[this] == env.get(other, other) else None


# ---------------------------------------------------------------------------- refusals


def refuse_several(what: str, env: Environment | None = None) -> None:
    """Refuse to run in each of several processes what starts its learners itself."""
    env = os.environ if env is None else env
    several = [
        one for e in ENGINES if (one := _unless_unclear(e, env)) is not None and one.size > 1
    ]
    if several:
        first = several[0]
        raise ConfigError(
            f"{first.engine.name} has started {first.size} processes, and in each of them {what} "
            f"would start learners of its own and train a separate model: start it once, with "
            f"--learners {first.size}. docs/engines.md says what to do on several hosts"
        )


def check_mpi(ranks: int, env: Environment | None = None) -> None:
    """Refuse `runtime.transport = "mpi"` unless MPI has started one process for each rank.

    A learner is then the process that MPI knows: its launcher never begins MPI itself.
    """
    asked = "runtime.transport = 'mpi'"
    started = started_by(env)
    if started is None or started.engine not in SPEAKS_MPI:
        raise ConfigError(
            f"{asked} needs processes that MPI has started, one for each learner: mpirun -n "
            f"{ranks} hocket train ..., or leave the transport at 'auto'"
        )
    if started.size != ranks:
        raise ConfigError(
            f"{asked} needs one process of MPI for each learner: {started.engine.name} has started "
            f"{started.size}, and there are {ranks} learners: mpirun -n {ranks} ..."
        )
    if importlib.util.find_spec("mpi4py") is None:  # not imported: that would begin MPI here
        raise ConfigError(f"{asked} needs mpi4py in every process: pip install 'hocket[mpi]'")


def refuse_separate_torchruns(env: Environment | None = None) -> None:
    """Refuse torchruns that know nothing of each other, though one engine has started them all."""
    env = os.environ if env is None else env
    if TORCHRUN.signs[0] not in env or env.get("GROUP_WORLD_SIZE", "1") != "1":
        return
    for engine in (OPEN_MPI, HYDRA, SLURM):
        outer = seen(engine, env)
        if outer is not None and outer.size > 1:
            raise ConfigError(
                f"{engine.name} has started torchrun {outer.size} times, and each of them trains a "
                f"separate model: give them --nnodes={outer.size} and a common --rdzv-endpoint "
                f"(docs/engines.md). If that is what you want, hide {engine.name} from them: "
                f"env {' '.join('-u ' + name for name in engine.signs)} torchrun ..."
            )
