"""The commands from audio to word error rate: corpus, prepare, import, export, decode, score."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hocket.cli import kaldi, prepare
from hocket.cli.parsing import Commands, add_command, add_jobs, needs, num_jobs
from hocket.errors import ConfigError

_CORPUS = """\
Synthesises speech with espeak-ng: many voices, accents, speaking rates and
pitches, in rooms and noise. Train, dev and test have different voices and
noise; half of the speakers are women. The same seed gives the same audio.
Needs an extra: pip install 'hocket[corpus]'.

examples:
  hocket corpus digits --out data/digits --hours 0.5 --snr 5:20
  hocket corpus assistant --out data/assistant --hours 1
  hocket corpus digits --out data/clean --hours 0.2 --clean

what comes out:
  DIR/train DIR/dev DIR/test   Kaldi data directories; phones.ctm in them holds
                               the times of the phonemes
  DIR/lexicon.txt              the synthesiser's own pronunciations
  DIR/lm.txt                   text for a language model (assistant only)
"""

_DECODE = """\
Recognises speech with the trained network of a run. First it tunes the acoustic
scale and the word penalty on dev (the grid grows until the best value lies
inside it), then it decodes and scores the test set.

examples:
  hocket decode runs/digits
  hocket decode runs/digits --split dev --beam 15
  hocket decode runs/digits --write-loglikes out.ark   # for Kaldi's decoder

