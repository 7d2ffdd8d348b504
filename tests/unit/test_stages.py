"""How a model is cut into stages, and what `hocket split` says of it."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hocket.cli.main import main
from hocket.errors import ConfigError, TaskError
from hocket.models import DNN, PNorm, stages
from hocket.models.partial import partially
from hocket.models.stages import balanced, check_cut, layers_of
from hocket.record.tensor_file import TensorFile, width


def slowest(costs: list[float], cut: tuple[int, ...]) -> float:
    return max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *cut, len(costs)]))


def allowed(cut: tuple[int, ...], trained: list[bool]) -> bool:
    return all(any(trained[a:b]) for a, b in itertools.pairwise([0, *cut, len(trained)]))


def test_the_cut_is_as_good_as_any() -> None:
    """Against all cuts there are."""
    rng = random.Random(0)
    for _ in range(200):
        num_layers = rng.randint(1, 8)
        costs = [rng.choice([0.0, 1.0, 1.0, 2.0, rng.random()]) for _ in range(num_layers)]
        trained = [rng.random() < 0.7 for _ in range(num_layers)]
        for num_stages in range(1, max(1, sum(trained)) + 1):
            every = itertools.combinations(range(1, num_layers), num_stages - 1)
            good = [cut for cut in every if allowed(cut, trained)]
            cut = balanced(costs, trained, num_stages)
            if not any(trained):
                assert cut == ()
                continue
            assert cut in good
            assert slowest(costs, cut) == pytest.approx(min(slowest(costs, c) for c in good))


def test_what_costs_nothing_stays_with_the_layer_before() -> None:
    assert balanced([1.0, 0.0, 1.0, 0.0], [True, False, True, False], 2) == (2,)


def test_too_many_stages_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 layers with parameters cannot be cut into 3 stages"):
        balanced([1.0, 1.0, 1.0], [True, False, True], 3)


def nested() -> nn.Sequential:
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    return nn.Sequential(nn.Linear(3, 4), block, nn.Sequential(nn.BatchNorm1d(4)), nn.Linear(4, 2))


def test_sequences_inside_sequences_are_layers_too() -> None:
    layers = layers_of(nested())
    assert [layer.name for layer in layers] == ["0", "1.0", "1.1", "2.0", "3"]
    assert [layer.num_trained for layer in layers] == [16, 20, 0, 8, 10]


def test_what_is_left_keeps_its_name_and_does_the_same() -> None:
    whole, x = nested().eval(), torch.randn(5, 3)
    parts = [nested().eval() for _ in range(3)]
    held = stages.stages_of((1, 3), 5)
    for part, kept in zip(parts, held, strict=True):
        part.load_state_dict(whole.state_dict())
        stages.keep_only_(part, kept)
        x_before = x
        x = part(x)
        assert x is not x_before
    names = [list(part.state_dict()) for part in parts]
    assert names[0] == ["0.weight", "0.bias"]
    assert [name for some in names for name in some] == list(whole.state_dict())
    torch.manual_seed(0)
    torch.testing.assert_close(parts[2](parts[1](parts[0](y := torch.randn(5, 3)))), whole(y))


class Shuffled(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def shared() -> nn.Sequential:
    one = nn.Linear(3, 3)
    return nn.Sequential(one, nn.ReLU(), one)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.LSTM(2, 2), r"it is a LSTM \(of none\)"),
        (Shuffled(nn.Linear(2, 2)), r"it is a Shuffled"),
    ],
)
def test_what_is_no_sequence_is_refused(model: nn.Module, said: str) -> None:
    with pytest.raises(TaskError, match=f"cannot be cut into stages: {said}"):
        layers_of(model)


def test_a_parameter_of_two_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="layers '0' and '2' share the parameter 'weight'"):
        layers_of(shared())


def test_an_own_layer_of_two_outputs_is_refused() -> None:
    model = nn.Sequential(nn.LSTM(2, 2), nn.Linear(2, 2))
    with pytest.raises(TaskError, match=r"its layer '0' \(LSTM\) returns a tuple"):
        stages.profile(model, torch.randn(4, 3, 2), stages.counted)


def test_a_cut_that_was_given_is_looked_at() -> None:
    layers = layers_of(nested())
    check_cut((1, 3), layers, 3)
    for cut, said in (
        ((1,), "makes 2 stages, and strategy.stages is 3"),
        ((3, 1), "must be ascending numbers of layers between 1 and 4"),
        ((0, 1), "must be ascending"),
        ((2, 3), r"leaves stage 2 \(layers 2 to 2\) without parameters"),
    ):
        with pytest.raises(ConfigError, match=said):
            check_cut(cut, layers, 3)


def test_seconds_are_the_middle_of_several_after_one_to_warm_up() -> None:
    ticks = iter([0.0, 9.0, 10.0, 11.0, 20.0, 22.0, 30.0, 33.0, 40.0, 44.0])
    calls: list[int] = []
    cost = stages.measured(lambda: next(ticks))
    assert cost(lambda: calls.append(1)) == 3.0  # of 9, 1, 2, 3 and 4
    assert len(calls) == 1 + stages.REPEATS


def test_operations_are_those_of_matrix_products() -> None:
    found = stages.profile(nested(), torch.randn(10, 3), stages.counted)
    # 2 operations for each of rows x inputs x outputs, forward, for weights, and for the input.
    assert found.costs == [2 * 2 * 10 * 12, 3 * 2 * 10 * 16, 0, 0, 3 * 2 * 10 * 8]
    assert found.bytes_out == [160, 160, 160, 160, 80]


def test_a_balance_by_a_clock_of_ones_own() -> None:
    """Injected times decide the cut: the last layer is slow here."""
    seconds = iter([1.0, 1.0, 0.0, 1.0, 3.0])
    found = stages.profile(nested(), torch.randn(10, 3), lambda work: next(seconds))
    assert balanced(found.costs, [True, True, False, True, True], 2) == (4,)


# ------------------------------------------------------------------ the command


def test_hocket_split(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["split", "synthetic", "--stages", "2", "--count", "--set", "task.num_frames=2000"]
    assert main([*asked, "--set", "model.layers=3", "--set", "model.width=64"]) == 0
    told = capsys.readouterr().out
    assert "7 layers in 2 stages" in told
    assert "--set strategy.stages=2 --set strategy.cut=[4]" in told
    assert main([*asked, "--cut", "2"]) == 0
    assert "strategy.cut=[2]" in capsys.readouterr().out
    for more, said in (
        (["--cut", "2,4"], "makes 3 stages"),
        (["--cut", "x"], "--cut takes numbers of layers"),
        (["--set", "model.name=lstm"], "is a LSTMNetwork"),
    ):
        assert main([*asked, *more]) == 2
        assert said in capsys.readouterr().err


# ------------------------------------------------------------------ one tensor after the other


def test_a_file_is_written_one_tensor_after_the_other(tmp_path: Path) -> None:
    tensors: dict[str, torch.Tensor] = {
        "count": torch.tensor(3),
        "double": torch.randn(3, dtype=torch.float64),
        "w": torch.randn(3, 5),
        "none": torch.zeros(0, 4),
        "half": torch.randn(3).half(),
        "flags": torch.tensor([True, False, True]),
    }
    facts: list[Any] = [[name, str(t.dtype), list(t.shape)] for name, t in tensors.items()]
    facts.sort(key=lambda fact: -width(fact))
    file = TensorFile(tmp_path / "model.safetensors", facts)
    for name, _, _ in facts:
        file.add(tensors[name])
    file.close()
    read = load_file(tmp_path / "model.safetensors")
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


# ------------------------------------------------------------------ built in part


def seeded(build: Any) -> Any:
    def make() -> nn.Sequential:
        torch.manual_seed(3)
        made: nn.Sequential = build()
        return made

    return make


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(16, 5), nn.LayerNorm(5),
        nn.Linear(5, 2),
    )  # fmt: skip


def looking() -> nn.Sequential:
    first = nn.Linear(3, 3)
    assert float(first.weight.detach().abs().sum()) > 0  # no value is there to look at
    return nn.Sequential(first, nn.Linear(3, 3), nn.Linear(3, 3))


@pytest.mark.parametrize(
    "build",
    [
        lambda: DNN(layers=3, width=17, activation="sigmoid", dropout=0.1).build(5, 7),
        lambda: DNN(layers=3, width=17).build(5, 7),
        lambda: PNorm(layers=2, width=40).build(5, 7),
        nested,
        convolutional,
    ],
)
def test_a_part_has_the_values_of_the_whole_and_the_rest_no_memory(build: Any) -> None:
    whole = layers_of(seeded(build)())
    for kept in (slice(0, 1), slice(1, 4), slice(3, None)):
        part = layers_of(partially(seeded(build), kept))
        for number, (one, other) in enumerate(zip(part, whole, strict=True)):
            for p, q in zip(one.module.parameters(), other.module.parameters(), strict=True):
                if number in range(len(whole))[kept]:
                    assert torch.equal(p, q)
                else:
                    assert p.is_meta


def test_a_model_that_looks_at_its_values_is_built_as_a_whole() -> None:
    whole, part = seeded(looking)(), partially(seeded(looking), slice(1, 2))
    for p, q in zip(part.parameters(), whole.parameters(), strict=True):
        assert torch.equal(p, q)
