"""What `hocket prepare` is told: everything that determines a prepared experiment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hocket.core.limits import check_numbers
from hocket.errors import nearest, require
from hocket.speech.features.spectral import KINDS, SAMPLE_RATES, Kind
from hocket.speech.features.store import Normalisation
from hocket.speech.gmm.training import GMMOptions
from hocket.speech.graph.lexicon import LEAVE_OUT, SILENCE
from hocket.speech.input.audio import Channel
from hocket.speech.units import Unit


@dataclass(frozen=True)
class PrepareOptions:
    """Everything that determines a prepared experiment."""

    lexicon: str = "cmudict"
    oov: str = "SPN"  # the phone of words without a pronunciation; or LEAVE_OUT
    features: tuple[Kind, ...] = ("fbank",)  # for networks; they read the first by default
    num_bins: int = 40
    resample: int | None = None  # Hz; unset: the highest of SAMPLE_RATES that all audio has
    channel: Channel = "mean"  # of audio with several, from 1
    normalisation: Normalisation = "speaker"
    lm_order: int = 3
    lm_text: str = ""  # a file of sentences; unset: the training transcripts
    arpa: str = ""  # a finished language model
    units: Unit = "word"  # in which errors are counted; character: for writing without spaces
    held_out: float = 0.1  # share of the training data for a split that the data lacks
    gmm: GMMOptions = field(default_factory=GMMOptions)
    score_steps: tuple[str, ...] = ()  # GMM-HMMs to be scored besides the last: of STEPS

    def __post_init__(self) -> None:
        check_numbers(self, "prepare")
        check_numbers(self.gmm, "prepare.gmm")
        require(len(self.features) > 0, f"--features needs one of {', '.join(KINDS)}")
        for kind in self.features:
            require(
                kind in KINDS,
                f"no features {kind!r}: there are {', '.join(KINDS)}.{nearest(kind, KINDS)}",
            )
        require(
            self.num_bins == 40 or "fbank" in self.features,
            "--num-bins has no effect: it is an option of fbank, which --features leaves out",
        )
        require(
            self.resample in (None, *SAMPLE_RATES),
            f"--resample must be one of {', '.join(map(str, SAMPLE_RATES))}, not {self.resample}",
        )
        require(
            self.channel == "mean" or self.channel >= 1,
            f"--channel counts from 1, or is 'mean'; not {self.channel}",
        )
        require(
            self.oov not in ("", SILENCE) and not set(self.oov) & set(" \t\n"),
            f"--oov takes the name of a phone (not {SILENCE}), or {LEAVE_OUT}; not {self.oov!r}",
        )
        strange = [step for step in self.score_steps if step not in self.gmm.steps]
        require(
            not strange,
            f"--score-steps {', '.join(strange)}: the steps of this preparation are "
            f"{', '.join(self.gmm.steps)}",
        )
        require(self.num_bins >= 3, f"num_bins must be at least 3, not {self.num_bins}")
        require(0 < self.held_out < 0.5, f"held_out must lie between 0 and 0.5: {self.held_out}")
        require(self.lm_order >= 1, f"lm_order must be at least 1, not {self.lm_order}")
        require(
            not (self.lm_text and self.arpa),
            f"--lm-text {self.lm_text} has no effect beside --arpa: leave one out",
        )
        for path in filter(None, (self.lm_text, self.arpa)):
            require(Path(path).is_file(), f"{path}: no such file (for the language model)")
