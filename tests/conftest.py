"""One thread everywhere: results are compared bit for bit. And nobody waits for the disk."""

from __future__ import annotations

import multiprocessing.forkserver
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Programs that tests start inherit it, and numpy's sums heed it. With more, threads of several
# processes wait for one another in circles: an example took 18 s of processor time, and takes 7.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True, scope="session")
def _no_power_failures() -> Iterator[None]:
    """No test cuts the power, so files need not reach the disk: a third of the time went there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _servers_that_have_loaded_all() -> Iterator[None]:
    """Whoever starts the server of this process, it loads `helpers.loaded` before it forks."""
    usual = multiprocessing.forkserver.set_forkserver_preload
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)  # the server knows no other way to it
        patch.setattr(
            multiprocessing.forkserver,
            "set_forkserver_preload",
            lambda names: usual([*names, "helpers.loaded"]),
        )
        yield


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests stay in one worker (`--dist loadgroup`); any worker takes the others.

    Learners in real processes need the machine: tests of them run one at a time, and tests that
    need one process run beside them. Tests that share a fixture of their module (a prepared
    experiment) would make it once in every worker.
    """
    for item in items:
        if item.path.parent.name == "multiprocess":
            item.add_marker(pytest.mark.xdist_group("processes"))
        elif _shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def _shares_a_fixture(item: pytest.Item) -> bool:
    known = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009
    return any(one.scope == "module" for fixtures in known for one in fixtures)
