"""Lightning's loop under a strategy is the plain loop under the same strategy, bit for bit.

`make test-engines` installs Lightning; where it is absent these tests are skipped.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from hocket import HocketError

lightning = pytest.importorskip("lightning", reason="no Lightning: see `make test-engines`")
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
]
EXAMPLE = Path(__file__).parents[2] / "examples" / "lightning.py"

LOAD_EXAMPLE = """
import importlib.util, sys, torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

spec = importlib.util.spec_from_file_location("moons", sys.argv[1])
moons = importlib.util.module_from_spec(spec)
spec.loader.exec_module(moons)
import hocket
"""

# What the example does, without Lightning's Trainer. Lightning shuffles what it divides.
PLAIN = f"""{LOAD_EXAMPLE}
model = moons.Moons()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
with hocket.attach(model, optimizer, strategy=sys.argv[2], lr="sequential") as dist:
    sampler = DistributedSampler(moons.data(0), dist.size, dist.rank)
    loader = DataLoader(moons.data(0), batch_size=32, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, label in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model.net(x), label).backward()
            dist.step(len(x))
if dist.rank == 0:
    torch.save(model.net.state_dict(), sys.argv[3])
"""

SYNCED = f"""{LOAD_EXAMPLE}
class Synced(moons.Moons):
    def training_step(self, batch, number):
        loss = super().training_step(batch, number)
        self.log("loss", loss, sync_dist=True)
        return loss

trainer = moons.lightning.Trainer(
    strategy=moons.HocketStrategy(), accelerator="cpu", devices=1, max_epochs=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Synced(), DataLoader(moons.data(0), batch_size=32))
"""


def launched(learners: int, *command: object) -> subprocess.CompletedProcess[str]:
    head = [sys.executable, "-m", "hocket.launch", "--learners", str(learners)]
    return subprocess.run(
        [*head, *map(str, command)], capture_output=True, text=True, timeout=180, check=False
    )


@pytest.mark.parametrize("strategy", ["kstep", "dpsgd", "bmuf"])
def test_two_processes_give_the_same_model_as_attach(strategy: str, tmp_path: Path) -> None:
    ours, plain = tmp_path / "lightning.pt", tmp_path / "plain.pt"
    done = launched(2, EXAMPLE, "--strategy", strategy, "--save", ours)
    assert done.returncode == 0, done.stderr
    reached = [float(x) for x in re.findall(r"rank \d of 2: accuracy ([\d.]+)", done.stdout)]
    assert len(reached) == 2
    assert min(reached) > 0.8
    script = tmp_path / "loop.py"
    script.write_text(PLAIN)
    done = launched(2, script, EXAMPLE, strategy, plain)
    assert done.returncode == 0, done.stderr
    a, b = torch.load(ours), torch.load(plain)
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_a_metric_of_all_learners_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "synced.py"
    script.write_text(SYNCED)
    done = launched(2, script, EXAMPLE)
    assert done.returncode != 0
    assert "sync_dist=True) has no effect under HocketStrategy" in done.stderr


# ------------------------------------------------------------------ one learner, in this process


@pytest.fixture(scope="module")
def moons() -> ModuleType:
    spec = importlib.util.spec_from_file_location("moons", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fit(moons: ModuleType, model: Any, **more: Any) -> None:
    """Two epochs, alone, every minibatch in the loader's order."""
    trainer = lightning.Trainer(
        strategy=moons.HocketStrategy("kstep", frames=lambda batch: len(batch[0])),
        accelerator="cpu", devices=1, max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **more,
    )  # fmt: skip
    trainer.fit(model, DataLoader(moons.data(0), batch_size=32))


def test_lightnings_accumulation_clipping_and_schedule_are_those_of_a_plain_loop(
    moons: ModuleType,
) -> None:
    def configured(self: Any) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)]

    scheduled = type("Scheduled", (moons.Moons,), {"configure_optimizers": configured})
    model, twin = scheduled(), scheduled()
    fit(moons, model, accumulate_grad_batches=3, gradient_clip_val=0.05)
    (optimizer,), (schedule,) = twin.configure_optimizers()
    for _ in range(2):
        batches = list(DataLoader(moons.data(0), batch_size=32))
        for number, (x, label) in enumerate(batches, start=1):
            loss = nn.functional.cross_entropy(twin.net(x), label)
            (loss / 3).backward()  # type: ignore[no-untyped-call]
            if number % 3 == 0 or number == len(batches):
                nn.utils.clip_grad_norm_(twin.parameters(), 0.05)
                optimizer.step()
                optimizer.zero_grad()
        schedule.step()
    for got, expected in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(got, expected)


def two(model: Any) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.AdamW(model.parameters())]


@pytest.mark.parametrize(
    ("configured", "automatic", "says"),
    [
        (two, True, "exactly one optimizer.* SGD, AdamW: let one"),
        (two, False, "exactly one optimizer.* SGD, AdamW: let one"),
        (lambda m: [{"optimizer": o} for o in two(m)], True, "SGD, AdamW"),
        (lambda m: None, True, "exactly one optimizer.* none: let one"),
        (lambda m: two(m)[0], False, "leave automatic_optimization on"),
    ],
    ids=["two", "two by hand", "two in tables", "none", "one by hand"],
)
def test_anything_but_one_optimizer_is_refused_by_name(
    moons: ModuleType, configured: Any, automatic: bool, says: str
) -> None:
    model = type("Other", (moons.Moons,), {"configure_optimizers": configured})()
    model.automatic_optimization = automatic
    with pytest.raises(HocketError, match=says):
        fit(moons, model)
