"""Every published claim as a command: `hocket reproduce NAME`.

To add one, write `claims/NAME.py` with a subclass of `Claim`, and a row in `headlines.py`. It
declares the claim, its paper, the published figure and what would refute it; `runs(bench)` lists
the runs (usually by `bench.sequential()` and `bench.arm(name, learners, bench.grid(...))`);
`judge(found, bench)` compares arms with the functions of `checks`. The task, the number of epochs
and the seeds are the bench's, so one claim can be tried on frames of a stream and on speech. `make
test` runs every claim with --smoke.

    claim.py       what an experiment declares        checks.py      from outcomes to a verdict
    execute.py     tuning, judging, several at once   statistics.py  intervals, seeds needed
    cache.py       what was computed before           writing.py     table, page, docs/results
    outcome.py     arms, times to a loss              headlines.py   the literature on one page
    command.py     the command                        tasks.py       the task when none is given
    claims/        one file per claim                 setups/        what several claims share

May import everything but `cli`.
"""

from __future__ import annotations

import importlib
import pkgutil

from hocket.errors import ConfigError, nearest
from hocket.reproduce import claims
from hocket.reproduce.claim import Claim

__all__ = ["Claim", "all_claims", "find"]


def all_claims() -> dict[str, Claim]:
    """Return one object of every claim in `claims/`, by name."""
    found = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(claims.__path__)):
        loaded = importlib.import_module(f"{claims.__name__}.{module}")
        for thing in vars(loaded).values():
            if isinstance(thing, type) and issubclass(thing, Claim) and hasattr(thing, "name"):
                found[thing.name] = thing()
    return found


def find(name: str) -> Claim:
    """Return a claim by its name; an unknown name is refused with the nearest one."""
    claims_ = all_claims()
    if name not in claims_:
        raise ConfigError(
            f"no claim {name!r}.{nearest(name, claims_)} There are: {', '.join(claims_)}"
        )
    return claims_[name]
