"""Training speed of a small LSTM: Hocket against a plain PyTorch loop of the same model.

    python benchmarks/recurrent.py [--repeats 5] [--steps 40] [--bidirectional]
    python benchmarks/recurrent.py --profile

Contenders run in processes of their own, shuffled anew for every repeat; a ratio is taken within a
repeat. The model has 2 layers of 128 cells, 40 inputs and 500 classes; minibatches are 64 chunks of
21 frames and their context; SGD with momentum, gradients clipped at 1, one thread. The plain loop
is torch's own `nn.LSTM`, `clip_grad_norm_` and `torch.optim.SGD` on the same minibatches. Goal: one
learner >= 1.0 of it, by processor time.

`--profile`: where the time of a minibatch goes, what padding would cost without bucketing, and
torch's packed sequences against ours.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

sys.path.insert(0, str(Path(__file__).parents[1]))

import hocket
from benchmarks.contenders import Clock, ticks
from hocket.data.chunks import Chunks
from hocket.models.streaming import Streaming
from hocket.optim.natural_gradient.preconditioning import NaturalGradientOptions

WARM_UP = 4
FRAMES, CLASSES, INPUTS = 1344, 500, 40


class Ticking(hocket.SyntheticChunks):
    """Notes the time whenever a training minibatch is taken."""

    folder = ""

    def load(self, split: str, item: hocket.Item, epoch: int) -> Chunks:
        """Note the time, then gather."""
        if split == "train":
            if "_clock" not in self.__dict__:
                self.__dict__["_clock"] = Clock(os.environ["BENCHMARK_FOLDER"])
            self.__dict__["_clock"].tick()
        return super().load(split, item, epoch)


def task(steps: int, bidirectional: bool) -> Ticking:
    return Ticking(
        num_frames=FRAMES * steps,
        dev_frames=500,
        batch_frames=FRAMES,
        num_classes=CLASSES,
        num_features=INPUTS,
        model=hocket.LSTM(bidirectional=bidirectional),
    )


class Plain(nn.Module):
    """The same network as one writes it."""

    def __init__(self, model: hocket.LSTM, inputs: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            inputs, model.cells, model.layers, batch_first=True, bidirectional=model.bidirectional
        )
        self.output = nn.Linear(model.cells * (2 if model.bidirectional else 1), classes)

    def forward(self, x: torch.Tensor, scored: slice) -> torch.Tensor:
        """Return scores; what only fills the state costs no output layer, as in ours."""
        scores: torch.Tensor = self.output(self.lstm(x)[0][:, scored])
        return scores


def plain_loop(job: Ticking, steps: int) -> None:
    assert isinstance(job.model, hocket.LSTM)
    model = Plain(job.model, INPUTS, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    ahead, items = job.model.reach[1], job.items("train")
    for step in range(steps):
        batch = job.load("train", items[step % len(items)], step // len(items))
        first = batch.left + ahead
        width = batch.x.shape[1] - batch.left - batch.right
        kept = torch.tensor(batch.counts)[:, None] > torch.arange(width)
        labels = torch.full(kept.shape, -100)  # what cross_entropy ignores
        labels[kept] = batch.labels
        scores = model(batch.x, slice(first, first + width))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def hocket_run(job: Ticking, steps: int, learners: int, strategy: str) -> None:
    hocket.train(
        job,
        strategy=strategy,
        learners=learners,
        optimizer=hocket.SGD(lr=0.01, momentum=0.9, clip_norm=1.0),
        schedule={"epochs": 1},
        progress=False,
        tensorboard=False,
        evaluate_every=1.0,
        checkpoint_every=1.0,
    )


CONTENDERS: dict[str, Callable[[Ticking, int], None]] = {
    "plain": plain_loop,
    "hocket-1": partial(hocket_run, learners=1, strategy="sequential"),
    "hocket-kstep-2": partial(hocket_run, learners=2, strategy="kstep"),
    "hocket-allreduce-2": partial(hocket_run, learners=2, strategy="allreduce"),
}


def speed(folder: Path) -> tuple[float, float]:
    """Frames per second by the clock, and of a learner's processor time."""
    wall, processor = 0.0, []
    for times in ticks(str(folder)):
        frames = FRAMES * (len(times) - WARM_UP - 1)
        wall += frames / float(times[-1, 0] - times[WARM_UP, 0])
        processor.append(frames / float(times[-1, 1] - times[WARM_UP, 1]))
    return wall, statistics.mean(processor)


def contend(name: str, steps: int, bidirectional: bool, folder: Path) -> tuple[float, float]:
    folder.mkdir()
    more = ["--bidirectional"] if bidirectional else []
    subprocess.run(
        [sys.executable, __file__, "--contender", name, "--steps", str(steps), *more],
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "BENCHMARK_FOLDER": str(folder)},
        stdout=subprocess.DEVNULL,
    )
    return speed(folder)


