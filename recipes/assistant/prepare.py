"""The task of the final tables: `python recipes/assistant/prepare.py exp/assistant`."""

from __future__ import annotations

import sys
from pathlib import Path

from hocket.cli.recipe import Recipe, main
from hocket.speech.corpus.options import CorpusOptions
from hocket.speech.gmm.training import GMMOptions
from hocket.speech.prepare import PrepareOptions

RECIPE = Recipe(
    "assistant",
    CorpusOptions("assistant", hours=6.0, held_out_hours=0.5, snr_db=(5.0, 25.0)),
    PrepareOptions(gmm=GMMOptions(senones=800), score_steps=("tri",)),
    Path(__file__).with_name("train.toml"),
    lm_text=True,
)

if __name__ == "__main__":
    sys.exit(main(RECIPE))
