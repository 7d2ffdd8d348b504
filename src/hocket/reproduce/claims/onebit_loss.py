"""One bit a gradient value, and what was lost goes into the next: does it cost accuracy?"""

from __future__ import annotations

from typing import ClassVar

from hocket.codecs import Codec, Float16, Float32, OneBit, TopK
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import Found
from hocket.strategies import AllReduceSGD

LEARNERS = 4
SMALL = 16  # columns of the usual task have 24 and 64 values
FLOAT, HALF, BIT = "float", "half", "1-bit"
NO_FEEDBACK, NO_START, SPARSE = "1-bit, no feedback", "1-bit, no start in float", "top-k 1 %"
CODED, LIGHT = 2.2, (FLOAT, SPARSE)  # work of coding vectors as small as these; who has less


def codecs(start_frames: int) -> dict[str, Codec]:
    """What goes on the wire in each arm."""
    return {
        FLOAT: Float32(),
        HALF: Float16(float_below=SMALL),
        BIT: OneBit(float_below=SMALL, start_frames=start_frames),
        NO_FEEDBACK: OneBit(float_below=SMALL, start_frames=start_frames, error_feedback=False),
        NO_START: OneBit(float_below=SMALL),
        SPARSE: TopK(float_below=SMALL, start_frames=start_frames),
    }


class OneBitLoss(Claim):
    """Gradients in float, half, 1-bit and top-k, at rates tuned alike."""

    name: ClassVar[str] = "onebit-loss"
    claim: ClassVar[str] = (
        "Gradients of one bit with error feedback lose almost nothing against float, without "
        "feedback they do"
    )
    paper: ClassVar[str] = "Seide et al., Interspeech 2014"
    published: ClassVar[str] = "8 GPUs, 46 million parameters: nearly no loss of accuracy"
    refuted_by: ClassVar[str] = (
        "after the same frames and at rates tuned alike, the dev loss of 4 learners is more than "
        "1 % above float's with 1-bit after a start in float, or with half precision; or 1-bit "
        "without feedback is not"
    )

    def runs(self, bench: Bench) -> list[Run]:
        """Every codec at the same grid of rates; a twentieth of the run is the start in float."""
        factors = bench.pick(smoke=(0.5,), quick=(0.25, 0.5), full=(0.125, 0.25, 0.5, 1.0))
        frames = bench.epochs * sum(item.frames for item in bench.task.items("train"))
        grid = bench.grid({"": AllReduceSGD()}, factors)
        return bench.sequential() + [
            run
            for name, codec in codecs(frames // 20).items()
            for run in bench.arm(
                name, LEARNERS, grid, codec=codec, work=1.0 if name in LIGHT else CODED
            )
        ]

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Against gradients in float."""
        base = found[FLOAT].losses
        allowed = [loss * (1 + self.margin) for loss in base]
        return [
            checks.reaches("half precision ends as low as float", found[HALF].losses, base),
            checks.reaches("1-bit ends as low as float", found[BIT].losses, base),
            checks.below("1-bit without feedback does not", allowed, found[NO_FEEDBACK].losses),
        ]

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """What is not judged."""
        return [
            f"Shown, not judged: {NO_START!r} and {SPARSE!r}. Bytes are those of this small model, "
            "whose columns are short: two means weigh much beside 24 or 64 bits."
        ]
