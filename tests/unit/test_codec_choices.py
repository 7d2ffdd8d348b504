"""Which codec goes with which strategy, what the switches do, and what is counted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.runs import keep_only_first_checkpoint, same_model, simulated
from helpers.tasks import BrokenRow, SteepRow, acoustic
from safetensors.torch import load_file, save_file

from hocket import (
    ASGD,
    BMUF,
    SGD,
    AdaGrad,
    AllReduceSGD,
    BFloat16,
    Cluster,
    Constant,
    Float16,
    Float32,
    Host,
    KStep,
    OneBit,
    Result,
    TopK,
)
from hocket.cli.about import listing
from hocket.cli.main import main
from hocket.codecs import CODECS
from hocket.core.codec import Codec
from hocket.core.flat import Layout
from hocket.core.learner import Learner
from hocket.core.strategy import State
from hocket.errors import ConfigError, NotFiniteError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.record import checkpoint
from hocket.strategies import STRATEGIES

TASK = acoustic()
ONE = OneBit(float_below=4)
OPTIMIZER, SCHEDULE = SGD(lr=0.05, momentum=0.5), Constant(epochs=2)


def run(strategy: object, codec: Codec | str, learners: Cluster | int = 3, **more: Any) -> Result:
    more = {"optimizer": OPTIMIZER, "schedule": SCHEDULE} | more
    return simulated(TASK, strategy, learners, codec=codec, **more)


# ------------------------------------------------------------------ the table


def test_every_strategy_says_what_it_codes_or_why_nothing() -> None:
    for cls in STRATEGIES.values():
        assert (cls.codes is None) == bool(cls.uncoded_because), cls.name
        for codec in (OneBit(), TopK(), Float16(), BFloat16()):
            assert bool(cls.refuses(codec)) == (cls.codes is None)
    assert [name for name, _ in listing.codec_table()] == list(STRATEGIES)
    coded = {name for name, cls in STRATEGIES.items() if cls.codes}
    assert {"allreduce", "kstep", "bmuf", "diloco"} <= coded


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_not_in_the_table_is_refused_with_the_reason(name: str) -> None:
    strategy = STRATEGIES[name]()
    options = RuntimeOptions(learners=min(4, strategy.max_learners or 4))
    assert Experiment(TASK, strategy, options=options)  # float32 goes with everything
    if strategy.codes is None:
        with pytest.raises(ConfigError, match=r"onebit.*does not go with") as caught:
            Experiment(TASK, strategy, codec=OneBit(), options=options)
        assert strategy.uncoded_because in str(caught.value)


@pytest.mark.parametrize("codec", [OneBit(error_feedback=False), TopK(error_feedback=False)])
def test_a_model_is_not_coded_without_feedback(codec: Codec) -> None:
    for strategy in (KStep(), BMUF()):
        with pytest.raises(ConfigError, match="without error feedback"):
            Experiment(TASK, strategy, codec=codec)
    assert Experiment(TASK, AllReduceSGD(), codec=codec)


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["codecs"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in [*CODECS, *STRATEGIES])
    assert main(["codecs", "--pays", "--learners", "2"]) == 0
    shown = capsys.readouterr().out
    assert "| 46 M | 0.1 Gbit/s | 100 ms |" in shown
    assert main(["codecs", "--learners", "2"]) == 2
    assert main(["codecs", "--pays", "--learners", "1"]) == 2


def test_the_page_has_the_table_that_the_command_makes(capsys: pytest.CaptureFixture[str]) -> None:
    main(["codecs", "--pays"])
    made = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    page = (Path(__file__).parents[2] / "docs/codecs.md").read_text()
    assert "\n".join(made) in page


# ------------------------------------------------------------------ switches


def test_every_switch_changes_the_result() -> None:
    base = run(AllReduceSGD(), ONE)
    for codec in (
        OneBit(float_below=4, error_feedback=False),
        OneBit(float_below=4, start_frames=1000),
        OneBit(float_below=20),
        TopK(float_below=4, share=0.1),
    ):
        assert not same_model(base, run(AllReduceSGD(), codec))
    assert not same_model(base, run(AllReduceSGD(double_buffering=True), ONE))


def test_a_start_without_quantisation_is_float32_to_the_bit() -> None:
    plain = run(AllReduceSGD(), "float32")
    whole = 10 * TASK.num_frames
    for strategy in (AllReduceSGD(), KStep(sync_every=3), ASGD(servers=2)):
        late = run(strategy, OneBit(float_below=4, start_frames=whole))
        assert same_model(late, run(strategy, "float32"))
    assert not same_model(plain, run(AllReduceSGD(), OneBit(float_below=4, start_frames=1000)))


def test_feedback_is_what_makes_one_bit_work() -> None:
    losses = {
        name: run(AllReduceSGD(), codec, 4, schedule=Constant(epochs=6)).loss
        for name, codec in (
            ("float", CODECS["float32"]()),
            ("fed back", ONE),
            ("lost", OneBit(float_below=4, error_feedback=False)),
        )
    }
    assert losses["fed back"] < losses["float"] * 1.05
    assert losses["lost"] > losses["fed back"]


def test_adagrad_steps_on_what_was_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """After aggregation: all learners add up the squares of what came off the wire.

    There a column of weights has two values, the means; no learner's own gradient has so few.
    """
    layout, seen = Layout.of(TASK.build_model()), dict[str, list[torch.Tensor]]()
    apply_ = AdaGrad.apply_

    def watched(self: AdaGrad, params: torch.Tensor, g: torch.Tensor, *more: Any) -> None:
        seen.setdefault(codec.name, []).append(g.clone())
        apply_(self, params, g, *more)

    monkeypatch.setattr(AdaGrad, "apply_", watched)
    for codec in (ONE, Float32()):
        result = run(AllReduceSGD(), codec, optimizer=AdaGrad(lr=0.02))
        assert result.accuracy > 0.4
        most = max(
            len(column.unique())
            for g in seen[codec.name]
            for matrix in layout.views(g)
            if matrix.ndim > 1
            for column in matrix
        )
        assert (most == 2) == (codec == ONE)
        for rounds in zip(*[iter(seen[codec.name])] * 3, strict=True):
            assert all(torch.equal(rounds[0], other) for other in rounds[1:])


def test_double_buffering_hides_the_exchange() -> None:
    """With half as long an exchange as a minibatch takes, only half of the time is left."""
    slow = Cluster((Host(count=4, frames_per_s=10_000.0, bandwidth_gbit=0.008),))
    plain, hidden = (
        run(AllReduceSGD(double_buffering=on), "float32", slow) for on in (False, True)
    )
    assert hidden.time_s < 0.9 * plain.time_s
    assert hidden.loss < 1.2 * plain.loss


def test_pushes_are_coded_and_pulls_may_be_half() -> None:
    plain, coded, half = (
        run(
            ASGD(servers=1, half_pulls=pulls),
            codec,
            optimizer=SGD(lr=0.05),
            schedule=Constant(epochs=4),
        )
        for pulls, codec in ((False, "float32"), (False, ONE), (True, ONE))
    )
    pushed = [sum(one.bytes_sent for one in r.learners) for r in (plain, coded, half)]
    pulled = [sum(one.bytes_sent for one in r.attendants) for r in (plain, coded, half)]
    assert pushed[1] == pushed[2] < 0.4 * pushed[0]
    assert pulled[0] == pulled[1]
    assert pulled[2] < 0.7 * pulled[1]
    assert max(coded.loss, half.loss) < 1.05 * plain.loss
    assert not same_model(coded, half)


def test_what_a_push_does_not_say_is_in_the_next() -> None:
    """One learner's pushes to two servers: all decoded is all pushed, less what it keeps."""
    layout = Layout.of(TASK.build_model())
    me = Learner(0, 2, layout=layout, optimizer=SGD(), rate=lambda gain=None: 0.1,
                 rng=random.Random(0), codec=ONE)  # fmt: skip
    coder = ONE.fitted(layout)
    assert coder is not None
    state = State(torch.zeros(layout.size), None, memory=coder.memory())
    assert state.memory is not None
    put_in = decoded = torch.zeros(layout.size, dtype=torch.float64)
    for number in range(20):
        frames = 10.0 + number
        whole = layout.pack(torch.randn(e.shape) for e in layout.entries)
        put_in = put_in + frames * whole.double()
        for place in layout.cut(2):
            part = whole[place.start : place.stop]
            code = me.coded_push(part, place, state, frames)
            found = me.decoded_push(code, place, frames).double() * frames
            decoded = decoded.clone()
            decoded[place.start : place.stop] += found
    rest = put_in - decoded - state.memory.unsent.double()
    assert float(rest.abs().max()) < 1e-2
    assert float(state.memory.unsent.abs().max()) > 1.0


