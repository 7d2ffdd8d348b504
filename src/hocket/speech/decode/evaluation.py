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
from typing import Any, get_args

from hocket.record.rundir import number, read_result, result_path, unreadable_result
from hocket.speech.decode.decoding import Decoder, Setting
from hocket.speech.decode.scoring import Errors, Score, score
from hocket.speech.decode.tuning import Tuning
from hocket.speech.input.datadir import read_table
from hocket.speech.units import Unit
from hocket.support.files import write_lines


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
        facts = read_result(folder)
        try:
            return cls(
                facts["system"],
                facts["split"],
                Setting(**{key: number(value) for key, value in facts["setting"].items()}),
                bool(facts["inside"]),
                _score(facts["dev"]),
                _score(facts["score"]),
                number(facts["real_time_factor"]),
                int(facts["jobs"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise unreadable_result(folder, repr(error)) from error


def _score(facts: dict[str, Any]) -> Score:
    unit = facts.get("unit", "word")
    if unit not in get_args(Unit):
        raise ValueError(f"errors are not counted in {str(unit)[:40]!r}")
    return Score(
        _errors(facts["errors"]),
        number(facts["low"]),
        number(facts["high"]),
        {who: _errors(errors) for who, errors in facts["speakers"].items()},
        int(facts["utterances"]),
        int(facts["wrong_utterances"]),
        unit,
    )


def _errors(facts: dict[str, Any]) -> Errors:
    return Errors(**{kind: int(number(count)) for kind, count in facts.items()})


def evaluate(decoder: Decoder, folder: Path, system: str, split: str | None) -> Evaluation:
    """Tune on dev and score `split`; without a split, score dev itself."""
    folder.mkdir(parents=True, exist_ok=True)
    tuning = Tuning(decoder).run()
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
    result_path(folder).write_text(
        json.dumps(asdict(found) | {"grid": _grid(tuning), "tuned_on": _tuned_on(tuning)}, indent=1)
        + "\n"
    )
    return found


def _grid(tuning: Tuning) -> list[dict[str, Any]]:
    return [asdict(s) | {"errors": n} for s, n in sorted(tuning.errors.items())]


def _tuned_on(tuning: Tuning) -> dict[str, Any]:
    """Say on how much of dev the setting was chosen, at what cost, and how uncertain that is."""
    tried = tuning.uncertainty
    return {
        "utterances": tried.utterances,
        "words": tried.errors.words,
        "decodings": round(tuning.decodings, 2),
        "low": tried.low,
        "high": tried.high,
    }


def write_text(path: Path, hyps: Mapping[str, Sequence[str]]) -> None:
    """Write Kaldi's `text` format."""
    rows = [f"{name} {' '.join(words)}".rstrip() + "\n" for name, words in sorted(hyps.items())]
    write_lines(path, rows)


def read_text(path: Path) -> dict[str, list[str]]:
    """Read Kaldi's `text` format."""
    return {name: words.split() for name, words in read_table(path).items()}
