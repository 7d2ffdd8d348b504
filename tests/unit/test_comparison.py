"""Two systems compared, and the worst utterances shown."""

from __future__ import annotations

import json
from pathlib import Path

import kaldialign
import numpy as np
import pytest

from hocket.cli.main import main
from hocket.speech.decode.comparison import compare, worst
from hocket.speech.decode.scoring import score
from hocket.speech.errors import SpeechError

Texts = dict[str, list[str]]


def noisy(refs: Texts, share: float, seed: int) -> Texts:
    """Replace a share of the words."""
    rng = np.random.default_rng(seed)
    return {k: [w if rng.random() > share else "x" for w in v] for k, v in refs.items()}


REFS: Texts = {f"u{n:03d}": ["a", "b", "c", "d"][: 1 + n % 4] for n in range(200)}


def test_the_paired_bootstrap_agrees_with_kaldialign() -> None:
    for shares in ((0.3, 0.1), (0.2, 0.2), (0.1, 0.13)):
        first, second = noisy(REFS, shares[0], 1), noisy(REFS, shares[1], 2)
        found = compare(REFS, first, second)
        ids = sorted(REFS)
        texts = [[t[i] for i in ids] for t in (REFS, first, second)]
        theirs = kaldialign.bootstrap_wer_ci(*texts, replications=5000)
        assert found.better_share == pytest.approx(theirs["p_s2_improv_over_s1"], abs=0.03)
        assert found.low < found.difference < found.high


def test_pairing_sees_what_two_intervals_hide() -> None:
    """The second system repairs one error in ten, and makes none of its own."""
    first = noisy(REFS, 0.3, 1)
    rng = np.random.default_rng(3)
    second = {k: [r if rng.random() < 0.1 else h for r, h in zip(REFS[k], v, strict=True)]
              for k, v in first.items()}  # fmt: skip
    found = compare(REFS, first, second)
    assert found.significant
    assert found.difference < 0
    assert "the second is better" in str(found)
    assert score(REFS, second).high > score(REFS, first).low  # the intervals overlap
    same = compare(REFS, first, first)
    assert not same.significant
    assert "no significant difference" in str(same)


def test_characters_are_counted_where_asked() -> None:
    refs, hyps = {"u": ["三五", "二"]}, {"u": ["三", "二二"]}
    assert score(refs, hyps).errors.words == 2
    found = score(refs, hyps, unit="character")
    assert (found.errors.words, found.errors.total) == (3, 1)
    assert str(found).startswith("CER 33.33%")
    assert compare(refs, hyps, refs, "character").difference == pytest.approx(-1 / 3)


def test_the_worst_come_first_side_by_side() -> None:
    refs = {"a": ["one", "two"], "b": ["one", "two", "three"], "c": ["six"]}
    hyps = {"a": ["one", "too"], "b": ["two", "four", "five"], "c": ["six"]}
    found = worst(refs, hyps, 5)
    assert [m.name for m in found] == ["b", "a"]
    assert found[1].lines() == ["REF: one two", "HYP: one too", "         S"]
    assert found[0].errors == 3
    with pytest.raises(SpeechError, match="no hypothesis"):
        worst(refs, {"a": []}, 1)


def write(path: Path, texts: Texts) -> Path:
    path.write_text("".join(f"{k} {' '.join(v)}\n" for k, v in texts.items()))
    return path


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ref = write(tmp_path / "text", REFS)
    files = [str(write(tmp_path / f"{n}.hyp", noisy(REFS, 0.4 / n, n))) for n in (1, 2)]
    assert main(["score", *files, "--ref", str(ref)]) == 0
    said = capsys.readouterr().out
    assert "1.hyp" in said
    assert "the second is better" in said
    assert main(["score", *files, "--ref", str(ref), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["difference"] < 0
    assert main(["score", files[0], "--ref", str(ref), "--worst", "2", "--cer"]) == 0
    said = capsys.readouterr().out
    assert "CER" in said
    assert said.count("REF:") == 2
    (tmp_path / "c.ref").write_text("a 三四\n")
    (tmp_path / "c.hyp").write_text("a 三\n")
    given = ["score", str(tmp_path / "c.hyp"), "--ref", str(tmp_path / "c.ref")]
    assert main([*given, "--cer", "--worst", "1"]) == 0
    assert "1 errors in 2\nREF: 三 四\nHYP: 三 *\n" in capsys.readouterr().out
    for wrong, why in (
        ([*files, files[0]], "one or two systems"),
        ([*files, "--worst", "3"], "name only one"),
        ([files[0], "--html", "x.html"], "nothing about its audio"),
        ([files[0], "--worst", "0"], "at least 1"),
    ):
        assert main(["score", *wrong, "--ref", str(ref)]) == 2
        assert why in capsys.readouterr().err
