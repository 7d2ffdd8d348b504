"""Every headline of the literature, with the published figure, ours, and the verdict: one page.

`hocket reproduce --headlines` makes it from the table below and from the pages in docs/results.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hocket.reproduce.writing import JUDGED

NOT_RUN: Final = "not run yet"
EARLIER: Final = (
    "earlier judge"  # more seeds of the tuned setting, margins that hung on their spread
)
SHOWN: Final = ("dev loss", "frames to it", "speed-up")  # columns of a page that are quoted


@dataclass(frozen=True)
class Headline:
    """One claim of the literature."""

    system: str
    published: str
    claim: str | None  # of `hocket reproduce`; None: we have no claim for it
    arms: tuple[str, ...] = ()  # rows of its table that are quoted
    open: str = ""  # why there is no claim


HEADLINES: Final = (
    Headline(
        "ASGD, Zhang et al. 2013",
        "4 GPUs: 3.2 times as fast, CER 9.05 against 9.27",
        "asgd-speedup",
        ("asgd P=4",),
    ),
    Headline(
        "ASGD, Yu and Deng 2015; Cong et al. 2017",
        "warm start, dropping and slower rates repair it; poor accuracy with 4",
        "asgd-rules",
        ("no rule P=4", "no rule P=16", "all rules P=16"),
    ),
    Headline(
        "ASGD, Yu and Deng 2015",
        "learners draw from one pool, so a slow one simply does fewer minibatches",
        "asgd-straggler",
        ("asgd 5 x, evaluated often", "allreduce 5 x"),
    ),
    Headline(
        "Pipelined BP, Chen et al. 2012",
        "1.9 times as fast on 2 GPUs, 3.3 times on 4, no loss",
        "pipeline",
        ("pipeline S=2", "pipeline S=4"),
    ),
    Headline(
        "K-AVG, Cong et al. 2017",
        "4 GPUs: comparable to sequential SGD",
        "kavg-four",
        ("K-AVG P=4",),
    ),
    Headline(
        "K-AVG, Cong et al. 2017",
        "20 GPUs: 6.1 times as fast, better than sequential SGD",
        "kavg-twenty",
        ("adaptive P=20",),
    ),
    Headline(
        "K-AVG, Zhou and Cong 2018",
        "K = 1 is usually not the best; an adaptive K is as good as the best",
        "k-sweep",
        ("P=4 adaptive", "P=16 adaptive"),
    ),
    Headline(
        "K-AVG, Cong et al. 2017",
        "adaptive measures help many learners",
        "adaptive-k",
        ("shrink K", "fixed K"),
    ),
    Headline(
        "Averaging, Su and Chen 2015",
        "16 GPUs: 9.3 times as fast; 32: 17 times; limited loss",
        "averaging-speed",
        ("averaging P=16", "averaging P=32"),
    ),
    Headline(
        "BMUF, Chen and Huo 2016",
        "almost linear to 16 GPUs (56 times on 64), no loss",
        "bmuf-linear",
        ("bmuf P=16",),
    ),
    Headline(
        "Li et al. 2017",
        "BMUF first, before ASGD, averaging and EASGD; often better than 1 GPU",
        "averaging-methods",
        ("bmuf P=16", "averaging P=16", "easgd P=16"),
    ),
    Headline(
        "NG-SGD, Povey et al. 2014",
        "averaging works with natural gradient, not with plain SGD (p-norm)",
        "natural-averaging",
        ("pnorm sgd P=8", "pnorm ngsgd P=8"),
    ),
    Headline(
        "NG-SGD, our question",
        "the same with ReLU networks",
        "natural-averaging-relu",
        ("dnn sgd P=8", "dnn ngsgd P=8"),
    ),
    Headline(
        "NG-SGD, Povey et al. 2014",
        "natural gradient needs fewer frames",
        "natural-frames",
        ("pnorm sgd P=1", "pnorm ngsgd P=1"),
    ),
    Headline(
        "Kaldi, Povey et al. 2014",
        "the mean of the last models is better than the last one",
        "final-combination",
        ("combined, constant rate", "last, constant rate"),
    ),
    Headline(
        "AD-PSGD, Zhang et al. 2020",
        "reaches the accuracy at 3 times the batch of synchronous SGD (12,288 against 4,096)",
        "large-batches",
        ("allreduce 12 x", "random ring 12 x", "delay-by-one 12 x"),
    ),
    Headline(
        "AD-PSGD, Cui et al. 2021",
        "a random ring mixes as well at any length, a fixed one does not",
        "ring-consensus",
        ("fixed ring P=64", "random ring P=64"),
    ),
    Headline(
        "AD-PSGD, Zhang et al. 2019, 2020",
        "a week on 1 GPU, 14 h on 16, 2.28 h on 64, 1.98 h on 128",
        "ring-scaling",
        ("random ring P=16", "random ring P=64"),
    ),
    Headline(
        "AD-PSGD, Cui et al. 2021",
        "one learner 2, 10, 100 times slower: rings nearly flat",
        "stragglers",
        ("allreduce P=16 100 x", "random ring P=16 100 x"),
    ),
    Headline(
        "AD-PSGD, Lian et al. 2018",
        "the same in real processes",
        "real-stragglers",
        ("allreduce 10 x", "random ring 10 x"),
    ),
    Headline(
        "Delay-by-one, Cui et al. 2021",
        "fastest at large batches when learners are equal",
        "delay-by-one-large",
        ("delay-by-one P=16", "allreduce P=16"),
    ),
    Headline(
        "AD-PSGD, Zhang et al. 2019, 2020",
        "the same with the LSTM of the papers: 14 h on 16 GPUs, a week on 1",
        "lstm-rings",
        ("fixed ring P=16", "random ring P=16", "delay-by-one P=16"),
    ),
    Headline(
        "Peddinti et al. 2015; Sainath et al. 2015",
        "TDNNs 7 % below DNNs; CLDNNs 4 to 6 % below LSTMs, which are below DNNs (relative WER)",
        "models",
        ("tdnn", "lstm", "blstm", "cldnn"),
    ),
    Headline(
        "H-ADPSGD, Zhang et al. 2019",
        "super-learners: 5.2 h on 64 GPUs, no loss",
        "hadpsgd",
        ("super-learners", "flat ring"),
    ),
    Headline(
        "1-bit SGD, Seide et al. 2014",
        "3.6 to 6.3 times on 8 GPUs, almost no loss",
        "onebit-loss",
        ("1-bit", "float"),
    ),
    Headline(
        "1-bit SGD, Seide et al. 2014",
        "a 32nd of the bytes; 3.6 to 6.3 times on 8 GPUs",
        "onebit-speed",
        (),
    ),
    Headline(
        "1-bit SGD, our question",
        "the same for the steps of averaging methods on a slow link",
        "slow-link",
        (),
    ),
    Headline(
        "Hessian-free, Chung et al. 2014",
        "up to 11 times against SGD on one GPU, better WER",
        "hessian-free-updates",
        ("hessian-free P=1", "hessian-free P=256"),
    ),
    Headline(
        "Hessian-free, Chung et al. 2014",
        "linear to 4,096 processes, load balanced",
        "hessian-free-scaling",
        ("balanced P=1024", "in turn P=1024"),
    ),
    Headline(
        "Hessian-free, Sainath et al. 2013",
        "L-BFGS preconditioning and sampling: 1.5 to 2.3 times as fast",
        "hessian-free-preconditioners",
        ("none", "lbfgs", "lbfgs, growing samples"),
    ),
    Headline(
        "ADMM, Yu and Deng's book",
        "an alternative to averaging; no figure",
        None,
        open="shown in `averaging-methods`, not judged",
    ),
)


def page(results: Path) -> str:
    """Return the page, from the pages of the claims in a folder."""
    lines = [
        "# Headlines of the literature",
        "",
        "What was published, on the scale of its time, and what the same method does here (made by "
        "`hocket reproduce --headlines`). Speed-up is always the time to the sequential loss.",
        "",
        "| system | published | claim | verdict | ours |",
        "|---|---|---|---|---|",
        *(row(headline, results) for headline in HEADLINES),
        "",
        f"*{EARLIER}*: the page is from before the present rules (tuning on one seed and judging "
        "on others, margins of 1 %, runs of 61,440 updates, time to the sequential loss) and will "
        "be made anew; its verdict is not to be relied on.",
        "",
    ]
    return "\n".join(lines)


def row(headline: Headline, results: Path) -> str:
    """Return one line of the table."""
    if headline.claim is None:
        cells = [headline.system, headline.published, "-", "-", headline.open]
        return "| " + " | ".join(cells) + " |"
    found = newest(headline.claim, results)
    if found is None:
        cells = [headline.system, headline.published, f"`{headline.claim}`", NOT_RUN, NOT_RUN]
    else:
        text = found.read_text()
        named = f"[{headline.claim}]({found.name})"
        cells = [headline.system, headline.published, named, verdict(text), ours(headline, text)]
    return "| " + " | ".join(cells) + " |"


def newest(claim: str, results: Path) -> Path | None:
    """Return the page of a claim: on its own task, or on another one."""
    own = results / f"{claim}.md"
    if own.exists():
        return own
    others = [
        path
        for path in sorted(results.glob(f"{claim}-*.md"))
        if path.read_text().startswith(f"# {claim}:")  # not that of another, longer name
    ]
    return others[0] if others else None


def verdict(text: str) -> str:
    """Return the verdict of a page; of an earlier one, marked so."""
    found = text.splitlines()[0].partition(": ")[2]
    return found if JUDGED in text else f"({found}; {EARLIER})"


def ours(headline: Headline, text: str) -> str:
    """Return our figures: those of the rows that are named."""
    if JUDGED not in text:
        return "to be made anew"
    table = [_cells(line) for line in text.splitlines() if line.startswith("| ")]
    heads = next((cells for cells in table if "arm" in cells and "dev loss" in cells), [])
    rows = {cells[0]: dict(zip(heads, cells, strict=False)) for cells in reversed(table)}
    told = []
    for arm in headline.arms:
        figures = rows.get(arm, {})
        known = [f"{name} {figures[name]}" for name in SHOWN if figures.get(name, "-") != "-"]
        if known:
            told.append(f"{arm}: {', '.join(known)}")
    return "; ".join(told) or "see the page"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
