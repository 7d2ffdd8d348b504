"""Runs are kept by configuration and code version: what was computed once is not computed again.

The key of a run is a digest of everything that decides it: task (with a checksum of its items),
strategy, optimizer, schedule, codec, options, cluster, the version of torch, and the code. The code
is what the run can reach by imports, found by walking them from the runtime and from the parts of
the run, so a change of another strategy, of a comment or of a docstring leaves the run valid.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path
from typing import Final

import torch

import hocket
from hocket import config
from hocket.core.task import Task
from hocket.reproduce.claim import Run

ROOT: Final = Path(hocket.__file__).parent
WORLDS: Final = {False: "hocket.runtime.real.process", True: "hocket.runtime.sim.simulator"}


def key(run: Run) -> str:
    """Return the name under which the run is kept."""
    e = run.experiment
    decides = (
        repr((e.strategy, e.optimizer, e.schedule, e.codec, e.options, run.cluster)),
        _data(e.task),
        torch.__version__,
        code_version(run),
        *([] if run.link_mbit is None else [run.link_mbit]),
    )
    return hashlib.sha256(repr(decides).encode()).hexdigest()[:20]


@cache
def _data(task: Task) -> str:
    return repr((task, config.fingerprint(task)))


def code_version(run: Run) -> str:
    """Return a digest of the code that the run executes."""
    e = run.experiment
    parts = [
        type(part).__module__ for part in (e.task, e.strategy, e.optimizer, e.schedule, e.codec)
    ]
    return _version(tuple(sorted({*parts, WORLDS[run.cluster is not None]})))


@cache
def _version(modules: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name in sorted(reachable(modules)):
        digest.update(f"{name}\n{_meaning(_file(name))}\n".encode())
    return digest.hexdigest()[:12]


def reachable(modules: tuple[str, ...]) -> set[str]:
    """Return every module of this package that some modules import, directly or not."""
    found: set[str] = set()
    ahead = [name for name in modules if _file(name).exists()]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += [other for other in _imports(_file(name)) if _file(other).exists()]
    return found


def _file(module: str) -> Path:
    """Return a module's file; of a module elsewhere, one that does not exist."""
    parts = module.split(".")
    if parts[0] != "hocket" or len(parts) == 1:
        return ROOT / "none.py"
    path = ROOT.joinpath(*parts[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _imports(path: Path) -> frozenset[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


@cache
def _meaning(path: Path) -> str:
    """Return the code without comments, docstrings and layout."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            node.body.pop(0)
    return ast.dump(tree)
