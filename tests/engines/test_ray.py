"""Learners on a Ray cluster of several nodes on this machine (`make test-engines` installs Ray)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.company import EPOCH_FRAMES, EPOCHS, events, release, until
from helpers.runs import same_model
from safetensors.torch import load_file

from hocket.cli.main import main as hocket_command
from hocket.runtime.launch import joining

ray = pytest.importorskip("ray", reason="no ray: see `make test-engines`")

ROOT = Path(__file__).parents[2]
PATHS = [str(ROOT / "src"), str(ROOT / "tests")]
NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 * 2**20}

pytestmark = pytest.mark.timeout(240)


def patiently(begin: Callable[[], Any]) -> Any:
    """Ray gives a node 30 seconds to start, which is not enough where everybody is at work."""
    for _ in range(2):
        with suppress(Exception):
            return begin()
    return begin()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster whose head takes no learners, and two nodes that do."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(PATHS))
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path_factory.mktemp("ray") / "token"))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_agent_register_timeout_ms", "100000")
        patch.setenv("OMP_NUM_THREADS", "1")
        head = {"num_cpus": 0, "include_dashboard": False}
        cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
        try:
            for _ in range(2):
                patiently(lambda: cluster.add_node(**NODE))
            patch.setenv("RAY_ADDRESS", cluster.address)
            yield cluster
        finally:
            cluster.shutdown()


def test_a_run_on_ray_is_the_simulators(nodes: Any, tmp_path: Path) -> None:
    """As a user starts it: a command, three learners on two nodes."""
    real, simulated = tmp_path / "real", tmp_path / "simulated"
    chosen = ["synthetic", "--strategy", "kstep", "--learners", "3", "--epochs", "1", "--quiet"]
    chosen += ["--set", "task.num_frames=12000"]
    done = subprocess.run(
        [sys.executable, "-m", "hocket", "train", *chosen, "--engine", "ray", "--out", str(real)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert hocket_command(["simulate", *chosen, "--out", str(simulated)]) == 0
    one, other = (load_file(run / "model.safetensors") for run in (real, simulated))
    assert same_model(one, other)
    engine = json.loads((real / "config.json").read_text())["versions"]["engine"]
    assert engine == f"Ray {ray.__version__}, 2 nodes"
    status = json.loads((real / "status.json").read_text())
    assert {learner["host"] for learner in status["learners"]} == {socket.gethostname()}
    assert not (real / ".join").exists()


DRIVER = """
import sys
from pathlib import Path
from hocket import api, config
from hocket.runtime.launch.on_ray.cluster import RayCluster, Resources
from hocket.strategies import STRATEGIES
from helpers.company import held

out, name, learners = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with RayCluster.connected(Resources(cpus=1.0)) as cluster:
    strategy = config.choose(STRATEGIES, {"name": name}, "strategy", name)
    api.run_real(held(out, strategy, learners), out, progress=False, cluster=cluster)
"""


@contextmanager
def driver(run: Path, strategy: str, learners: int) -> Iterator[None]:
    """A run on Ray, in a process of its own, that is held until the block ends."""
    command = [sys.executable, "-c", DRIVER, str(run), strategy, str(learners)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as started:
        try:
            until(lambda: events(run, "train") or started.poll() is not None)
            yield
            release(run)
            _, said = started.communicate(timeout=100)
            assert started.returncode == 0, said.decode()
        finally:
            started.kill()


def summary(run: Path) -> dict[str, Any]:
    (found,) = events(run, "summary")
    assert found["frames"] + found["discarded_frames"] == EPOCHS * EPOCH_FRAMES
    return found


@pytest.mark.parametrize("strategy", ["bmuf", "adpsgd"])
def test_a_node_is_lost_and_its_learners_come_back(
    strategy: str, nodes: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with driver(run, strategy, 4):
        nodes.remove_node(nodes.list_all_nodes()[-1], allow_graceful=False)
        until(lambda: len(events(run, "lost")) == 2)
        patiently(lambda: nodes.add_node(**NODE))
        until(lambda: {e["rank"] for e in events(run, "joined")} == {4, 5})
    learners = summary(run)["learners"]
    lost = [one["rank"] for one in learners if one["lost_s"] is not None]
    assert lost in ([0, 1], [2, 3]), "neighbours on one node"
    assert [one["rank"] for one in learners] == [0, 1, 2, 3, 4, 5]
    assert all(one["frames"] > 0 for one in learners if one["lost_s"] is None)
    assert all("its host" in e["reason"] for e in events(run, "lost"))


def test_more_learners_are_let_in(nodes: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with driver(run, "bmuf", 2):
        assert joining.ask(run, 2, 100.0) == [2, 3]
    learners = summary(run)["learners"]
    assert [one["rank"] for one in learners] == [0, 1, 2, 3]
    assert all(one["frames"] > 0 and one["lost_s"] is None for one in learners)


TRAINER = """
import json, sys
import ray, torch, hocket
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def loop(config):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hocket.attach(model, optimizer, strategy="kstep", timeout_s=60.0) as dist:
        noise = torch.Generator().manual_seed(dist.rank)
        for _ in range(20):
            x = torch.randn(8, 4, generator=noise)
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            dist.step(8)
    told = [dist.size, [p.tolist() for p in model.parameters()]]
    with open(f"{config['out']}/{dist.rank}.json", "w") as file:
        json.dump(told, file)
    ray.train.report({})

out = sys.argv[1]
ray.init(address="auto", log_to_driver=False)
TorchTrainer(
    loop,
    train_loop_config={"out": out},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=out + "/storage"),
).fit()
"""


def test_attach_inside_somebodys_torch_trainer(nodes: Any, tmp_path: Path) -> None:
    """Its workers have RANK, MASTER_PORT and an initialised torch.distributed."""
    pytest.importorskip("pyarrow", reason="no ray[train]: see `make test-engines`")
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert told[0][0] == 2
    assert told[0] == told[1], "two separate models"
