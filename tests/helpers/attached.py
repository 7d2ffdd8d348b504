"""A plain training loop under `hocket.attach`; run by tests as a script on several learners.

python -m hocket.launch --learners 2 attached.py OUT '{"strategy": {"name": "kstep"}}'
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

import hocket
from helpers.strategies import PushPull, Striped
from helpers.tasks import acoustic
from helpers.unruly import Hearsay
from hocket.core.learner import Learner
from hocket.core.strategy import State
from hocket.experiment import Experiment
from hocket.runtime.launch import tokens
from hocket.runtime.real.faults import Fault


class StripesOnly(Striped):
    """A strategy whose only collective carries no news of who is still at work."""

    async def run(self, me: Learner, state: State) -> State:
        while (await me.boundary(state)).go_on:
            grad = await me.gradient(state.params)
            stripes = await me.all_to_all(list(grad.vector.chunk(me.size)))
            state.params.add_(torch.cat(stripes).mean(), alpha=-0.01)
            await me.commit()
        return state


OWN = {"push-pull": PushPull(), "stripes": StripesOnly(), "hearsay": Hearsay()}


def task() -> Any:
    return acoustic(num_frames=64 * 24)


def order(rank: int, size: int, epochs: int = 2) -> list[tuple[int, int]]:
    """Epoch and item of every draw this learner would have made from the pool."""
    pool = Experiment(task(), hocket.Sequential(), schedule=hocket.Constant(epochs=epochs)).pool()
    return [(e, int(i)) for e in range(epochs) for i in pool.order(e)[rank::size]]


def build() -> torch.nn.Module:
    from hocket.core.numerics import stable_seed

    job = task()
    job.prepare()
    torch.manual_seed(stable_seed(0, "model"))
    return job.build_model()  # type: ignore[no-any-return]


def main(out: Path, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    job = task()
    job.prepare()
    model = build()
    if rank:
        torch.nn.init.zeros_(next(model.parameters()))  # all begin with the first one's
    optimizer = torch.optim.SGD(model.parameters(), lr=options.get("rate", 0.01), momentum=0.9)
    strategy = options["strategy"]
    steps = order(rank, size)[: options.get("steps", {}).get(str(rank))]
    first = options.get("resume_at", 0)
    dist = hocket.attach(
        model,
        optimizer,
        strategy=OWN.get(strategy.get("name"), strategy),
        codec=options.get("codec", "float32"),
        lr=options.get("lr", "own"),
        faults=tuple(Fault(**f) for f in options.get("faults", [])),
        timeout_s=options.get("timeout_s", 60.0),
    )
    with dist:
        if first:
            dist.load_state_dict(torch.load(out / f"state-{rank}.pt", weights_only=True))
        for number, (epoch, index) in enumerate(steps[first:], start=first):
            if number == options.get("save_at"):
                torch.save(dist.state_dict(), out / f"state-{rank}.pt")
            item = job.items("train")[index]
            loss = job.loss(model, job.load("train", item, epoch))
            optimizer.zero_grad()
            (loss.total / loss.frames).backward()
            dist.step(loss.frames)
    torch.save(model.state_dict(), out / f"model-{rank}.pt")
    facts = {"alive": dist.alive, "frames": dist.frames, "lr": optimizer.param_groups[0]["lr"]}
    facts["mixes"] = getattr(dist._runtime.state, "mixes", None)
    (out / f"facts-{rank}.json").write_text(json.dumps(facts))


def learner(
    rank: int, size: int, store: str, token: bytes, out: Path, options: dict[str, Any]
) -> None:
    """Run one learner as a launcher would have started it."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "HOCKET_STORE": store}
    os.environ[tokens.PIPE] = str(tokens.into_pipe(tokens.Token(token)))
    try:
        main(out, options)
    except hocket.HocketError as error:
        (out / f"error-{rank}.txt").write_text(str(error))
        raise


def linear(rank: int, size: int, port: int, out: Path, options: dict[str, Any]) -> None:
    """The smallest loop: one layer, gradients cleared at the end of a step, rank 0 the master."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.pop("HOCKET_STORE", None)
    if "tokens" in options:
        os.environ[tokens.VALUE] = options["tokens"][rank]
    if options.get("initialise"):  # as Ray, Lightning and many scripts do: the port is then taken
        torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    faults = tuple(Fault(**f) for f in options.get("faults", []))
    strategy = OWN.get(options["strategy"], options["strategy"])
    limit_s = options.get("timeout_s", 60.0)
    with hocket.attach(
        model, optimizer, strategy=strategy, faults=faults, timeout_s=limit_s
    ) as dist:
        for number in range(options["steps"][rank]):
            model(torch.full((4, 16), number + 1.0)).square().mean().backward()
            dist.step(4)
            optimizer.zero_grad()
    torch.save(model.state_dict(), out / f"model-{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
