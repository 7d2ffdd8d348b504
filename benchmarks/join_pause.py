"""How long the others pause when learners join.

    python benchmarks/join_pause.py [--repeats 5] [--learners 3] [--join 1]

Learners train a small network, others are asked to join, and every learner that was there notes
when it takes a minibatch. The pause is the longest time between two minibatches of any of them,
minus the usual time: from the meeting, with its checkpoint, to the first minibatch of the new
group. The start of the newcomers' processes is not part of it: the others work on meanwhile.
Goal: < 0.5 s.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import hocket
from hocket import api
from hocket.experiment import Experiment, RuntimeOptions
from hocket.runtime.launch import joining

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.contenders import ticks
from benchmarks.loss_pause import Small

EPOCHS, WARM_S = 12, 1.0


def join_when_warm(run: Path, count: int, joined: list[int]) -> None:
    """Wait until the run is under way, then ask it to take learners in."""
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
        time.sleep(0.05)
    time.sleep(WARM_S)
    joined += joining.ask(run, count, 60.0)


def pause(learners: int, count: int) -> tuple[float, float]:
    """Return the pause and the usual time between two minibatches."""
    with tempfile.TemporaryDirectory() as folder:
        run, clocks, joined = Path(folder) / "run", Path(folder) / "ticks", list[int]()
        clocks.mkdir()
        experiment = Experiment(
            Small(str(clocks)),
            hocket.AllReduceSGD(),
            hocket.SGD(lr=1e-6),
            schedule=hocket.Constant(epochs=EPOCHS),
            options=RuntimeOptions(
                learners=learners,
                tensorboard=False,
                log_every=0.1,
                evaluate_every=float(EPOCHS),
                checkpoint_every=float(EPOCHS),
            ),
        )
        beside = threading.Thread(target=join_when_warm, args=(run, count, joined), daemon=True)
        beside.start()
        api.run_real(experiment, run, progress=False)
        beside.join(60)
        assert len(joined) == count, "nobody has joined: raise EPOCHS"
        times = [noted[:, 0] for noted in ticks(str(clocks))]
        old = sorted(times, key=lambda t: t[0])[:learners]
        first = min(t[0] for t in sorted(times, key=lambda t: t[0])[learners:])
        gaps = [np.diff(t[(t > first - 2.0) & (t < first + 1.0)]) for t in old]
        usual = statistics.median(float(g) for t in old for g in np.diff(t))
        return max(float(g.max()) for g in gaps) - usual, usual


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--learners", type=int, default=3)
    parser.add_argument("--join", type=int, default=1)
    args = parser.parse_args()
    pauses = []
    for _ in range(args.repeats):
        lost, usual = pause(args.learners, args.join)
        pauses.append(lost)
        print(f"{lost * 1e3:7.1f} ms  (a minibatch takes {usual * 1e3:.1f} ms)", flush=True)
    print(
        f"pause at a joining, {args.learners} learners and {args.join}: median "
        f"{statistics.median(pauses) * 1e3:.1f} ms ({min(pauses) * 1e3:.1f} to "
        f"{max(pauses) * 1e3:.1f} ms)"
    )


if __name__ == "__main__":
    main()
