"""`recipes/ablation.py`: one change at a time; what is done is kept; a table of what there is."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest

from hocket import config
from hocket.speech.decode.decoding import Setting
from hocket.speech.decode.evaluation import Evaluation, write_text
from hocket.speech.decode.scoring import score

RECIPE = Path(__file__).parents[2] / "recipes" / "ablation.py"
REFS = {f"u{n}": ["one", "two"] for n in range(10)}


@pytest.fixture
def recipe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recipe_ablation", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # dataclasses look their module up
    spec.loader.exec_module(found)
    return found


def result(folder: Path, wrong: int) -> None:
    """Write what decoding leaves: the first words are not understood."""
    folder.mkdir(parents=True)
    hyps = {name: words[n < wrong :] for n, (name, words) in enumerate(REFS.items())}
    found = score(REFS, hyps)
    told = Evaluation("x", "test", Setting(0.1, 0.0), True, found, found, 1.0, 1)
    (folder / "result.json").write_text(json.dumps(asdict(told)))
    write_text(folder / "test.ref", REFS)
    write_text(folder / "test.hyp", hyps)


def test_every_row_is_trained_decoded_and_compared(
    recipe: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    called: list[list[str]] = []
    errors = iter((4, 1, 2))

    def fake(words: list[str]) -> int:
        called.append(words)
        if words[0] == "train":
            run = Path(words[words.index("--out") + 1])
            run.mkdir(parents=True)
            (run / "model.safetensors").write_bytes(b"")
            tables = {"model": {"width": 256}, "schedule": {"epochs": 6}}
            (run / "config.json").write_text(json.dumps(tables))
        if words[0] == "decode":
            result(Path(words[1]) / "decode", next(errors))
        if words[0] == "realign":
            (Path(words[words.index("--out") + 1]) / "alignment").mkdir(parents=True)
        return 0

    result(tmp_path / "exp" / "gmm-tri", 6)
    monkeypatch.setattr(recipe, "hocket", fake)
    command = ["ablation", str(tmp_path / "exp"), str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", [*command, "--only", "wide,second-pass"])
    assert recipe.main() == 0
    assert [words[0] for words in called] == ["train", "decode"] * 2 + [
        "realign",
        "train",
        "decode",
    ]
    assert "model.width=512" in called[2]
    assert called[4][1] == str(tmp_path / "out" / "usual")
    assert called[5][1] == str(tmp_path / "out" / "second-pass-experiment")
    table = (tmp_path / "out" / "table.md").read_text()
    assert "| GMM-HMM, deltas | 30.0% | 30.0% | +10.0% [" in table
    assert "| the usual settings | 20.0% | 20.0% | - |" in table
    assert "| twice as wide | 5.0% | 5.0% | -15.0% [" in table
    assert "| the second pass | 10.0% | 10.0% | -10.0% [" in table
    assert "20 words to test" in table
    assert recipe.main() == 0
    assert len(called) == 7  # nothing is done twice
    capsys.readouterr()


def test_an_unknown_row_and_a_failed_command_are_errors(
    recipe: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["ablation", str(tmp_path / "exp"), str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", [*command, "--only", "wider"])
    assert recipe.main() == 1
    assert "no row 'wider': there are usual" in capsys.readouterr().err
    monkeypatch.setattr(recipe, "hocket", lambda words: 1)
    monkeypatch.setattr("sys.argv", command)
    assert recipe.main() == 1
    assert "this command failed: hocket train" in capsys.readouterr().err


def test_every_setting_is_an_option_that_exists(recipe: ModuleType) -> None:
    known = config.options()
    for row in recipe.ROWS:
        for setting in row.settings:
            path, _, _ = setting.partition("=")
            table, _, key = path.partition(".")
            assert key == "name" or any(key in keys for keys in known[table].values()), setting
