"""The recipe for the Iban corpus: a folder as people download it, with paths of another machine.

If the environment variable HOCKET_IBAN names the real folder, its splits and lexicon are looked at,
too; nothing of it is in the repository.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest
from helpers.audio import tone, write_wav

from hocket.speech.errors import SpeechError
from hocket.speech.graph.lexicon import UNKNOWN, lexicon_for
from hocket.speech.input.datadir import read_data_directory, read_table

RECIPE = Path(__file__).parents[2] / "recipes" / "iban" / "prepare.py"


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recipe_iban", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def downloaded(root: Path, *, own_test: bool) -> Path:
    """A folder like asr_iban: eight speakers to train, one more to test."""
    speakers = ["ibf_002", "ibf_004", "ibf_006", "ibf_008", "ibf_014", "ibm_003", "ibm_007"]
    parts = {"train": [*speakers, "ibm_010"]} | ({"test": ["ibm_005"]} if own_test else {})
    for part, people in parts.items():
        folder = root / "data" / part
        folder.mkdir(parents=True)
        names = [f"{who}_{n:03}" for who in people for n in range(2)]
        for name in names:
            write_wav(root / "data" / "wav" / name[:7] / f"{name}.wav", tone(0.1))
        (folder / "text").write_text("".join(f"{n} ke nya\n" for n in names))
        (folder / "utt2spk").write_text("".join(f"{n} {n[:7]}\n" for n in names))
        (folder / "wav.scp").write_text("".join(f"{n} /home/sarah/{n}.wav\n" for n in names))
    (root / "lang" / "dict").mkdir(parents=True)
    (root / "lang" / "dict" / "lexicon.txt").write_text("<sil>\tSIL\n<UNK>\tSIL\nke\tk @\n")
    return root


def speakers(folder: Path) -> set[str]:
    return {u.speaker for u in read_data_directory(folder).utterances}


@pytest.mark.parametrize("own_test", [True, False])
def test_splits_are_by_speakers(recipe: ModuleType, tmp_path: Path, own_test: bool) -> None:
    corpus, out = downloaded(tmp_path / "asr_iban", own_test=own_test), tmp_path / "out"
    counts = recipe.write_splits(corpus, out)
    held = set() if own_test else set(recipe.TEST_SPEAKERS)
    assert speakers(out / "dev") == set(recipe.DEV_SPEAKERS)
    assert speakers(out / "test") == ({"ibm_005"} if own_test else held)
    assert not speakers(out / "train") & (held | set(recipe.DEV_SPEAKERS) | {"ibm_005"})
    assert sum(counts.values()) == (18 if own_test else 16)  # nothing is lost
    before = (out / "train" / "wav.scp").stat().st_mtime_ns
    recipe.write_splits(corpus, out)
    assert (out / "train" / "wav.scp").stat().st_mtime_ns == before  # finished steps stay so


def test_the_largest_text_is_the_language_models(recipe: ModuleType, tmp_path: Path) -> None:
    assert recipe.language_text(tmp_path) == ""
    (tmp_path / "LM").mkdir()
    (tmp_path / "LM" / "readme.txt").write_text("a")
    (tmp_path / "LM" / "iban-bp-2012.txt").write_text("ke nya\n" * 9)
    assert recipe.language_text(tmp_path).endswith("iban-bp-2012.txt")


def test_another_folder_is_refused(recipe: ModuleType, tmp_path: Path) -> None:
    for look in (recipe.the_lexicon, lambda path: recipe.write_splits(path, tmp_path / "out")):
        with pytest.raises(SpeechError, match="is this the folder asr_iban"):
            look(tmp_path)


@pytest.mark.skipif("HOCKET_IBAN" not in os.environ, reason="HOCKET_IBAN names no folder")
def test_the_real_corpus_loses_nothing(recipe: ModuleType, tmp_path: Path) -> None:
    corpus = Path(os.environ["HOCKET_IBAN"])
    counts = recipe.write_splits(corpus, tmp_path)
    assert min(counts.values()) > 200
    for split in counts:
        assert not read_data_directory(tmp_path / split).left_out
    words = {w for line in read_table(tmp_path / "train" / "text").values() for w in line.split()}
    lexicon, missing = lexicon_for(words, str(recipe.the_lexicon(corpus)))
    assert 0 < len(missing) < 0.2 * len(words)
    assert UNKNOWN not in lexicon.entries  # its <UNK> is silence: no help
    assert "SIL" not in {p for said in lexicon.entries.values() for one in said for p in one}
