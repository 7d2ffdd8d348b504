"""Examples are run, not only read."""

from __future__ import annotations

import difflib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.experiments import SPLITS, prepared

ROOT = Path(__file__).parents[2]


def test_own_model() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "own_model.py")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "agree bit for bit: True" in done.stdout


def test_attach_runs_on_two_learners_and_its_diff_is_the_documented_one() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hocket.launch", "--learners", "2"),
            str(ROOT / "examples" / "attach.py"),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reached = [float(x) for x in re.findall(r"rank \d of 2: accuracy ([\d.]+)", done.stdout)]
    assert len(reached) == 2
    assert min(reached) > 0.95
    plain, ours = ((ROOT / "examples" / f"{n}.py").read_text() for n in ("plain", "attach"))
    diff = list(difflib.unified_diff(plain.splitlines(), ours.splitlines(), lineterm="", n=1))
    assert "\n".join(diff[2:]) in (ROOT / "docs" / "attach.md").read_text()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("epochs", [1, pytest.param(8, marks=pytest.mark.long)])
def test_ctc_learns_characters_recognises_words_and_is_exported(
    epochs: int, tmp_path: Path
) -> None:
    """The whole example takes a minute of processor time; one epoch of it teaches little."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hocket.launch", "--learners", "2"),
            *(str(ROOT / "examples" / "ctc.py"), "--export", str(tmp_path)),
            *("--epochs", str(epochs)),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rates = {
        name: (float(characters), float(words))
        for name, characters, words in re.findall(
            r"(greedy|lexicon): CER ([\d.]+)%, WER ([\d.]+)%", done.stdout
        )
    }
    assert rates.keys() == {"greedy", "lexicon"}
    if epochs == 8:
        assert rates["greedy"][0] < 25.0  # characters: most of the utterance is right
        assert rates["lexicon"][1] < 20.0  # words: the lexicon mends what is left
    tokens = (tmp_path / "tokens.txt").read_text(encoding="utf-8").splitlines()
    assert tokens[:2] == ["<blk> 0", "▁ 1"]
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    facts = session.get_modelmeta().custom_metadata_map
    assert facts["vocab_size"] == str(len(tokens))
    x = np.random.default_rng(0).normal(size=(3, 57, 16)).astype(np.float32)
    given: dict[str, Any] = {"x": x, "x_lens": np.array([57, 40, 12], dtype=np.int64)}
    scores, lengths = map(np.asarray, session.run(None, given))
    assert scores.shape == (3, 15, len(tokens))
    assert lengths.tolist() == [15, 10, 3]
    np.testing.assert_allclose(np.exp(scores).sum(2), 1.0, rtol=1e-4)
    alone, _ = session.run(None, {"x": x[1:2, :40], "x_lens": given["x_lens"][1:2]})
    np.testing.assert_allclose(scores[1, :10], alone[0], atol=1e-3)  # padding counts nothing


@pytest.fixture
def ctc() -> Iterator[Any]:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("ctc", ROOT / "examples" / "ctc.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["ctc"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["ctc"]


def test_ctc_reads_a_prepared_experiment(
    ctc: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("kaldi_decoder")
    experiment = prepared(tmp_path / "exp")
    for index in (experiment / "features").glob("*/index.json"):
        facts = json.loads(index.read_text())
        for number, row in enumerate(facts["utterances"]):
            row["words"] = ["yes", "no"] if number else []  # the first was never written down
        index.write_text(json.dumps(facts))
    spoken = ctc.prepared(experiment, "train")
    assert [len(one.x) for one in spoken] == list(SPLITS["train"][1:])
    monkeypatch.setattr(sys, "argv", ["ctc.py", "--experiment", str(experiment), "--epochs", "30"])
    ctc.main()
    said = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"epoch \d+: loss ([\d.]+)", said)]
    assert losses[-1] < 0.3 * losses[0]
    assert "lexicon: CER 0.0%, WER 0.0%" in said  # all say the same


def test_the_graph_of_a_lexicon_accepts_its_words_only(ctc: Any) -> None:
    pytest.importorskip("kaldi_decoder")
    words = ["too", "to"]
    units = ctc.Units([ctc.Spoken(torch.empty(0), tuple(words))])
    graph = ctc.lexicon_graph(words, units)

    def recognised(path: str) -> list[str]:
        """What is heard where the network is sure: a character a frame, `-` is the blank."""
        best = [0 if c == "-" else units.numbers[c] for c in path]
        scores = torch.full((len(best), len(units.names)), -20.0)
        scores[torch.arange(len(best)), best] = 0.0
        found: list[str] = ctc.with_lexicon(graph, scores, words)
        return found

    assert recognised("ttoo") == ["to"]  # repeated frames are one character
    assert recognised("-t-o-o-") == ["too"]
    assert recognised("to to-o") == ["to", "too"]
    assert recognised("-too  tt-oo-oo") == ["to", "too"]
