"""`hocket import` and `hocket export`: experiments from and to Kaldi's files."""

from __future__ import annotations

import argparse
import glob
from pathlib import Path
from typing import Any, Final

from hocket.errors import ConfigError

IMPORT: Final = """\
Makes an experiment from what a Kaldi GMM system has written: features, and the
pdf of every frame.

example, after steps/align_fmllr.sh (or another script of Kaldi) has written
exp/ali and exp/ali_dev:
  for d in ali ali_dev; do for f in exp/$d/ali.*.gz; do
    ali-to-pdf exp/$d/final.mdl "ark:gunzip -c $f|" \\
        "ark:|gzip -c > ${f%/*}/pdf.${f##*/ali.}"
  done; done
  hocket import --train data/train --train-ali 'exp/ali/pdf.*.gz' \\
      --dev data/dev --dev-ali 'exp/ali_dev/pdf.*.gz' --test data/test \\
      --num-pdfs $(tree-info exp/tri/tree | awk '/num-pdfs/ {print $2}') \\
      --out exp/hocket
  hocket train exp/hocket --strategy kstep --learners 4 --out runs/k4
  hocket decode runs/k4 --write-loglikes loglikes.ark --split test
  latgen-faster-mapped --acoustic-scale=0.1 \\
      --word-symbol-table=exp/tri/graph/words.txt \\
      exp/tri/final.mdl exp/tri/graph/HCLG.fst \\
      ark:loglikes.ark 'ark:|gzip -c > lat.1.gz'
"""

EXPORT: Final = """\
Writes the features and alignments of an experiment as Kaldi's archives:
feats.ark, feats.scp, pdf.ark.gz, utt2spk and text in DIR/SPLIT. `hocket import`
reads them back. With --onnx: writes the network of a run for onnxruntime
(needs an extra: pip install 'hocket[onnx]'). It takes normalised features
(utterances, frames, values) and gives a score for every frame and senone.

examples:
  hocket export exp/digits --out kaldi/digits --features mfcc
  hocket export runs/digits --onnx digits.onnx --scores likelihoods
"""


def add_import(command: argparse.ArgumentParser) -> None:
    """Declare the options of `hocket import`."""
    add = command.add_argument
    for split in ("train", "dev", "test"):
        needed = split != "test"
        add(
            f"--{split}",
            type=Path,
            metavar="DIR",
            required=needed,
            help="a Kaldi data directory with feats.scp",
        )
        if needed:
            ali = f"--{split}-ali"
            add(
                ali, metavar="FILES", required=True, help="its pdf alignments: a pattern, in quotes"
            )
    add("--num-pdfs", type=int, required=True, metavar="N", help="outputs of the network")
    add("--out", type=Path, required=True, metavar="EXP", help="the experiment's folder")
    add("--quiet", action="store_true", help="show no progress")


def add_export(command: argparse.ArgumentParser) -> None:
    """Declare the options of `hocket export`."""
    command.add_argument(
        "experiment",
        type=Path,
        metavar="EXP",
        help="made by `hocket prepare`; with --onnx: a run of `hocket train EXP`",
    )
    command.add_argument("--out", type=Path, metavar="DIR", help="folder to write")
    command.add_argument("--onnx", type=Path, metavar="FILE", help="write a run's network instead")
    command.add_argument(
        "--scores",
        choices=["posteriors", "likelihoods"],
        help="what the ONNX network gives, as logarithms (default: posteriors)",
    )
    command.add_argument(
        "--priors",
        choices=["alignment", "posterior"],
        help="priors behind likelihoods, as in `hocket decode` (default: alignment)",
    )
    command.add_argument(
        "--features",
        default=None,
        metavar="KIND",
        help="which features (default: the first kind in EXP)",
    )


def run_import(args: argparse.Namespace) -> int:
    """Make an experiment from Kaldi's features and alignments."""
    from hocket.speech.kaldi_files import Import, KaldiSplit, check_num_pdfs

    check_num_pdfs(args.num_pdfs)
    splits = {
        "train": KaldiSplit(args.train, _files(args.train_ali)),
        "dev": KaldiSplit(args.dev, _files(args.dev_ali)),
    }
    if args.test is not None:
        splits["test"] = KaldiSplit(args.test, [])
    work = Import(splits, args.num_pdfs, args.out, show=not args.quiet)
    for split, frames in work.run().items():
        print(f"{split}: {frames:,} frames")
    if work.left_out:
        print(f"{len(work.left_out):,} utterances left out: {args.out / 'left_out.txt'}")
    print(f"next: hocket train {args.out} --out runs/{args.out.name}")
    return 0


def _files(pattern: str) -> list[Path]:
    found = sorted(Path(name) for name in glob.glob(pattern))
    if not found:
        raise ConfigError(f"no file matches {pattern!r}: quote the pattern, and check the folder")
    return found


def run_export(args: argparse.Namespace) -> int:
    """Write an experiment's features and alignments for Kaldi, or a run's network as ONNX."""
    if args.onnx is not None:
        return _export_network(args)
    for option in ("scores", "priors"):
        if getattr(args, option):
            raise ConfigError(f"--{option} has no effect without --onnx")
    if args.out is None:
        raise ConfigError("say what to write: --out DIR, or --onnx FILE for the network of a run")
    from hocket.speech.features.store import kinds_in
    from hocket.speech.kaldi_files import export
    from hocket.speech.task import SpeechTask

    task = SpeechTask(str(args.experiment))
    kinds = kinds_in(args.experiment / "features" / "train")
    kind = args.features or task.kind
    if kinds and kind not in kinds:
        raise ConfigError(f"{args.experiment} has no {kind} features; it has {', '.join(kinds)}")
    for split, count in export(args.experiment, args.out, kind).items():
        print(f"{split}: {count:,} utterances in {args.out / split}")
    return 0


def _export_network(args: argparse.Namespace) -> int:
    for option in ("out", "features"):
        if getattr(args, option):
            raise ConfigError(f"--{option} has no effect together with --onnx: leave it out")
    scores: Any = args.scores or "posteriors"
    if args.priors and scores == "posteriors":
        raise ConfigError("--priors has no effect on posteriors: add --scores likelihoods")
    from hocket.speech.decode.onnx_export import export_onnx

    facts = export_onnx(args.experiment, args.onnx, scores, args.priors or "alignment")
    print(
        f"{args.onnx}: {facts['dims']} {facts['features']} values a frame, normalised by "
        f"{facts['normalisation']} -> {facts['scores']} of {facts['senones']} senones"
    )
    return 0
