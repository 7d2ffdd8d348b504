"""The speech task of all experiments: `python recipes/sweep/prepare.py exp/sweep`."""

from __future__ import annotations

import sys
from pathlib import Path

from hocket.cli.recipe import Recipe, main
from hocket.speech.corpus.options import CorpusOptions
from hocket.speech.gmm.training import GMMOptions
from hocket.speech.prepare import PrepareOptions

RECIPE = Recipe(
    "sweep",
    CorpusOptions("assistant", hours=0.9, held_out_hours=0.2, snr_db=(25.0, 45.0)),
    # About one senone per state of a phone, and a language model of the transcripts alone: on this
    # little speech a network then gets more than half of its frames right and still mishears
    # enough words to tell methods apart.
    PrepareOptions(gmm=GMMOptions(senones=135), score_steps=("tri",)),
    Path(__file__).with_name("train.toml"),
    frozen="7252f7a05e6b",
)

if __name__ == "__main__":
    sys.exit(main(RECIPE))
