"""`hocket score`: the errors of one system, or two systems compared."""

from __future__ import annotations

import argparse
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from hocket.errors import ConfigError
from hocket.record.rundir import RunDirectory
from hocket.speech.decode.comparison import Mistake, compare, kind_of, worst
from hocket.speech.decode.evaluation import Evaluation, read_text
from hocket.speech.decode.scoring import RATES, Score, score
from hocket.speech.errors import SpeechError
from hocket.speech.input.datadir import Utterance, read_table, read_utterances
from hocket.speech.units import Unit
from hocket.support.progress import printer

Texts = dict[str, list[str]]
PAGE_WORST = 20


@dataclass(frozen=True)
class System:
    """One system to score: what was said, what it recognised, and who spoke."""

    name: str
    refs: Texts
    hyps: Texts
    speakers: dict[str, str]
    unit: Unit
    split: str = ""
    data: Path | None = None  # the utterances' audio, a file of `prepare`
    notes: tuple[str, ...] = ()

    def score(self) -> Score:
        """Count the errors."""
        return score(self.refs, self.hyps, self.speakers or None, self.unit)


def run(args: argparse.Namespace) -> int:
    """Score one system, or compare two."""
    if len(args.what) > 2:
        raise ConfigError(f"one or two systems can be scored, not {len(args.what)}")
    _how_many(args.worst, 0)
    systems = [_open(what, args) for what in args.what]
    if len(systems) == 2:
        return _compare(systems[0], systems[1], args)
    (system,) = systems
    found = system.score()
    if args.json:
        _refuse(args, "worst", "html", why=" together with --json")
        print(json.dumps(_as_json(found), indent=1))
        return 0
    print(f"{system.name}: {found}")
    print(f"{found.wrong_utterances:,} of {found.utterances:,} utterances have an error")
    if len(found.speakers) > 1 and not args.worst:
        printer().print(_speaker_table(found))
    for mistake in worst(system.refs, system.hyps, _how_many(args.worst, 0), system.unit):
        print(f"\n{mistake.name}: {mistake.errors} errors in {mistake.words}")
        print("\n".join(mistake.lines()))
    if args.html:
        _write_page(args.html, system, found, _how_many(args.worst, PAGE_WORST))
        print(f"the worst utterances, to listen to: {args.html}")
    return 0


def _refuse(args: argparse.Namespace, *options: str, why: str) -> None:
    for option in options:
        if getattr(args, option):
            raise ConfigError(f"--{option} has no effect{why}")


def _how_many(asked: int | None, default: int) -> int:
    if asked is not None and asked < 1:
        raise ConfigError(f"--worst must be at least 1, not {asked}")
    return asked or default


# ---------------------------------------------------------------------------- opening


def _open(what: Path, args: argparse.Namespace) -> System:
    return _open_folder(what, args) if what.is_dir() else _open_file(what, args)


def _open_folder(folder: Path, args: argparse.Namespace) -> System:
    _refuse(args, "ref", "cer", why=": a run has its own reference and units")
    inner = next((folder / d for d in ("decode", "gmm") if (folder / d).is_dir()), None)
    if inner is None:
        raise ConfigError(
            f"{folder} holds no decoded words: first run `hocket decode {folder}` (an experiment "
            "imported from Kaldi is decoded by Kaldi; score its words with --ref)"
        )
    found = Evaluation.read(inner)
    refs = inner / f"{found.split}.ref"
    if not refs.exists():
        raise SpeechError(f"{refs} is missing: decode again with `hocket decode {folder}`")
    experiment = folder
    if inner.name == "decode":
        experiment = Path(str(RunDirectory(folder).table("task").get("experiment", "")))
    data = experiment / "data" / f"{found.split}.json"
    spoken = read_utterances(data) if data.exists() else []
    notes = (
        f"acoustic scale {found.setting.scale:.3g}, word penalty {found.setting.penalty:g}, tuned "
        f"on dev ({RATES[found.dev.unit]} {found.dev.errors.rate:.2%} there)",
    )
    return System(
        f"{found.system}, {found.split}",
        read_text(refs),
        read_text(inner / f"{found.split}.hyp"),
        {one.id: one.speaker for one in spoken},
        found.score.unit,
        found.split,
        data,
        notes,
    )