def compare(args: argparse.Namespace, root: Path) -> None:
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in args.only}
    numbers: Iterator[int] = count()
    for repeat in range(args.repeats):
        order = ["plain", *(n for n in args.only if n != "plain")]
        random.Random(repeat).shuffle(order)
        found = {
            name: contend(name, args.steps, args.bidirectional, root / str(next(numbers)))
            for name in order
        }
        base = found["plain"]
        for name in ratios:
            ratios[name].append((found[name][0] / base[0], found[name][1] / base[1]))
        shown = "  ".join(f"{n} {w:,.0f} ({p:,.0f})" for n, (w, p) in found.items())
        print(f"repeat {repeat + 1}: {shown} frames/s (of processor time)", flush=True)
    for name, values in ratios.items():
        for what, column in zip(
            ("clock", "processor time"), zip(*values, strict=True), strict=True
        ):
            low, high = min(column), max(column)
            print(f"{name} / plain, {what}: {statistics.median(column):.3f} ({low:.3f}-{high:.3f})")


# ---------------------------------------------------------------------------- profile


def milliseconds(work: Callable[[], Any], repeats: int = 8) -> float:
    """Processor time, the least of some repeats."""
    work()
    found = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return 1000 * min(found)


def profile(args: argparse.Namespace) -> None:
    os.environ.setdefault("BENCHMARK_FOLDER", str(args.folder))
    job = task(20, args.bidirectional)
    torch.manual_seed(0)
    model: Any = job.build_model()
    item = job.items("train")[0]
    batch = job.load("train", item, 0)
    parameters = list(model.parameters())

    def whole() -> None:
        loss = job.loss(model, batch)
        torch.autograd.grad(loss.total / loss.frames, parameters)

    stack = partial(model.stack, batch.x, None, None)
    print(f"gather {milliseconds(lambda: job.load('train', item, 0)):.1f} ms")
    print(f"LSTM layers, forward {milliseconds(lambda: stack()):.1f} ms")
    print(f"all, forward {milliseconds(lambda: job.loss(model, batch)):.1f} ms")
    print(f"all, forward and backward {milliseconds(whole):.1f} ms")
    with torch.autograd.profiler.profile() as found:
        whole()
    print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=8))
    tapped = NaturalGradientOptions().tap(model)

    def natural() -> None:
        whole()
        tapped.settle()

    print(f"the same with natural gradient {milliseconds(natural):.1f} ms")
    scoring()
    packing(args)


def scoring() -> None:
    """Scores of a minute of speech, in pieces of 10 s, without the search for words."""
    for model in (hocket.LSTM(), hocket.TDNN(), hocket.CLDNN()):
        network: Any = model.network(INPUTS, CLASSES).eval()
        x = torch.randn(6000, INPUTS)

        def whole(network: Any = network, x: torch.Tensor = x) -> None:
            stream = Streaming(network)
            for piece in torch.split(x, 1000):
                stream.push(piece)
            stream.finish()

        print(f"scores by {model.name}: {60_000 / milliseconds(whole, 3):,.0f} x real time a core")


def padded_share(counts: Sequence[int]) -> float:
    """The share of a minibatch that is padding."""
    return 1 - sum(counts) / (max(counts) * len(counts))


def packing(args: argparse.Namespace) -> None:
    """Whole utterances: the padding with and without bucketing, and the time of both ways."""
    job = hocket.SyntheticChunks(chunk_frames=0, batch_frames=3000, num_frames=120_000)
    batches = [job.load("train", item, 0) for item in job.items("train")]
    bucketed = statistics.mean(padded_share(b.counts) for b in batches)
    lengths = [n for b in batches for n in b.counts]
    random.Random(0).shuffle(lengths)
    groups = [lengths[i : i + 12] for i in range(0, len(lengths), 12)]
    print(f"padding: bucketed {bucketed:.1%}, at random "
          f"{statistics.mean(map(padded_share, groups)):.1%}")  # fmt: skip
    layer = hocket.LSTM(layers=1, bidirectional=True).network(40, 10).stack.layers[0]
    x, some = torch.randn(12, 300, 40), [300, 290, 280, 270, 260, 250, 240, 230, 220, 210, 200, 190]
    own: Any = layer
    twin: Any = nn.LSTM(40, 128, batch_first=True, bidirectional=True)
    packed = pack_padded_sequence(x, torch.tensor(some), batch_first=True)

    def gradient(layer: nn.Module, y: torch.Tensor) -> None:
        torch.autograd.grad(y.sum(), list(layer.parameters()))

    ours = milliseconds(lambda: gradient(own, own(x, some, None)[0]), 3)
    theirs = milliseconds(lambda: gradient(twin, twin(packed)[0].data), 3)
    print(f"both directions, padded: ours {ours:.0f} ms, torch's packed sequence {theirs:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--bidirectional", action="store_true")
    parser.add_argument("--only", nargs="+", default=[n for n in CONTENDERS if n != "plain"])
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.contender:
        CONTENDERS[args.contender](task(args.steps, args.bidirectional), args.steps)
        return
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        args.folder = folder
        profile(args) if args.profile else compare(args, Path(folder))


if __name__ == "__main__":
    main()
