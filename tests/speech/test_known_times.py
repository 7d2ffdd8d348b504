"""What takes minutes: alignments against the synthesiser's own phoneme times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hocket.cli.main import main

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def test_clean_digits_are_aligned_as_they_were_spoken(tmp_path: Path) -> None:
    """At least 85 % of frames have the right phone, with espeak-ng's phonemes as the lexicon.

    LDA + MLLT sees nine frames at once: it recognises better, but its edges are less sharp.
    """
    data, exp = tmp_path / "data", tmp_path / "exp"
    size = ["--hours", "0.4", "--held-out-hours", "0.03"]
    assert main(["corpus", "digits", "--out", str(data), *size, "--clean", "--quiet"]) == 0
    lexicon = ["--lexicon", str(data / "lexicon.txt"), "--senones", "150", "--quiet"]
    for more, needed in ((["--no-lda"], 0.85), ([], 0.83)):
        assert main(["prepare", str(data), "--out", str(exp), *lexicon, *more]) == 0
        found = json.loads((exp / "alignment" / "step.json").read_text())["facts"]["agreement"]
        assert found["frames"] >= needed
        assert found["speech_frames"] >= 0.80
        assert abs(found["offset_s"]) <= 0.02
    errors = json.loads((exp / "gmm" / "result.json").read_text())["score"]["errors"]
    wrong = errors["substitutions"] + errors["deletions"] + errors["insertions"]
    assert wrong / errors["words"] < 0.12  # held-out voices