Writes RUN/decode/test.hyp (in Kaldi's text format) and RUN/decode/result.json.
"""

_REALIGN = """\
Aligns the training data again, by the network of a run instead of the GMM-HMM:
it recognises better, so it also places the states better. The new experiment
shares everything else with the old one, by links; the old one must stay.

example:
  hocket realign runs/first --out exp/again
  hocket train exp/again --out runs/second
"""

_SCORE = """\
Prints the word error rate with a 95 % bootstrap interval, and the errors by
kind and by speaker. Given two systems, it tests whether one of them is better
(paired bootstrap over the utterances).

examples:
  hocket score runs/digits                    # a decoded run, or an experiment
  hocket score runs/digits --worst 10         # ... and its worst utterances
  hocket score runs/digits --html worst.html  # ... on a page, with audio
  hocket score runs/alone runs/four           # is the second one better?

any two files in Kaldi's text format:
  hocket score my.hyp --ref data/digits/test/text
  hocket score my.hyp --ref data/digits/test --cer   # characters; the speakers
                                                     # come from utt2spk
"""


def add_commands(commands: Commands) -> None:
    """Add the speech commands to the parser."""
    _add_corpus(add_command(commands, "corpus", "make a corpus of synthetic speech", _CORPUS))
    prepare.add(add_command(commands, "prepare", "make an experiment from a corpus", prepare.HELP))
    _add_decode(add_command(commands, "decode", "recognise speech with a trained network", _DECODE))
    _add_realign(add_command(commands, "realign", "align again, by a network", _REALIGN))
    kaldi.add_import(
        add_command(commands, "import", "make an experiment from Kaldi's files", kaldi.IMPORT)
    )
    kaldi.add_export(
        add_command(commands, "export", "write an experiment as Kaldi's files", kaldi.EXPORT)
    )
    _add_score(add_command(commands, "score", "count word errors, compare systems", _SCORE))


# ---------------------------------------------------------------------------- corpus


def _add_corpus(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "kind",
        metavar="KIND",
        help="digits (11 words), assistant (sentences from some 1,300 words), or mandarin (digits)",
    )
    add("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    add(
        "--hours", type=float, default=0.5, metavar="H", help="training speech (default: 0.5 hours)"
    )
    add(
        "--held-out-hours",
        type=float,
        metavar="H",
        help="dev speech, and as much for test (default: a tenth of --hours, at least 0.1)",
    )
    add("--snr", default=None, metavar="A:B", help="noise, in dB below the speech (default: 5:20)")
    add("--clean", action="store_true", help="no noise and no rooms")
    add(
        "--sample-rate",
        type=int,
        default=16000,
        metavar="HZ",
        help="8000 or 16000 (default: 16000)",
    )
    add(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="another seed gives another corpus (default: 0)",
    )
    add_jobs(command)


def _corpus(args: argparse.Namespace) -> int:
    try:
        from hocket.speech.corpus.build import build
        from hocket.speech.corpus.options import KINDS, CorpusOptions
    except ImportError as error:
        raise needs(error) from error
    if args.clean and args.snr:
        raise ConfigError(f"--snr {args.snr} has no effect together with --clean: leave one out")
    options = CorpusOptions(
        kind=args.kind,
        hours=args.hours,
        held_out_hours=args.held_out_hours,
        snr_db=None if args.clean else _snr(args.snr or "5:20"),
        sample_rate=args.sample_rate,
        seed=args.seed,
    )
    facts = build(options, args.out, jobs=num_jobs(args), show=not args.quiet)
    for split in ("train", "dev", "test"):
        one = facts[split]
        print(
            f"{split}: {one['hours']:.2f} h, {one['utterances']:,} utterances by "
            f"{one['speakers']} speakers"
        )
    more = "" if KINDS[args.kind].space else f" --units character --lexicon {args.out}/lexicon.txt"
    print(f"next: hocket prepare {args.out} --out exp/{args.out.name}{more}")
    return 0


def _snr(text: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    try:
        return float(low), float(high if colon else low)
    except ValueError:
        raise ConfigError(f"--snr takes A:B in dB, for example 5:20, not {text!r}") from None


# ---------------------------------------------------------------------------- decode and score


def _add_decode(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("run", type=Path, metavar="RUN", help="a run directory of `hocket train EXP`")
    add("--split", choices=["dev", "test"], help="what to decode (default: test, if there is one)")
    add(
        "--beam",
        type=float,
        metavar="X",
        help="a wider beam is slower and misses less (default: 10)",
    )
    add(
        "--write-loglikes",
        type=Path,
        metavar="ARK",
        help="do not decode; write log-likelihoods for Kaldi's latgen-faster-mapped",
    )
    add("--max-active", type=int, metavar="N", help="paths kept per frame (default: 2000)")
    add(
        "--priors",
        choices=["alignment", "posterior"],
        default="alignment",
        help="priors of the senones: their shares of the training frames (default), or the "
        "network's mean posterior on 20,000 of these frames, as in Kaldi",
    )
    add_jobs(command)


def _decode(args: argparse.Namespace) -> int:
    try:
        from hocket.speech.decode.decoding import Search
        from hocket.speech.decode.recognition import decode_run
    except ImportError as error:
        raise needs(error) from error
    if args.write_loglikes is not None:
        for option in ("beam", "max_active", "jobs"):
            if getattr(args, option) is not None:
                raise ConfigError(
                    f"--{option.replace('_', '-')} has no effect together with --write-loglikes: "
                    "nothing is decoded"
                )
        return _write_loglikes(args)
    given = {k: v for k in ("beam", "max_active") if (v := getattr(args, k)) is not None}
    found = decode_run(
        args.run,
        split=args.split,
        jobs=num_jobs(args),
        search=Search(**given),
        show=not args.quiet,
        priors=args.priors,
    )
    print(
        f"tuned on dev: acoustic scale {found.setting.scale:.3g}, word penalty "
        f"{found.setting.penalty:g}"
        + ("" if found.inside else " (at the edge of the grid: something is wrong with this model)")
    )
    print(f"dev {found.dev}")
    if found.split != "dev":
        print(f"{found.split} {found.score}")
    print(f"{found.real_time_factor:.0f} x real time with {found.jobs} processes")
    return 0


def _add_realign(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("run", type=Path, metavar="RUN", help="a finished run directory of `hocket train EXP`")
    add("--out", type=Path, required=True, metavar="EXP", help="the new experiment's folder")
    add_jobs(command)


def _realign(args: argparse.Namespace) -> int:
    try:
        from hocket.speech.realign import realign
    except ImportError as error:
        raise needs(error) from error
    print(realign(args.run, args.out, jobs=num_jobs(args), show=not args.quiet))
    print(f"next: hocket train {args.out} --out runs/{args.out.name}")
    return 0


def _write_loglikes(args: argparse.Namespace) -> int:
    from hocket.speech.decode.recognition import loglikes
    from hocket.speech.kaldi_files import write_matrices

    split, matrices = loglikes(args.run, args.split, priors=args.priors, show=not args.quiet)
    count = write_matrices(args.write_loglikes, matrices)
    print(f"{count:,} utterances of {split} in {args.write_loglikes} (and .scp beside it)")
    return 0


def _add_score(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "what",
        type=Path,
        nargs="+",
        metavar="WHAT",
        help="one or two decoded runs, experiments or .hyp files",
    )
    add("--ref", type=Path, metavar="TEXT", help="the reference (needed if WHAT is a file)")
    add("--cer", action="store_true", help="count characters instead of words (files only)")
    add("--worst", type=int, metavar="N", help="show the N utterances with the most errors")
    add(
        "--html",
        type=Path,
        metavar="PAGE",
        help="write a page of the worst utterances, with audio players",
    )
    add("--json", action="store_true", help="print JSON, for programs")


def _score(args: argparse.Namespace) -> int:
    try:
        from hocket.cli import score
    except ImportError as error:
        raise needs(error) from error
    return score.run(args)


COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "corpus": _corpus,
    "prepare": prepare.run,
    "decode": _decode,
    "realign": _realign,
    "score": _score,
    "import": kaldi.run_import,
    "export": kaldi.run_export,
}
