"""Iban radio news: `python recipes/iban/prepare.py asr_iban exp/iban`.

ASR_IBAN is the folder that people download (https://github.com/sarahjuan/iban): `data/wav` with
recordings, `data/train` and `data/dev` or `data/test` with Kaldi's tables, `lang/dict/lexicon.txt`,
and `LM` with text for a language model. A folder with `train`, `wav` and `lexicon.txt` will do,
too. Paths in `wav.scp` are those of another machine, so recordings are found by their names.

Nobody's voice is in two splits. Dev is three speakers of the training part. The corpus's own held
out part is the test set; without it, four more speakers of the training part are.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from hocket.errors import HocketError
from hocket.speech.errors import SpeechError
from hocket.speech.gmm.training import GMMOptions
from hocket.speech.input.audio import ENDINGS
from hocket.speech.input.datadir import read_table
from hocket.speech.prepare import Preparation, PrepareOptions
from hocket.support.parallel import default_jobs

DEV_SPEAKERS: Final = ("ibf_006", "ibf_008", "ibm_003")
TEST_SPEAKERS: Final = ("ibf_004", "ibf_014", "ibm_007", "ibm_010")


def main() -> int:
    """Make the experiment's folder, or finish it."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("corpus", type=Path, metavar="ASR_IBAN")
    arguments.add_argument("out", type=Path, metavar="OUT")
    arguments.add_argument("--sat", action="store_true", help="adapt a GMM-HMM to speakers, too")
    arguments.add_argument("--jobs", type=int, default=default_jobs(), metavar="N")
    arguments.add_argument("--quiet", action="store_true", help="show no progress")
    given = arguments.parse_args()
    try:
        data = given.out / "corpus"
        write_splits(given.corpus, data)
        text = language_text(given.corpus)
        print(f"language model: {text or 'of the training transcripts alone'}")
        options = PrepareOptions(
            lexicon=str(the_lexicon(given.corpus)),
            lm_text=text,
            gmm=GMMOptions(sat=given.sat),
            score_steps=("tri",),
        )
        done = Preparation(data, given.out, options, given.jobs, show=not given.quiet).run()
    except HocketError as error:
        print(f"iban: {error}", file=sys.stderr)
        return 1
    print(f"{done.system}: {done.split} {done.score}")
    print(f"next: python recipes/iban/table.py {given.out} results/iban")
    return 0


def first_that_exists(corpus: Path, *places: str) -> Path | None:
    """Return the first of some places below a folder that is there."""
    return next((corpus / p for p in places if (corpus / p).exists()), None)


def the_lexicon(corpus: Path) -> Path:
    """Return the dictionary."""
    found = first_that_exists(corpus, "lang/dict/lexicon.txt", "lexicon.txt")
    if found is None:
        raise SpeechError(f"{corpus}: no lang/dict/lexicon.txt: is this the folder asr_iban?")
    return found


def language_text(corpus: Path) -> str:
    """Return the largest text of the folder LM; empty if there is none."""
    texts = sorted((corpus / "LM").glob("*.txt"), key=lambda path: path.stat().st_size)
    return str(texts[-1]) if texts else ""


def write_splits(corpus: Path, out: Path) -> dict[str, int]:
    """Write Kaldi data directories for train, dev and test; return how many utterances each has."""
    train = first_that_exists(corpus, "data/train", "train")
    if train is None:
        raise SpeechError(f"{corpus}: no data/train: is this the folder asr_iban?")
    own_test = first_that_exists(corpus, "data/test", "data/dev")
    audio = {p.stem: p for p in corpus.rglob("*") if p.suffix.lower() in ENDINGS}
    rows: dict[str, dict[str, tuple[str, str]]] = {"train": {}, "dev": {}, "test": {}}
    for folder, usual in ((train, "train"), (own_test, "test")):
        if folder is None:
            continue
        speakers = read_table(folder / "utt2spk")
        for name, words in read_table(folder / "text").items():
            split = usual
            if speakers[name] in DEV_SPEAKERS:
                split = "dev"
            elif own_test is None and speakers[name] in TEST_SPEAKERS:
                split = "test"
            rows[split][name] = (speakers[name], words)
    for split, utterances in rows.items():
        _write(out / split, utterances, audio)
    return {split: len(utterances) for split, utterances in rows.items()}


def _write(folder: Path, utterances: dict[str, tuple[str, str]], audio: dict[str, Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in utterances if name not in audio]
    if len(missing) == len(utterances):
        raise SpeechError(f"no recording of {folder.name} is there, for example {missing[:1]}")
    tables = {
        "text": {name: words for name, (_, words) in utterances.items()},
        "utt2spk": {name: speaker for name, (speaker, _) in utterances.items()},
        "wav.scp": {name: str(audio[name].resolve()) for name in utterances if name in audio},
    }
    for table, values in tables.items():
        text = "".join(f"{name} {value}\n" for name, value in sorted(values.items()))
        path = folder / table
        if not path.exists() or path.read_text() != text:  # a new date would repeat all steps
            path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
