"""What a codec is, what it remembers, and the one that changes nothing.

A codec turns a vector of float32 into fewer bytes, and back into a vector that differs. With *error
feedback* the difference is not lost: it is kept, and added to what is coded next,

    v(t) = w(t) x(t) + r(t),     q(t) = decode(encode(v(t))),     r(t+1) = v(t) - q(t),

so that all that was ever decoded is all that was ever put in, less what is still kept:

    sum_t q(t) = sum_t w(t) x(t) - r(T+1).

The weight w is the number of frames behind x, and what is decoded is divided by it. So a residual
of many frames must not ride on a vector of few, such as the last one of an epoch: it would be
applied many times as large as it was. Of a residual that stands for f frames only a share goes
along,

    v(t) = w(t) x(t) + c r(t),   c = min(1, w(t) / f),   r(t+1) = v(t) - q(t) + (1 - c) r(t),

and then it stands for max(w(t), f - w(t)). The sum above holds as it is; if all vectors are of the
same number of frames, c is 1. The codecs themselves are in `hocket.codecs`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

import torch

from hocket.core.flat import Flat, Layout
from hocket.errors import ConfigError, NotFiniteError, require


@dataclass(frozen=True)
class Stripe:
    """A part of a vector that one learner puts together; cut between columns."""

    start: int  # of its values in the vector
    stop: int
    atoms: range = field(repr=False)  # what cannot be divided, counted over the whole vector

    @property
    def place(self) -> slice:
        """Its values."""
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class CodedSize:
    """Bytes of a coded vector, by what they are for."""

    values: int  # the codes themselves
    headers: int  # what is sent per column to read them
    floats: int  # biases and small tensors, as they are
    uncoded: int  # what the same values weigh as float32

    @property
    def total(self) -> int:
        """All that travels."""
        return self.values + self.headers + self.floats

    def describe(self) -> str:
        """Say it in one line."""
        share = self.uncoded / max(1, self.total)
        return (
            f"{self.uncoded:,} bytes travel as {self.total:,} (1/{share:.1f}): {self.values:,} of "
            f"codes, {self.headers:,} of headers, {self.floats:,} of biases and small tensors as "
            "float32"
        )


@dataclass
class Memory:
    """What a learner has not delivered yet, in frames times value; zero at the beginning."""

    unsent: Flat  # of what it sends: r1
    owned: Flat  # of the stripe that it puts together and sends out again: r2
    first: int = 0  # where that stripe begins
    unsent_frames: float = 0.0  # how many frames they stand for
    owned_frames: float = 0.0

    @property
    def keeps(self) -> bool:
        """True if anything is kept."""
        return bool(self.unsent.any() or self.owned.any())

    def own_(self, stripe: Stripe) -> None:
        """Take over another stripe.

        What is kept of values that go to another owner joins what is to be sent: nothing is lost.
        """
        start, stop = self.first, self.first + self.owned.numel()
        if (start, stop) == (stripe.start, stripe.stop):
            return
        mine = torch.zeros(stripe.stop - stripe.start, device=self.owned.device)
        both = range(max(start, stripe.start), min(stop, stripe.stop))
        if both:
            kept = self.owned[both.start - start : both.stop - start]
            mine[both.start - stripe.start : both.stop - stripe.start] = kept
            kept.zero_()
        if bool(self.owned.any()):
            self.unsent[start:stop] += self.owned
            self.unsent_frames = max(self.unsent_frames, self.owned_frames)
        self.owned, self.first = mine, stripe.start

    def share_(self, frames: float) -> float:
        """Return the share of `unsent` that goes along with so many frames; it counts as sent."""
        share, self.unsent_frames = share_of_residual(self.unsent_frames, frames)
        return share

    def release_(self, frames: float) -> Flat:
        """Return what goes along with so many frames of the only learner; the rest stays."""
        self.unsent[self.first : self.first + self.owned.numel()] += self.owned
        self.owned.zero_()
        self.unsent_frames += self.owned_frames
        self.owned_frames = 0.0
        given = self.unsent * self.share_(frames)
        self.unsent -= given
        return given


def shared_out(old: Sequence[Memory], rank: int, num_learners: int) -> Memory:
    """Return what one of another number of learners takes over: nothing is lost or counted twice.

    Old learner i hands all it kept to new learner i mod P_new.
    """
    unsent = torch.zeros_like(old[0].unsent)
    taken = old[rank::num_learners] if rank < num_learners else ()  # the others only attend
    for memory in taken:
        unsent += memory.unsent
        unsent[memory.first : memory.first + memory.owned.numel()] += memory.owned
    frames = sum(memory.unsent_frames for memory in taken)
    frames += max((memory.owned_frames for memory in taken), default=0.0)
    return Memory(unsent, unsent[:0].clone(), unsent_frames=frames)


def share_of_residual(stands_for: float, frames: float) -> tuple[float, float]:
    """Return the share of a residual that goes along, and what the rest stands for."""
    share = min(1.0, frames / stands_for) if stands_for else 1.0
    return share, max(frames, stands_for - frames)


def encode_of_(
    who: str,
    coder: Coder,
    x: Flat,
    residual: Flat | None,
    stripe: Stripe,
    weight: float,
    share: float = 1.0,
) -> torch.Tensor:
    """As `Coder.encode_`, with a share of the residual; says whose value is not finite."""
    held = None
    if residual is not None and share < 1.0:
        held = residual * (1.0 - share)
        residual -= held
    try:
        code = coder.encode_(x, residual, stripe, weight)
    except NotFiniteError as error:
        raise NotFiniteError(
            f"{who}: {error}. Nothing of it was sent. Lower optimizer.lr, add "
            "optimizer.clip_norm, or look for bad values in the data; checkpoints written so far "
            "are kept."
        ) from error
    if residual is not None and held is not None:
        residual += held
    return code


class Coder(ABC):
    """A codec fitted to a layout: it knows every column. It holds no memory of its own."""

    whole: Stripe  # everything
    size: CodedSize
    feeds_back: bool  # false: what is lost in coding is lost
    encode_copies: ClassVar[float]  # what it costs, in copies of the vector (benchmarks/codecs.py)
    decode_copies: ClassVar[float]

    @abstractmethod
    def cut(self, parts: int) -> list[Stripe]:
        """Cut the vector between columns into stripes of nearly equal size when coded."""

    @abstractmethod
    def stripe(self, place: range) -> Stripe:
        """Return the stripe of some whole parameters."""

    @abstractmethod
    def encode_(
        self, x: Flat, residual: Flat | None, stripe: Stripe, weight: float = 1.0
    ) -> torch.Tensor:
        """Return weight * x + residual as bytes; `residual` becomes what they do not say.

        `x` and `residual` are the values of the stripe. A value that is not finite raises
        `NotFiniteError` with the parameter's name.
        """

    @abstractmethod
    def decode_(
        self, coded: torch.Tensor, stripe: Stripe, out: Flat, scale: float = 1.0, *, add: bool
    ) -> None:
        """Write `scale` times what the bytes say to `out`, the values of the stripe, or add it."""

    @abstractmethod
    def sections(self, stripe: Stripe) -> list[slice]:
        """Return where a stripe's bytes lie among those of the whole vector, in their order."""

    def num_bytes(self, stripe: Stripe) -> int:
        """Return the length of a stripe's code."""
        return sum(s.stop - s.start for s in self.sections(stripe))

    def part(self, coded: torch.Tensor, stripe: Stripe) -> torch.Tensor:
        """Return a stripe's bytes, given those of the whole vector."""
        return torch.cat([coded[section] for section in self.sections(stripe)])

    def work(self, num_values: int, encodes: float = 0.0, decodes: float = 0.0) -> int:
        """Return arithmetic as values of a step, of which a copy moves two thirds."""
        copies = encodes * self.encode_copies + decodes * self.decode_copies
        return round(copies * num_values * 2 / 3)

    def memory(self, on: torch.device | None = None) -> Memory | None:
        """Return the memory of a learner that has sent nothing; None if nothing is fed back."""
        if not self.feeds_back:
            return None
        return Memory(torch.zeros(self.whole.stop, device=on), torch.zeros(0, device=on))