# ------------------------------------------------------------------ what is counted, kept, named


def test_coded_bytes_are_counted_and_charged() -> None:
    slow = Cluster((Host(count=3, bandwidth_gbit=0.001),))
    plain, coded = run(AllReduceSGD(), "float32", slow), run(AllReduceSGD(), ONE, slow)
    layout = Layout.of(TASK.build_model())
    coder = ONE.fitted(layout)
    assert coder is not None
    sent = [result.learners[0].bytes_sent for result in (plain, coded)]
    rounds = sent[0] // (2 * layout.size * 4 * 2 // 3)
    assert sent[1] == rounds * int(2.0 * coder.size.total * 2 / 3)
    assert coded.time_s < plain.time_s


def test_residuals_are_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them the end is another: so a checkpoint has them, and they are used."""
    monkeypatch.setattr(checkpoint, "_tensors", lambda path, checksum: load_file(path))
    more: dict[str, Any] = {"checkpoint_every": 0.5, "keep_checkpoints": 99}
    whole = run(AllReduceSGD(), ONE, out=tmp_path / "whole", **more)
    for name in ("part", "spoilt"):
        keep_only_first_checkpoint(tmp_path / "whole", tmp_path / name)
    parts = list((tmp_path / "spoilt" / "checkpoints").glob("*/*1*.safetensors"))
    kept = [p for p in parts if any("unsent" in key for key in load_file(p))]
    assert kept
    for path in kept:
        tensors = load_file(path)
        for key in tensors:
            if "unsent" in key:
                assert tensors[key].any()
                tensors[key] = torch.zeros_like(tensors[key])
        save_file(tensors, path)
    part, spoilt = (
        run(AllReduceSGD(), ONE, out=tmp_path / name, resume=True, **more)
        for name in ("part", "spoilt")
    )
    assert same_model(whole, part)
    assert not same_model(whole, spoilt)


@pytest.mark.parametrize("strategy", [AllReduceSGD(), KStep(sync_every=3)], ids=lambda s: s.name)
def test_a_learner_left_alone_by_a_resume_applies_what_was_kept(
    strategy: Any, tmp_path: Path
) -> None:
    kept = []
    for epochs, learners in ((2, 3), (3, 1)):
        schedule = Constant(epochs=epochs)
        run(strategy, ONE, learners, out=tmp_path, resume=epochs == 3, schedule=schedule)
        newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
        tensors = [load_file(path) for path in newest.glob("*.safetensors")]
        kept.append([v for t in tensors for k, v in t.items() if "unsent" in k])
    assert [len(ranks) for ranks in kept] == [3, 1]
    assert all(unsent.any() for unsent in kept[0])
    assert not kept[1][0].any()


def test_a_gradient_that_is_not_finite_is_named() -> None:
    with pytest.raises(NotFiniteError, match=r"rank \d: values of parameter 'w'"):
        simulated(BrokenRow(how="nan"), AllReduceSGD(), 2, codec=ONE)


def test_in_lower_precision_a_push_that_is_not_finite_is_skipped() -> None:
    more: dict[str, Any] = {"precision": "bfloat16", "schedule": Constant(epochs=3)}
    for codec in (ONE, TopK(float_below=4, share=0.3)):
        result = simulated(SteepRow(), ASGD(servers=1, overlap=0), 2, codec=codec, **more)
        assert sum(one.skipped for one in result.learners) == 3
        assert torch.isfinite(result.model["w"]).all()
