"""`prepare --sat`: speakers of every split are adapted, to what was said or was recognised."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.cli.main import main
from hocket.speech.corpus.build import build
from hocket.speech.corpus.options import CorpusOptions
from hocket.speech.decode import decoding
from hocket.speech.decode.evaluation import Evaluation
from hocket.speech.features import extraction
from hocket.speech.features.store import FeatureStore
from hocket.speech.gmm import alignment, fmllr
from hocket.speech.gmm.speakers import identity
from hocket.speech.gmm.training import SPEAKERS, GMMOptions
from hocket.speech.prepare import Preparation, PrepareOptions

pytestmark = pytest.mark.timeout(600)
FEW = GMMOptions(
    senones=60, mono_iterations=3, tri_iterations=3, lda_iterations=3, sat_iterations=3, sat=True
)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapted")
    options = CorpusOptions("digits", hours=0.05, held_out_hours=0.012, snr_db=None)
    build(options, root / "data", jobs=2, show=False)
    prepare = PrepareOptions(lm_order=2, gmm=FEW)
    with pytest.MonkeyPatch.context() as patch:
        for module in (extraction, alignment, fmllr, decoding):
            patch.setattr(module, "progress", shown)
        Preparation(root / "data", root / "exp", prepare, 2, show=False, say=lambda _: None).run()
    return root / "exp"


TITLES: list[str] = []


@contextmanager
def shown(title: str, total: float, **options: Any) -> Iterator[Callable[[float], None]]:
    """Note what a progress bar would be called."""
    TITLES.append(title)
    yield lambda amount: None


def test_progress_names_the_step_and_its_share(experiment: Path) -> None:
    found = {title.partition(" (step ")[0]: title for title in TITLES}
    assert list(found) == [
        "features", "mono", "tri", "lda", "sat", "gmm-lda", "alignment", "gmm",
    ]  # fmt: skip
    assert all(re.match(r"[a-z-]+ \(step \d+ of 11\)", title) for title in TITLES), TITLES
    assert "features (step 2 of 11): train" in TITLES
    assert "gmm-lda (step 8 of 11): tuning on dev" in TITLES
    assert "gmm (step 11 of 11): decoding test" in TITLES


def test_every_split_has_its_speakers_transforms(experiment: Path) -> None:
    for split, path in {
        "train": experiment / "sat" / SPEAKERS,
        "dev": experiment / "alignment" / "speakers" / "dev.npy",
        "test": experiment / "gmm" / "speakers" / "test.npy",
    }.items():
        speakers = set(FeatureStore(experiment / "features" / split, "mfcc").speakers)
        found = np.load(path)
        assert found.shape == (len(speakers), 40, 41)
        assert np.isfinite(found).all()
        assert (np.abs(found - identity(40)).max((1, 2)) > 0.01).any()


def test_both_systems_are_scored_and_the_adapted_one_is_last(experiment: Path) -> None:
    """Before speakers are adapted, what they say must have been recognised."""
    before, after = (Evaluation.read(experiment / name) for name in ("gmm-lda", "gmm"))
    assert before.system == "GMM-HMM (LDA + MLLT)"
    assert after.system == "GMM-HMM (LDA + MLLT, adapted to speakers)"
    assert after.dev.errors.rate < 0.5  # it still recognises
    said, heard = (
        np.load(experiment / place / "speakers" / "dev.npy") for place in ("alignment", "gmm")
    )
    assert said.shape == heard.shape
    if before.dev.errors.total:
        assert not np.array_equal(said, heard)  # the one from transcripts, the other not


def test_networks_get_the_adapted_alignment(experiment: Path) -> None:
    labels = {
        name: np.load(experiment / path)
        for name, path in (("lda", "lda/alignment.npy"), ("alignment", "alignment/train.npy"))
    }
    assert (labels["alignment"] >= 0).mean() > 0.9
    assert (labels["alignment"] != labels["lda"]).mean() > 0.01
    facts = json.loads((experiment / "alignment" / "step.json").read_text())["facts"]
    assert (
        facts["senones"]
        == json.loads((experiment / "sat" / "step.json").read_text())["facts"]["senones"]
    )


def test_without_lda_there_is_nothing_to_adapt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["prepare", str(tmp_path), "--out", str(tmp_path / "e"), "--sat", "--no-lda"]
    assert main(command) == 2
    assert "leave out --no-lda" in capsys.readouterr().err
