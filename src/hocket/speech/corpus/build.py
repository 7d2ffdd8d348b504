"""Build a corpus: plan speakers, synthesise speech, add rooms and noise, write data directories.

    DIR/{train,dev,test}/   Kaldi data directories, and phones.ctm (the synthesiser's own times)
    DIR/wav/SPEAKER/        the audio
    DIR/noise/SPLIT/        the noise recordings of a split
    DIR/lexicon.txt         how the synthesiser pronounced each word
    DIR/lm.txt              more sentences of the same grammar, for a language model
    DIR/corpus.json         options and versions it was made with, and its size

The three splits share no voices, rooms or noise; in each of them half of the speakers are women. A
group of speakers is one job in a fresh process, and a speaker is seeded by (seed, split, number):
the same seed gives the same audio on any number of cores. Finished groups are kept when the work is
interrupted.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.signal import firwin, resample_poly

from hocket.speech.corpus import acoustics, espeak
from hocket.speech.corpus.acoustics import Signal
from hocket.speech.corpus.options import KINDS, NUM_NOISES, SPLITS, CorpusOptions
from hocket.speech.corpus.recording import NOISE_LEVEL, Microphone
from hocket.speech.errors import SpeechError
from hocket.speech.input import audio
from hocket.support.files import atomically, folder_atomically, write_lines
from hocket.support.inputs import TABLE_LIMIT, read_json, read_table
from hocket.support.ownership import owned
from hocket.support.parallel import chunks, default_jobs, ordered_map
from hocket.support.progress import print_line, progress

SHARE: Final = {"train": 0.6, "dev": 0.2, "test": 0.2}  # of the voices
NOISE_S: Final = 12.0
BABBLE_EVERY: Final = 3  # every third noise recording is babble
SPEAKER_S: Final = 20.0  # of speech by one speaker; more if there are too few voices
GROUP: Final = 8  # speakers of one job: a fresh process takes as long as several seconds of speech
STOPS: Final = frozenset(["p", "t", "k", "b", "d", "g", "t[", "tS", "dZ"])


@dataclass(frozen=True)
class Speaker:
    """One speaker: the voice, and how many seconds of speech it gives."""

    id: str
    split: str
    number: int
    sex: str
    voice: str
    rate: int
    pitch: int
    seconds: float


def plan(options: CorpusOptions) -> list[Speaker]:
    """Choose voices, rates and amounts of speech for the speakers of all splits."""
    rng = np.random.default_rng([options.seed, 1])
    names = espeak.variants()
    for sex in names:
        names[sex] = [names[sex][i] for i in rng.permutation(len(names[sex]))]
    speakers, taken = [], {"f": 0, "m": 0}
    for split in SPLITS:
        pools = {}
        for sex, all_names in names.items():
            count = round(SHARE[split] * len(all_names))
            chosen = all_names[taken[sex] : taken[sex] + count]
            taken[sex] += count
            pairs = [
                f"{accent}+{name}" for name in chosen for accent in KINDS[options.kind].accents
            ]
            pools[sex] = [pairs[i] for i in rng.permutation(len(pairs))]
        speakers += _speakers(options, split, pools, rng)
    return speakers


def _speakers(
    options: CorpusOptions, split: str, pools: dict[str, list[str]], rng: np.random.Generator
) -> list[Speaker]:
    seconds = options.split_s(split)
    wanted = max(2, round(seconds / SPEAKER_S / 2))  # of each sex
    each = min(wanted, *(len(pool) for pool in pools.values()))
    return [
        Speaker(
            id=f"{split}-{sex}{number:03d}",
            split=split,
            number=number * 2 + "fm".index(sex),
            sex=sex,
            voice=pools[sex][number],
            rate=int(rng.integers(130, 210)),
            pitch=int(rng.integers(30, 70)),
            seconds=seconds / (2 * each),
        )
        for sex in "fm"
        for number in range(each)
    ]


# ---------------------------------------------------------------------------- noise


def make_noise(job: tuple[CorpusOptions, str, list[str], Path]) -> None:
    """Write the noise recordings of one split; babble uses voices of the same split."""
    options, split, voices, folder = job
    with folder_atomically(folder) as partial_folder:
        _record_noises(options, split, voices, partial_folder)


def _record_noises(options: CorpusOptions, split: str, voices: list[str], folder: Path) -> None:
    rng = np.random.default_rng([options.seed, 2, SPLITS.index(split)])
    synthesiser = espeak.Espeak()
    num_samples = int(NOISE_S * options.sample_rate)
    for number in range(NUM_NOISES[split]):
        if number % BABBLE_EVERY == BABBLE_EVERY - 1:
            crowd = [
                _speak(synthesiser, options, rng, voices[i], 170, 50)[0]
                for i in rng.integers(len(voices), size=rng.integers(3, 7))
            ]
            kind, noise = "babble", acoustics.babble(rng, crowd, num_samples)
        else:
            kind = "coloured"
            noise = acoustics.coloured_noise(rng, num_samples, options.sample_rate)
        samples = np.clip(np.rint(noise * NOISE_LEVEL), -32768, 32767).astype(np.int16)
        path = folder / f"{split}-{kind}-{number:02d}.wav"
        audio.write(path, samples, options.sample_rate)


# ---------------------------------------------------------------------------- speech


def _speak(
    synthesiser: espeak.Espeak,
    options: CorpusOptions,
    rng: np.random.Generator,
    voice: str,
    rate: int,
    pitch: int,
) -> tuple[Signal, list[str], list[tuple[str, float, int]]]:
    """Say one sentence; return it at the corpus's sample rate, its words, its phonemes with times.

    espeak-ng reports the release of a stop consonant as its beginning; the audio has 40 ms of
    silence before it. The closure is part of the stop, so here a stop begins where that silence
    begins.
    """
    kind = KINDS[options.kind]
    words = kind.sentence(rng)
    commas = rng.random(len(words)) < kind.comma_share
    text = " ".join(w + "," * int(comma) for w, comma in zip(words, commas, strict=True))
    spoken = synthesiser.say(
        text,
        voice,
        rate=int(rate * rng.uniform(0.9, 1.1)),
        pitch=int(np.clip(pitch + rng.integers(-8, 9), 0, 99)),
        pitch_range=int(rng.integers(30, 70)),
    )
    if len(spoken.samples) == 0:
        raise SpeechError(f"espeak-ng produced no audio for {text!r} with the voice {voice!r}")
    signal = _resample(
        spoken.samples.astype(np.float64), synthesiser.sample_rate, options.sample_rate
    )
    timed = []
    for previous, phone in pairwise([espeak.Phone(espeak.PAUSE, 0, -1), *spoken.phones]):
        at_s = phone.sample / synthesiser.sample_rate
        if phone.name in STOPS and previous.name != espeak.PAUSE:
            at_s = acoustics.silence_before(signal, int(at_s * options.sample_rate))
            at_s /= options.sample_rate
        timed.append((phone.name, at_s, phone.word))
    return signal, words, timed


def _resample(x: Signal, from_rate: int, to_rate: int) -> Signal:
    gcd = math.gcd(from_rate, to_rate)
    up, down = to_rate // gcd, from_rate // gcd
    resampled: Signal = resample_poly(x, up, down, window=_low_pass(max(up, down)))
    return resampled


@lru_cache
def _low_pass(factor: int) -> Signal:
    """Return the filter that `resample_poly` would otherwise design again for every utterance."""
    designed: Signal = firwin(20 * factor + 1, 1 / factor, window=("kaiser", 5.0))
    return designed


def speak(job: tuple[CorpusOptions, Sequence[Speaker], Path]) -> list[dict[str, Any]]:
    """Synthesise all speech of a group of speakers; return its records, and keep them in a file."""
    options, speakers, root = job
    kept = root / "parts" / f"{speakers[0].id}.json"
    if kept.exists():
        known: list[dict[str, Any]] = read_json(kept, TABLE_LIMIT)
        return known
    synthesiser = espeak.Espeak()
    records = [_speaker(options, speaker, root, synthesiser) for speaker in speakers]
    kept.parent.mkdir(exist_ok=True)
    with atomically(kept) as partial_file:
        partial_file.write_text(json.dumps(records))
    return records


def _speaker(
    options: CorpusOptions, speaker: Speaker, root: Path, synthesiser: espeak.Espeak
) -> dict[str, Any]:
    """Write the audio of one speaker; return the record of its utterances."""
    rng = np.random.default_rng([options.seed, 3, SPLITS.index(speaker.split), speaker.number])
    microphone = Microphone(options, speaker.split, root)
    folder = root / "wav" / speaker.id
    folder.mkdir(parents=True, exist_ok=True)
    utterances: list[dict[str, Any]] = []
    seconds = 0.0
    while seconds < speaker.seconds:
        name = f"{speaker.id}-{len(utterances):04d}"
        lead_s, trail_s = rng.uniform(0.1, 0.4), rng.uniform(0.05, 0.3)
        signal, words, timed = _speak(
            synthesiser, options, rng, speaker.voice, speaker.rate, speaker.pitch
        )
        pads = [np.zeros(int(s * options.sample_rate)) for s in (lead_s, trail_s)]
        samples, facts = microphone.record(rng, np.concatenate([pads[0], signal, pads[1]]))
        path = folder / f"{name}.wav"
        audio.write(path, samples, options.sample_rate)
        duration = len(samples) / options.sample_rate
        shift = len(pads[0]) / options.sample_rate
        timed = [(name, shift + at_s, word) for name, at_s, word in timed]
        utterances.append(
            {"id": name, "wav": path.relative_to(root).as_posix(), "words": words}
            | {"duration_s": duration, "phones": timed}
            | facts
        )
        seconds += duration
    return {"speaker": asdict(speaker), "utterances": utterances, "seconds": seconds}


# ---------------------------------------------------------------------------- the whole corpus


def build(
    options: CorpusOptions, root: Path, *, jobs: int | None = None, show: bool = True
) -> dict[str, Any]:
    """Make the corpus, or continue an interrupted one; return what corpus.json holds."""
    jobs = jobs or default_jobs()
    facts = asdict(options) | {
        "espeakng_loader": version("espeakng-loader"),
        "hocket": version("hocket"),
    }
    finished = _open(root, facts)
    if finished is not None:
        return finished
    with owned(root, "hocket corpus", print_line):
        return _build(options, root, facts, jobs, show)


def _build(
    options: CorpusOptions, root: Path, facts: dict[str, Any], jobs: int, show: bool
) -> dict[str, Any]:
    speakers = plan(options)
    if options.snr_db is not None:
        missing = [s for s in SPLITS if not (root / "noise" / s).exists()]
        noise_jobs = [
            (options, s, [p.voice for p in speakers if p.split == s], root / "noise" / s)
            for s in missing
        ]
        for _ in ordered_map(make_noise, noise_jobs, jobs=jobs, what="making noise", fresh=True):
            pass
    records = list(_spoken(options, speakers, root, jobs, show))
    for split in SPLITS:
        of_split = [r for r in records if r["speaker"]["split"] == split]
        _write_data_directory(root / split, of_split, KINDS[options.kind].space)
    _write_lexicon(root / "lexicon.txt", records)
    _write_lm_text(root / "lm.txt", options)
    facts |= {
        split: {
            "speakers": sum(r["speaker"]["split"] == split for r in records),
            "utterances": sum(
                len(r["utterances"]) for r in records if r["speaker"]["split"] == split
            ),
            "hours": sum(r["seconds"] for r in records if r["speaker"]["split"] == split) / 3600,
        }
        for split in SPLITS
    }
    _write_json(root / "corpus.json", facts)
    (root / "unfinished.json").unlink()
    shutil.rmtree(root / "parts")
    return facts


def _spoken(
    options: CorpusOptions, speakers: list[Speaker], root: Path, jobs: int, show: bool
) -> Iterator[dict[str, Any]]:
    total = sum(s.seconds for s in speakers)
    groups = [(options, group, root) for group in chunks(speakers, GROUP)]
    with progress("speaking", total, unit="s of speech", wanted=show) as advance:
        for records in ordered_map(speak, groups, jobs=jobs, what="speaking", fresh=True):
            advance(sum(record["seconds"] for record in records))
            yield from records


def _open(root: Path, facts: dict[str, Any]) -> dict[str, Any] | None:
    """Return the facts of a finished corpus, else None; refuse a folder with another corpus."""
    done, begun = root / "corpus.json", root / "unfinished.json"
    facts = json.loads(json.dumps(facts))
    for path in (done, begun):
        if not path.exists():
            continue
        there = read_table(path)
        other = [k for k in facts if there.get(k) != facts[k]]
        if other:
            key = other[0]
            raise SpeechError(
                f"{root} holds another corpus ({key} = {there.get(key)}, now {facts[key]}): "
                "choose another --out, or delete that folder"
            )
        if path == done:
            return there
    if not begun.exists():
        if root.exists() and any(root.iterdir()):
            raise SpeechError(f"{root} is not empty and holds no corpus: choose another --out")
        root.mkdir(parents=True, exist_ok=True)
        _write_json(begun, facts)
    return None


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def _write_data_directory(folder: Path, records: list[dict[str, Any]], space: str) -> None:
    folder.mkdir(exist_ok=True)
    records = sorted(records, key=lambda r: str(r["speaker"]["id"]))
    pairs = [(r["speaker"], u) for r in records for u in r["utterances"]]
    put = partial(_write_table, folder)
    put("wav.scp", ((u["id"], u["wav"]) for _, u in pairs))
    put("text", ((u["id"], space.join(u["words"])) for _, u in pairs))
    put("utt2spk", ((u["id"], s["id"]) for s, u in pairs))
    put("utt2dur", ((u["id"], f"{u['duration_s']:.4f}") for _, u in pairs))
    put(
        "spk2utt",
        ((r["speaker"]["id"], " ".join(u["id"] for u in r["utterances"])) for r in records),
    )
    put("spk2gender", ((r["speaker"]["id"], r["speaker"]["sex"]) for r in records))
    put("spk2voice", ((r["speaker"]["id"], r["speaker"]["voice"]) for r in records))
    put(
        "utt2acoustics",
        ((u["id"], f"{u['noise']} {u['snr_db']} {u['room']}") for _, u in pairs),
    )
    put("phones.ctm", (row for _, u in pairs for row in _ctm(u)))


def _ctm(utterance: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield `utt 1 start duration phone`, from the first sample to the last."""
    end_s = utterance["duration_s"]
    rows = [(espeak.PAUSE, 0.0)] + [(name, at) for name, at, _ in utterance["phones"] if at < end_s]
    for (name, start), (_, stop) in zip(rows, [*rows[1:], ("", end_s)], strict=True):
        if stop > start:
            yield utterance["id"], f"1 {start:.4f} {stop - start:.4f} {name}"


