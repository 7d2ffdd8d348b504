"""Tune on dev, decode the test set, and write down everything that a table needs.

FOLDER/dev.hyp, test.hyp   what was recognised, in Kaldi's `text` format
FOLDER/dev.ref, test.ref   what was said
FOLDER/result.json         scale and penalty, the grid, errors by kind and speaker
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hocket.speech.decode.decoding import Decoder, Setting, Tuning
from hocket.speech.decode.scoring import Errors, Score, score
from hocket.speech.errors import SpeechError


@dataclass(frozen=True)
class Evaluation:
    """How well one system recognises speech: setting, scores and speed."""

    system: str
    split: str  # that `score` was measured on
    setting: Setting
    inside: bool  # the best setting lies inside the grid
    dev: Score
    score: Score
    real_time_factor: float  # seconds of speech decoded per second, all processes together
    jobs: int

    @classmethod
    def read(cls, folder: Path) -> Evaluation:
        """Read the result that `evaluate` wrote."""
        path = folder / "result.json"
        try:
            facts = json.loads(path.read_text())
            return cls(
                facts["system"],
                facts["split"],
                Setting(**facts["setting"]),
                facts["inside"],
                _score(facts["dev"]),
                _score(facts["score"]),
                facts["real_time_factor"],
                facts["jobs"],
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SpeechError(f"{path}: no result can be read ({error}): decode again") from error


def _score(facts: dict[str, Any]) -> Score:
    return Score(
        Errors(**facts["errors"]),
        facts["low"],
        facts["high"],
        {who: Errors(**errors) for who, errors in facts["speakers"].items()},
        facts["utterances"],
        facts["wrong_utterances"],
        facts.get("unit", "word"),
    )


def evaluate(decoder: Decoder, folder: Path, system: str, split: str | None) -> Evaluation:
    """Tune on dev and score `split`; without a split, score dev itself."""
    folder.mkdir(parents=True, exist_ok=True)
    tuning = decoder.tune("dev")
    best = tuning.best
    scores, factor = {}, 0.0
    for name in dict.fromkeys(["dev", split or "dev"]):
        started = time.monotonic()
        hyps = decoder.decode(name, [best])[0]
        factor = decoder.seconds(name) / (time.monotonic() - started)
        write_text(folder / f"{name}.hyp", hyps)
        write_text(folder / f"{name}.ref", decoder.references(name))
        scores[name] = score(decoder.references(name), hyps, decoder.speakers(name), decoder.unit)
    found = Evaluation(
        system,
        split or "dev",
        best,
        tuning.inside,
        scores["dev"],
        scores[split or "dev"],
        factor,
        decoder.jobs,
    )
    (folder / "result.json").write_text(
        json.dumps(asdict(found) | {"grid": _grid(tuning)}, indent=1) + "\n"
    )
    return found


def _grid(tuning: Tuning) -> list[dict[str, Any]]:
    return [asdict(s) | {"errors": n} for s, n in sorted(tuning.errors.items())]


def write_text(path: Path, hyps: Mapping[str, Sequence[str]]) -> None:
    """Write Kaldi's `text` format."""
    rows = [f"{name} {' '.join(words)}".rstrip() + "\n" for name, words in sorted(hyps.items())]
    path.write_text("".join(rows))
