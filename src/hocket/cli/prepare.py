"""`hocket prepare`: from audio to what a network is trained on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

from hocket.cli.parsing import add_jobs, needs, num_jobs
from hocket.errors import ConfigError

HELP = """\
Makes from audio what a network is trained on: features, a lexicon, a GMM-HMM
(flat start, monophones, tied triphones), an alignment and a decoding graph. It
also prints the word error rate of the GMM-HMM.

DATA holds the folders train, dev and test, or it is speech data itself: a Kaldi
data directory, lhotse cuts, or a plain folder of audio files with
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


def add(command: argparse.ArgumentParser) -> None:
    """Describe the command to the parser."""
    option = command.add_argument
    option("data", type=Path, metavar="DATA", help="a Kaldi, lhotse or plain folder (see above)")
    option("--out", type=Path, required=True, metavar="EXP", help="the experiment's folder")
    option(
        "--lexicon",
        default="cmudict",
        metavar="SOURCE",
        help="cmudict (espeak-ng for words it lacks), espeak, or a file (default: cmudict)",
    )
    option(
        "--oov",
        default="SPN",
        metavar="PHONE",
        help="the phone of <unk>, which stands for words without a pronunciation (default: SPN), "
        "or leave-out: leave out their utterances",
    )
    option(
        "--senones",
        type=int,
        default=0,
        metavar="N",
        help="outputs of the network (default: by the amount of speech, 400 for an hour, 1,400 "
        "for six)",
    )
    option(
        "--no-lda",
        action="store_true",
        help="no LDA + MLLT step: align with the triphones on deltas",
    )
    option(
        "--sat",
        action="store_true",
        help="one more step, on features adapted to each speaker (fMLLR); networks get its "
        "alignment",
    )
    option(
        "--score-steps",
        nargs="?",
        const="all",
        default="",
        metavar="STEPS",
        help="show the error rates of GMM-HMMs before the last, too: all, or mono, tri, lda with "
        "commas",
    )
    option(
        "--features",
        default="fbank",
        metavar="KINDS",
        help="input of the networks: fbank, mfcc, plp, pitch or plp_pitch (13 PLP and pitch with "
        "deltas, 42 in all); several with commas, the one to use by default first (default: fbank)",
    )
    option(
        "--resample",
        type=int,
        metavar="HZ",
        help="bring all audio to 8000 or 16000 Hz (default: the higher one that all files have)",
    )
    option(
        "--channel",
        default="mean",
        metavar="N",
        help="of files with several channels, take the N-th (from 1), or the mean (default)",
    )
    option("--num-bins", type=int, default=40, metavar="N", help="mel bins of fbank (default: 40)")
    option(
        "--normalisation",
        choices=["speaker", "utterance", "none"],
        default="speaker",
        help="mean and variance for the GMM-HMM, per speaker or utterance (default: speaker)",
    )
    option(
        "--units",
        choices=["word", "character"],
        default="word",
        help="character: for transcripts without spaces; errors are then counted in characters",
    )
    option(
        "--lm-order", type=int, metavar="N", help="order of the n-gram language model (default: 3)"
    )
    option(
        "--lm-text",
        default="",
        metavar="FILE",
        help="more sentences for it, besides the transcripts",
    )
    option("--arpa", default="", metavar="FILE", help="use this n-gram language model instead")
    option(
        "--held-out",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="share of train to hold out for a split that DATA lacks (default: 0.1)",
    )
    add_jobs(command)


def run(args: argparse.Namespace) -> int:
    """Prepare, and say how well the GMM-HMM recognises."""
    try:
        from hocket.speech.gmm.training import GMMOptions
        from hocket.speech.prepare import Preparation, PrepareOptions
    except ImportError as error:
        raise needs(error) from error
    if args.arpa and args.lm_order is not None:
        raise ConfigError(f"--lm-order has no effect: {args.arpa} has its own order; leave it out")
    gmm = GMMOptions(senones=args.senones, lda=not args.no_lda, sat=args.sat)
    options = PrepareOptions(
        lexicon=args.lexicon,
        oov=args.oov,
        channel=_channel(args.channel),
        score_steps=gmm.steps if args.score_steps == "all" else _names(args.score_steps),
        features=tuple(args.features.split(",")),
        num_bins=args.num_bins,
        resample=args.resample,
        normalisation=args.normalisation,
        lm_order=3 if args.lm_order is None else args.lm_order,
        lm_text=args.lm_text,
        arpa=args.arpa,
        units=args.units,
        held_out=args.held_out,
        gmm=gmm,
    )
    done = Preparation(args.data, args.out, options, num_jobs(args), show=not args.quiet).run()
    print(f"{done.system}: {done.split} {done.score}")
    print(f"next: hocket train {args.out} --out runs/{args.out.name}")
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _channel(text: str) -> int | Literal["mean"]:
    if text == "mean":
        return "mean"
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--channel takes a number from 1, or mean; not {text!r}") from None