def _write_table(folder: Path, name: str, rows: Iterator[tuple[str, str]]) -> None:
    write_lines(folder / name, (f"{key} {value}\n" for key, value in rows))


def _write_lm_text(path: Path, options: CorpusOptions) -> None:
    kind = KINDS[options.kind]
    rng = np.random.default_rng([options.seed, 5])
    rows = [kind.space.join(kind.sentence(rng)) + "\n" for _ in range(kind.lm_sentences)]
    if rows:
        write_lines(path, rows)


def _write_lexicon(path: Path, records: list[dict[str, Any]]) -> None:
    """Write all pronunciations that each word had in training, the most frequent first.

    espeak-ng speaks some pairs of words as one ("of the"). Such a sentence has fewer spoken words
    than written ones, so nobody knows which phones belong to which word, and it is skipped.
    """
    seen: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for record in records:
        if record["speaker"]["split"] != "train":
            continue
        for utterance in record["utterances"]:
            if max((w for _, _, w in utterance["phones"]), default=0) + 1 != len(
                utterance["words"]
            ):
                continue
            for number, word in enumerate(utterance["words"]):
                phones = tuple(
                    n for n, _, w in utterance["phones"] if w == number and n != espeak.PAUSE
                )
                seen[word, phones] += 1
    rows = sorted(seen, key=lambda key: (key[0], -seen[key], key[1]))
    write_lines(path, (f"{word} {' '.join(phones)}\n" for word, phones in rows if phones))
