"""Pipelined back-propagation: 1.9 times as fast on 2 devices and 3.3 times on 4, at no loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Final

from hocket.core.task import Task
from hocket.data.synthetic import Synthetic
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import SEQUENTIAL, Found
from hocket.reproduce.setups.rings import FRAMES_PER_S, throughput
from hocket.reproduce.tasks import SYNTHETIC, Scale, Size, synthetic
from hocket.runtime.sim.cost import Cluster, Host
from hocket.strategies import Pipeline

SPEEDUPS: Final = {2: 1.9, 4: 3.3}  # efficiency 0.95 and 0.82
STAGES: Final = (1, 2, 4, 8)
LAYERS: Final = 8
EVALUATIONS: Final = 10  # in a run: before each the pipeline runs empty
WIDTHS: Final[dict[Scale, int]] = {"smoke": 8, "quick": 64, "full": 96}

# The published system: 429-7x2048-9304. A minibatch of 256 (our assumption) has 2.1 MB between two
# layers, 0.35 ms on a PCIe bus of 6 GB/s; a device of that time computes some 307 frames/s of such
# a model (195.1 minutes for 10 h, Zhang et al. 2013), so the minibatch lasts 0.83 s.
RATIO: Final = (256 / 307) / (256 * 2048 * 4 / 6e9)


def host_of_stages(task: Task, width: int, stages: int) -> Cluster:
    """Return one host with a device for each stage, whose bus keeps the published ratio."""
    frames = task.items("train")[0].frames
    gbit = RATIO * frames * width * 32 / (frames / FRAMES_PER_S) / 1e9
    kind = Host(attendants=stages - 1, frames_per_s=FRAMES_PER_S, memory_gbit=gbit)
    return Cluster((kind,))


class PipelineSpeedup(Claim):
    """One model on 1, 2, 4 and 8 devices of one host."""

    name: ClassVar[str] = "pipeline"
    claim: ClassVar[str] = (
        "Pipelined back-propagation computes 1.9 times as many frames per second on 2 devices and "
        "3.3 times on 4, at no loss of accuracy"
    )
    paper: ClassVar[str] = "Chen, Eversole, Li, Yu, Seide, Interspeech 2012"
    published: ClassVar[str] = "1.9 x on 2 GPUs, 3.3 x on 4 (efficiency 0.95, 0.82), the same WER"
    refuted_by: ClassVar[str] = (
        "2 stages have less than 1.9 times the frames per second of one device, or 4 less than 3.3 "
        "times, or the dev loss after the same frames is more than 1 % above sequential SGD's"
    )
    figures: ClassVar[tuple[str, ...]] = ("loss", "error", "frames_per_s", "time_s", "bytes_sent")

    def size(self, scale: Scale) -> Size:
        """Synthetic frames, and a network of nine layers, so that there is something to cut."""
        usual = SYNTHETIC[scale]
        assert isinstance(usual.task, Synthetic)
        items = len(usual.task.items("train"))
        task = synthetic(items, WIDTHS[scale], usual.task.dev_frames, layers=LAYERS)
        return replace(usual, task=task)

    def runs(self, bench: Bench) -> list[Run]:
        """Every number of stages; and larger minibatches, of which delays are longer in frames."""
        factors = bench.pick(smoke=(0.5,), quick=(0.5, 1.0), full=(0.25, 0.5, 1.0))
        width = WIDTHS[bench.scale]
        seldom: dict[str, Any] = {"evaluate_every": bench.epochs / EVALUATIONS}
        made = bench.sequential()
        for stages in STAGES:
            cluster = host_of_stages(bench.task, width, stages)
            made += bench.arm(
                _arm(stages), cluster, bench.grid({"": _how(stages)}, factors), **seldom
            )
        if isinstance(bench.task, Synthetic):
            task = replace(bench.task, batch_frames=4 * bench.task.batch_frames)
            for stages in bench.pick(smoke=(), quick=(1, 4), full=(1, 4, 8)):
                cluster = host_of_stages(task, width, stages)
                grid = bench.grid({"": _how(stages)}, [2 * factor for factor in factors])
                made += bench.arm(f"{_arm(stages)}, batch x 4", cluster, grid, task=task, **seldom)
        return made

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Throughput against one device, and the loss after the same frames."""
        alone, made = found[SEQUENTIAL], []
        for stages, wanted in SPEEDUPS.items():
            arm, speedup = found[_arm(stages)], _speedup(found, stages)
            failed = arm.num_diverged or found[_arm(1)].num_diverged
            made += [
                checks.fact(
                    f"{stages} stages: {wanted} times the frames per second",
                    speedup >= wanted and not failed,
                    f"{speedup:.2f}",
                ),
                checks.reaches(f"{stages} stages: as accurate", arm.losses, alone.losses),
            ]
        return made

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """The cluster, and how late gradients are."""
        ups = [f"{stages}: {_speedup(found, stages):.2f}" for stages in STAGES]
        late = ", ".join(str(_how(s).delay(0)) for s in STAGES)
        return [
            f"One host in the simulator; a minibatch computes {RATIO:,.0f} times as long as its "
            "activations take from one device to the next (published network, PCIe 2.0, our "
            "assumption of a minibatch of 256).",
            f"Gradients of the lowest stage are late by {late} minibatches with 1, 2, 4 and 8 "
            "stages. Layers are not divided: stages are as even as nine layers allow, by counted "
            "operations.",
            f"Models are evaluated {EVALUATIONS} times in a run; the pipeline runs empty before.",
            "Throughput relative to one device, by stages: " + "; ".join(ups) + ".",
            "Rows with 'batch x 4' have minibatches four times as large, at twice the rates.",
        ]


def _speedup(found: Found, stages: int) -> float:
    """Return throughput relative to one device; 0 if there is none."""
    alone = throughput(found[_arm(1)])
    return throughput(found[_arm(stages)]) / alone if alone > 0 else 0.0


def _how(stages: int) -> Pipeline:
    return Pipeline(stages=stages)


def _arm(stages: int) -> str:
    return f"pipeline S={stages}"
