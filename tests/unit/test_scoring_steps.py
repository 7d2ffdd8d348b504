"""Scoring against a plain dynamic programme; steps that are kept or done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.speech.decode.scoring import count, score
from hocket.speech.errors import SpeechError
from hocket.speech.gmm.reference import agreement, read_ctm
from hocket.speech.graph.senones import Senones
from hocket.speech.steps import Steps, digest, file_state


def distance(ref: list[str], hyp: list[str]) -> int:
    row = list(range(len(hyp) + 1))
    for i, r in enumerate(ref, 1):
        previous, row = row, [i]
        for j, h in enumerate(hyp, 1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (r != h)))
    return row[-1]


def test_totals_equal_a_plain_dynamic_programme() -> None:
    rng = np.random.default_rng(0)
    refs = [[str(w) for w in rng.integers(0, 4, rng.integers(0, 8))] for _ in range(200)]
    hyps = [[str(w) for w in rng.integers(0, 4, rng.integers(0, 8))] for _ in range(200)]
    found = count(refs, hyps)
    assert found.total == sum(distance(r, h) for r, h in zip(refs, hyps, strict=True))
    assert found.words == sum(map(len, refs))
    assert found.insertions - found.deletions == sum(map(len, hyps)) - sum(map(len, refs))


def test_kinds_speakers_and_interval() -> None:
    refs = {f"{s}{n}": ["one", "two", "three"] for s in "ab" for n in range(30)}
    hyps = {k: ["one", "two", "three"] for k in refs}
    hyps["a0"], hyps["a1"], hyps["a2"] = ["one", "x", "three"], ["one", "two"], ["one"] * 4
    found = score(refs, hyps, {k: k[0] for k in refs})
    assert (found.errors.substitutions, found.errors.deletions, found.errors.insertions) == (
        3,
        1,
        1,
    )
    assert found.speakers["b"].total == 0
    assert found.speakers["a"].rate == pytest.approx(5 / 90)
    assert found.low <= found.errors.rate <= found.high
    assert found.wrong_utterances == 3
    assert "5 errors in 180 words (3 sub, 1 del, 1 ins)" in str(found)


@pytest.mark.parametrize(
    ("refs", "hyps", "message"),
    [
        ({}, {}, "reference is empty"),
        ({"a": ["x"], "b": ["y"]}, {"a": ["x"]}, "1 utterances of the reference.*'b'"),
        ({"a": ["x"]}, {"a": ["x"], "c": []}, "1 hypotheses.*'c'"),
    ],
)
def test_sets_that_do_not_match_are_refused(refs: Any, hyps: Any, message: str) -> None:
    with pytest.raises(SpeechError, match=message):
        score(refs, hyps)


# ---------------------------------------------------------------------------- steps


def test_a_step_is_done_once_and_again_when_something_changes(tmp_path: Path) -> None:
    done: list[str] = []

    def make(name: str) -> Any:
        def step(folder: Path) -> dict[str, Any]:
            done.append(name)
            (folder / "out.txt").write_text(name)
            return {"said": name}

        return step

    def run(option: int, other: int = 0) -> None:
        steps = Steps(tmp_path, lambda text: None)
        steps.run("a", {"option": option}, (), make("a"))
        steps.run("b", {}, ("a",), make("b"))
        steps.run("c", {"other": other}, (), make("c"))

    run(1)
    run(1)
    assert done == ["a", "b", "c"]
    run(1, other=5)
    assert done == ["a", "b", "c", "c"]  # only what depends on it
    run(2)
    assert done[4:] == ["a", "b", "c"]  # c again: its option is back
    assert (tmp_path / "b" / "out.txt").read_text() == "b"
    assert not list(tmp_path.glob("*.partial"))


def test_an_interrupted_step_finds_its_folder_again(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> dict[str, Any]:
        (folder / "half").write_text("done")
        raise KeyboardInterrupt

    def resumed(folder: Path) -> dict[str, Any]:
        assert (folder / "half").read_text() == "done"
        return {}

    def fresh(folder: Path) -> dict[str, Any]:
        assert not (folder / "half").exists()
        return {}

    steps = Steps(tmp_path, lambda text: None)
    with pytest.raises(KeyboardInterrupt):
        steps.run("a", {"x": 1}, (), interrupted)
    steps.run("a", {"x": 1}, (), resumed)
    with pytest.raises(KeyboardInterrupt):
        steps.run("a", {"x": 2}, (), interrupted)
    assert (tmp_path / "a" / "step.json").exists()  # the finished one is kept until it is replaced
    steps.run("a", {"x": 3}, (), fresh)


def test_digests_and_file_states(tmp_path: Path) -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    path = tmp_path / "f"
    assert file_state(path)[1] is None
    path.write_text("one")
    first = file_state(path)
    path.write_text("three")
    assert file_state(path) != first


# ---------------------------------------------------------------------------- reference times


class FakeStore:
    ids = ("u0", "u1", "u2", "u3")
    first = np.array([0, 100, 200, 300])
    frames = np.array([100] * 4)


def test_agreement_measures_the_offset_first(tmp_path: Path) -> None:
    senones = Senones.monophone(["SIL", "a", "b"])
    rows, labels = [], []
    for name in FakeStore.ids:
        for start, phone in ((0.0, "SIL"), (0.30, "a"), (0.60, "b"), (0.80, "SIL")):
            rows.append(f"{name} 1 {start + 0.02:.3f} 0.1 {phone}\n")  # a clock that is 20 ms late
        centre = np.arange(100) * 0.01 + 0.0125
        phone_of = np.select([centre < 0.30, centre < 0.60, centre < 0.80], [0, 1, 2], 0)
        labels.append(phone_of * 3)
    (tmp_path / "phones.ctm").write_text("".join(rows))
    np.save(tmp_path / "ali.npy", np.concatenate(labels).astype(np.int32))
    store: Any = FakeStore()
    found = agreement(tmp_path / "phones.ctm", tmp_path / "ali.npy", store, senones)
    assert found is not None
    assert found.frames == 1.0
    assert found.offset_s == pytest.approx(-0.02, abs=0.006)
    assert agreement(tmp_path / "none.ctm", tmp_path / "ali.npy", store, senones) is None
    others = Senones.monophone(["SIL", "AA", "B"])  # another lexicon's phones cannot be compared
    assert agreement(tmp_path / "phones.ctm", tmp_path / "ali.npy", store, others) is None


def test_a_bad_ctm_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.ctm").write_text("u 1 zero 0.1 a\n")
    with pytest.raises(SpeechError, match=r"x.ctm:1: should read"):
        read_ctm(tmp_path / "x.ctm")
