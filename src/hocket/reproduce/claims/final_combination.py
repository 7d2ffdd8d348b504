"""Kaldi's last step: the mean of the last models, as many as are best."""

from __future__ import annotations

from typing import ClassVar

from hocket.optim import Exponential, NaturalSGD
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import Found
from hocket.reproduce.tasks import SYNTHETIC, Scale, Size
from hocket.strategies import Kaldi


class FinalCombination(Claim):
    """The combination against the last model of the same run."""

    name: ClassVar[str] = "final-combination"
    claim: ClassVar[str] = (
        "Averaging the models of the last iterations, as many as fit a fixed set best, gives a "
        "lower dev loss than the last model"
    )
    paper: ClassVar[str] = "Povey, Zhang and Khudanpur, 2014 (arXiv:1410.7455); Kaldi's nnet3"
    published: ClassVar[str] = "part of Kaldi's recipe; no figure"
    refuted_by: ClassVar[str] = "the combined model's dev loss is not lower (no margin)"

    def size(self, scale: Scale) -> Size:
        """Return synthetic frames: natural gradient was made for larger minibatches."""
        return SYNTHETIC[scale]

    def runs(self, bench: Bench) -> list[Run]:
        """Kaldi's recipe with and without the combination, with little and with much decay."""
        learners = bench.pick(smoke=2, quick=8, full=8)
        archive = bench.pick(smoke=4, quick=8, full=16)
        epochs = bench.epochs
        decays = {"decay to 1/10": 0.1, "constant rate": 1.0}
        return [
            bench.run(
                f"{'combined' if combine else 'last'}, {decay}",
                Kaldi(sync_every=archive, combine_models=combine, combine_items=40),
                learners,
                seed=seed,
                optimizer=NaturalSGD(),
                lr=bench.lr,
                schedule=Exponential(epochs=epochs, final_factor=factor),
            )
            for decay, factor in decays.items()
            for combine in (20, 0)
            for seed in bench.seeds
        ]

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Seed by seed the runs are the same up to the last step, so differences are paired."""
        made = []
        for decay in ("decay to 1/10", "constant rate"):
            combined, last = (found[f"{arm}, {decay}"].losses for arm in ("combined", "last"))
            gains = [a - b for a, b in zip(combined, last, strict=True)]
            made.append(
                checks.below(f"{decay}: the combination is below", gains, [0.0] * len(gains))
            )
        return made

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """What the runs that are compared have in common."""
        return ["Both runs of a seed are the same, bit for bit, until the combination."]