def _open_file(path: Path, args: argparse.Namespace) -> System:
    if args.ref is None:
        raise ConfigError(f"give the reference of {path}: --ref data/test/text")
    text, speakers = args.ref, {}
    if args.ref.is_dir():
        text = args.ref / "text"
        if (args.ref / "utt2spk").exists():
            speakers = read_table(args.ref / "utt2spk")
    unit: Unit = "character" if args.cer else "word"
    return System(path.name, read_text(text), read_text(path), speakers, unit)


# ---------------------------------------------------------------------------- answers


def _compare(first: System, second: System, args: argparse.Namespace) -> int:
    _refuse(args, "worst", "html", why=" with two systems: name only one")
    if first.refs != second.refs:
        raise SpeechError(
            f"{args.what[0]} and {args.what[1]} were scored against different references "
            f"({len(first.refs):,} and {len(second.refs):,} utterances): decode the same split of "
            "the same experiment with both"
        )
    found = compare(first.refs, first.hyps, second.hyps, first.unit)
    if args.json:
        facts = {k: getattr(found, k) for k in ("first", "second", "difference", "low", "high")}
        print(json.dumps(facts | {"second_better_share": found.better_share}, indent=1))
        return 0
    for what, system in zip(args.what, (first, second), strict=True):
        print(f"{what} ({system.name}): {system.score()}")
    print(found)
    return 0


def _as_json(found: Score) -> dict[str, Any]:
    def errors(e: Any) -> dict[str, Any]:
        kinds = ("words", "substitutions", "deletions", "insertions")
        return {RATES[found.unit].lower(): e.rate} | {k: getattr(e, k) for k in kinds}

    return errors(found.errors) | {
        "low": found.low,
        "high": found.high,
        "speakers": {who: errors(e) for who, e in found.speakers.items()},
    }


def _speaker_table(found: Score) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column("speaker")
    for heading in (f"{found.unit}s", "sub", "del", "ins", RATES[found.unit]):
        table.add_column(heading, justify="right")
    for who, e in sorted(found.speakers.items(), key=lambda kv: -kv[1].rate):
        counts = (e.substitutions, e.deletions, e.insertions)
        table.add_row(who, f"{e.words:,}", *map(str, counts), f"{e.rate:.1%}")
    return table


# ---------------------------------------------------------------------------- the page


def _write_page(path: Path, system: System, found: Score, how_many: int) -> None:
    from hocket.report import mistakes

    if system.data is None:
        raise ConfigError("--html has no effect here: a file of words says nothing about its audio")
    if not system.data.exists():
        raise SpeechError(
            f"{system.data} is missing; it says where the audio is. Was the experiment moved? Put "
            "it back, or leave --html out"
        )
    spoken = {one.id: one for one in read_utterances(system.data)}
    shown = [
        _shown(mistake, spoken.get(mistake.name))
        for mistake in worst(system.refs, system.hyps, how_many, system.unit)
    ]
    shares = [mistakes.Share(who, e.words, e.total) for who, e in found.speakers.items()]
    summary = [str(found), *system.notes]
    mistakes.write_page(path, f"Hocket: {system.name}", summary, shares, shown)


def _shown(mistake: Mistake, spoken: Utterance | None) -> Any:
    from hocket.report import mistakes

    facts = f"{mistake.errors} errors in {mistake.words}"
    columns = [(ref, hyp, kind_of(ref, hyp)) for ref, hyp in mistake.pairs]
    try:
        if spoken is None:
            raise SpeechError("the experiment does not know this utterance (any more)")
        facts += f", speaker {spoken.speaker}"
        return mistakes.Shown(mistake.name, facts, columns, _wav(spoken))
    except SpeechError as error:
        return mistakes.Shown(mistake.name, facts, columns, None, f"no audio: {error}")


def _wav(spoken: Utterance) -> bytes:
    """Return the audio of one utterance as a wav file."""
    import soundfile

    from hocket.speech.input import audio

    samples = audio.read(spoken.path, spoken.start_s, spoken.end_s) / 32768.0
    rate = audio.probe(spoken.path).sample_rate
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="WAV", subtype="PCM_16")
    return buffer.getvalue()
