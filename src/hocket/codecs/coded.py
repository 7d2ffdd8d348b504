"""The arithmetic of a coded mean: the two exchanges of 1-bit SGD, for any codec.

    every learner i:  code_i = encode(n_i x_i + c_i r1_i),   r1_i <- what it does not say      (1)
    owner of stripe s:  S_s = sum_i decode(code_i, s), in rank order                           (2)
                        code_s = encode(S_s + c r2_s),   r2_s <- what it does not say          (3)
    everybody:        mean, stripe s = decode(code_s) / sum_i n_i                              (4)

c is 1 unless these frames are fewer than those that the residual stands for (`core.codec`).
All decode the same bytes, the owner too, so all have the same mean bit for bit. A learner of weight
0 is left out of (1) and (2); if nobody has any weight, nothing is sent and the mean is zero.

When the learners change, stripes are cut anew. What an owner kept (r2) of values that it owns no
longer joins what it has not sent (r1). What the lost learner had kept is lost with it. All of it is
done after (1): a learner codes before it can know who will be there.

The simulator calls `mean_`; real learners go through the same steps in `net.coded_reduction`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hocket.core.codec import Coder, Memory, Stripe, encode_of_, share_of_residual
from hocket.core.effects import CodedMean, Mean
from hocket.core.flat import Flat


@dataclass
class Contribution:
    """What one learner brings."""

    rank: int
    effect: CodedMean
    weight: float

    def encode_(self) -> torch.Tensor | None:
        """Code its vector with what it had kept (eq. 1); None: it has nothing to say."""
        if not self.weight:
            return None
        effect, memory = self.effect, self.effect.memory
        unsent, share = None, 1.0
        if memory is not None:
            unsent, share = memory.unsent, memory.share_(self.weight)
        who, coder = f"rank {self.rank}", effect.coder
        return encode_of_(who, coder, effect.x, unsent, coder.whole, self.weight, share)


@dataclass(frozen=True)
class Kept:
    """What the code of a stripe's sum does not say; none of it without error feedback."""

    owned: Flat | None = None
    frames: float = 0.0  # that it stands for
    share: float = 1.0  # of what was kept before, that went along


def total_of(coder: Coder, stripe: Stripe, codes: Sequence[torch.Tensor | None], on: Flat) -> Flat:
    """Add up what the learners sent for a stripe (eq. 2)."""
    total = torch.zeros(stripe.stop - stripe.start, device=on.device)
    for code in codes:
        if code is not None:
            coder.decode_(code, stripe, total, add=True)
    return total


def encode_total(
    rank: int, coder: Coder, stripe: Stripe, total: Flat, memory: Memory | None, frames: float
) -> tuple[torch.Tensor, Kept]:
    """Code the sum with what was kept of earlier ones (eq. 3); return what is to be kept now."""
    kept = Kept()
    if memory is not None:
        share, stands_for = share_of_residual(memory.owned_frames, frames)
        kept = Kept(memory.owned.clone(), stands_for, share)
    who = f"rank {rank}, which adds up what all learners sent"
    return encode_of_(who, coder, total, kept.owned, stripe, 1.0, kept.share), kept


def spread_(
    coder: Coder, stripes: Sequence[Stripe], codes: Sequence[torch.Tensor], weight: float, out: Flat
) -> None:
    """Write the mean that all learners use (eq. 4)."""
    for stripe, code in zip(stripes, codes, strict=True):
        coder.decode_(code, stripe, out[stripe.place], 1.0 / weight, add=False)


def survivor_(effect: CodedMean, total: Flat, weight: float) -> None:
    """Write the mean of a learner that is left alone: what it said, with what it has kept."""
    if effect.memory is not None:
        total += effect.memory.release_(weight)
    torch.mul(total, 1.0 / weight, out=effect.x)


def alone_(effect: CodedMean, weight: float) -> Mean:
    """Answer the only learner of a run: nothing is coded, and what it took over is applied."""
    if weight and effect.memory is not None and effect.memory.keeps:
        effect.x.add_(effect.memory.release_(weight), alpha=1.0 / weight)
    return summary(effect, [weight])


def summary(effect: CodedMean, weights: Sequence[float]) -> Mean:
    """Return the answer that goes with the mean in `effect.x`."""
    return Mean(effect.x, sum(w > 0 for w in weights) or len(weights), float(sum(weights)))


def mean_(parts: Sequence[Contribution]) -> list[Mean]:
    """Hold both exchanges among learners of one process, in rank order."""
    first, weights = parts[0].effect, [part.weight for part in parts]
    coder, stripes = first.coder, first.coder.cut(len(parts))
    sent = [part.encode_() for part in parts]
    for part, stripe in zip(parts, stripes, strict=True):
        if part.effect.memory is not None:
            part.effect.memory.own_(stripe)
    if not sum(weights):
        for part in parts:
            part.effect.x.zero_()
        return [summary(part.effect, weights) for part in parts]
    if len(parts) == 1:
        survivor_(first, total_of(coder, coder.whole, sent, first.x), weights[0])
        return [summary(first, weights)]
    codes = []
    for part, stripe in zip(parts, stripes, strict=True):
        mine = [None if code is None else coder.part(code, stripe) for code in sent]
        total = total_of(coder, stripe, mine, first.x)
        memory = part.effect.memory
        code, kept = encode_total(part.rank, coder, stripe, total, memory, sum(weights))
        codes.append(code)
        keep_(memory, kept)
    spread_(coder, stripes, codes, sum(weights), first.x)
    for part in parts[1:]:
        part.effect.x.copy_(first.x)
    return [summary(part.effect, weights) for part in parts]


def keep_(memory: Memory | None, kept: Kept) -> None:
    """Remember what a stripe's code does not say."""
    if memory is not None and kept.owned is not None:
        memory.owned, memory.owned_frames = kept.owned, kept.frames


def work(coder: Coder, num_learners: int) -> int:
    """Return the arithmetic of one learner, as values of a step (see `CostModel.arithmetic`).

    It codes its vector and a stripe, reads a stripe of everybody and then the whole.
    """
    if num_learners == 1:
        return 0
    return coder.work(coder.whole.stop, encodes=1 + 1 / num_learners, decodes=2)