@dataclass(frozen=True)
class Codec(ABC):
    """How a vector travels. Its fields are its parameters."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def fitted(self, layout: Layout) -> Coder | None:
        """Return it for vectors of a layout; None: they travel as they are."""
        return None

    @property
    def feeds_back(self) -> bool:
        """True if nothing is lost for good."""
        return True

    @property
    def starts_at(self) -> int:
        """Frames committed by all before anything is coded."""
        return 0


@dataclass(frozen=True)
class Float32(Codec):
    """Every value as it is: 4 bytes."""

    name: ClassVar[str] = "float32"
    summary: ClassVar[str] = "every value as it is, 4 bytes"


@dataclass(frozen=True)
class Lossy(Codec):
    """A codec that does not say everything."""

    error_feedback: bool = True  # add what was not sent to what is sent next
    start_frames: int = 0  # until all have learnt so many frames: float32
    float_below: int = 32  # columns with fewer values (biases, small tensors) travel as float32

    def __post_init__(self) -> None:
        require(
            self.start_frames >= 0, f"codec.start_frames must be at least 0: {self.start_frames}"
        )
        require(self.float_below >= 1, f"codec.float_below must be at least 1: {self.float_below}")

    @property
    def feeds_back(self) -> bool:
        """What the option `error_feedback` says."""
        return self.error_feedback

    @property
    def starts_at(self) -> int:
        """What the option `start_frames` says."""
        return self.start_frames


def refuse_codec(strategy: str, codec: Codec, why: str) -> None:
    """Refuse a codec that a strategy cannot use."""
    raise ConfigError(
        f"codec {codec.name!r} does not go with strategy {strategy!r}: {why} "
        "`hocket codecs` shows what goes with what; codec.name = 'float32' goes with everything"
    )


FLOAT32: Final = Float32()
