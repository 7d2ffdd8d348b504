"""DNN, TDNN, LSTM, BLSTM and CLDNN at equal parameters: which one learns the same frames best?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from hocket.core.task import Task
from hocket.models import CLDNN, DNN, LSTM, TDNN
from hocket.models.sequence import SequenceModel
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import SEQUENTIAL, Found
from hocket.reproduce.setups.sequences import in_chunks, num_parameters, of_size, sized
from hocket.reproduce.tasks import Scale, Size
from hocket.strategies import Sequential

JUDGED = ("tdnn", "lstm", "blstm", "cldnn")
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of the rate: TDNNs want a low one, LSTMs a high one


class Models(Claim):
    """Every kind of network with as many parameters as the DNN, rates tuned alike."""

    name: ClassVar[str] = "models"
    claim: ClassVar[str] = (
        "At equal parameters and on equal frames, networks that read sequences (TDNN, LSTM, BLSTM, "
        "CLDNN) end with a lower held-out loss than a DNN on 11 frames"
    )
    paper: ClassVar[str] = "Peddinti et al. 2015; Sainath et al. 2015; Li et al. 2017"
    published: ClassVar[str] = (
        "CLDNNs 4 to 6 % relative below LSTMs, which are below DNNs (Sainath et al.); TDNNs 7 % "
        "below DNNs (Peddinti et al.)"
    )
    refuted_by: ClassVar[str] = (
        "one of the four does not end below the DNN after the same frames (no margin)"
    )
    figures: ClassVar[tuple[str, ...]] = ("loss", "error", "time_s")

    def size(self, scale: Scale) -> Size:
        """Synthetic frames, whose context helps; `--task exp/assistant` for speech."""
        return sized(scale, DNN(layers=2, width=24 if scale == "smoke" else 128))

    def tasks(self, bench: Bench) -> dict[str, Task]:
        """The data with every kind of network; widths follow from the DNN's parameters."""
        base: Any = bench.task
        wanted = num_parameters(base)
        kinds: dict[str, Callable[[int], SequenceModel]] = {
            "tdnn": lambda n: TDNN(width=n),
            "lstm": lambda n: LSTM(cells=n),
            "blstm": lambda n: LSTM(cells=n, bidirectional=True),
            "cldnn": lambda n: CLDNN(
                maps=8, conv_bins=5, cells=n, linear=n, width=n, layers=2, dense_layers=1
            ),
        }
        return {name: of_size(partial(_with, base, make), wanted) for name, make in kinds.items()}

    def runs(self, bench: Bench) -> list[Run]:
        """Every network at every rate; the DNN is the sequential arm."""
        factors = bench.pick(smoke=(1.0,), quick=(0.25, 1.0, 4.0), full=FACTORS)
        grid = bench.grid({"": Sequential()}, factors)
        made = bench.arm(SEQUENTIAL, 1, grid)
        for name, task in self.tasks(bench).items():
            made += bench.arm(name, 1, grid, task=task)
        return made

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Each against the DNN."""
        alone = found[SEQUENTIAL].losses
        return [checks.below(f"{n} ends below the DNN", found[n].losses, alone) for n in JUDGED]

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """How large the networks are."""
        tasks: dict[str, Any] = {"dnn": bench.task, **self.tasks(bench)}
        sizes = ", ".join(f"{name} {num_parameters(t):,}" for name, t in tasks.items())
        return [
            f"Parameters: {sizes}. `sequential` is the DNN, in minibatches of frames; the others "
            "have minibatches of chunks of at most 21 frames, with as many frames in all, and "
            "rates are tuned over the same factors. Synthetic features are in no order, so a "
            "convolution over neighbouring mel bins (CLDNN) has nothing to find in them. Times "
            "are the simulator's: it charges by frames, not by model; benchmarks/recurrent.py "
            "measures speed."
        ]


def _with(base: Task, make: Callable[[int], SequenceModel], width: int) -> Task:
    """The network in minibatches of as many frames: with fewer updates an LSTM learns less."""
    frames: Any = getattr(base, "batch_frames", None)
    return in_chunks(base, make(width), **({} if frames is None else {"batch_frames": frames}))
