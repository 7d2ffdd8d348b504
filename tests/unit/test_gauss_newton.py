"""The Gauss-Newton product against the dense matrix in float64, and the effect that asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from helpers.recurrent import CLASSES, INPUTS, Recurrent, Sequences
from helpers.runs import simulator
from helpers.scripted import play
from helpers.tasks import Quadratic, WithBuffers, WithDropout, acoustic
from torch import nn
from torch.nn.functional import cross_entropy

from hocket import DNN, Cluster, Constant, HessianFree, Loss, PNorm, Sequential, Task
from hocket.core.accounts import DRY, Ticket
from hocket.core.learner import Learner
from hocket.core.strategy import State
from hocket.errors import TaskError
from hocket.experiment import Experiment, RuntimeOptions
from hocket.models.gauss_newton import LSTM_COST, PRODUCT_COST, GaussNewton
from hocket.runtime.shared.worker import Worker

FRAMES = 7


def network(kind: str) -> nn.Module:
    torch.manual_seed(3)
    kinds: dict[str, Callable[[], nn.Module]] = {
        "dnn": lambda: DNN(layers=2, width=5).network(INPUTS, CLASSES),
        "sigmoid": lambda: DNN(layers=2, width=5, activation="sigmoid").network(INPUTS, CLASSES),
        "pnorm": lambda: PNorm(layers=2, width=6, group=2).network(INPUTS, CLASSES),
        "lstm": Recurrent,
    }
    model = kinds[kind]()
    for p in model.parameters():  # the output layer begins at zero, where much of G is zero too
        nn.init.normal_(p, std=0.7)
    return model


def batch_for(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = (2, 4, INPUTS) if kind == "lstm" else (FRAMES, INPUTS)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (x[..., 0].numel(),), generator=generator)
    return x, labels


def dense(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """J' H J written out, one frame's softmax Hessian diag(p) - pp' after the other."""
    names = [n for n, _ in model.named_parameters()]
    values = tuple(p.detach() for p in model.parameters())

    def outputs(*given: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = torch.func.functional_call(
            model, dict(zip(names, given, strict=True)), (x,)
        )
        return scores

    with torch.backends.mkldnn.flags(enabled=False):
        parts = torch.autograd.functional.jacobian(outputs, values)  # type: ignore[no-untyped-call]
    z = outputs(*values)
    jacobian = torch.cat([j.reshape(*z.shape, -1) for j in parts], dim=-1)
    total = torch.zeros(jacobian.shape[-1], jacobian.shape[-1], dtype=torch.float64)
    for j, p in zip(jacobian, z.softmax(-1), strict=True):
        total += j.T @ (torch.diag(p) - torch.outer(p, p)) @ j
    return total


def products(model: nn.Module, x: torch.Tensor, labels: torch.Tensor, v: torch.Tensor) -> Any:
    def compute() -> Loss:
        return Loss(cross_entropy(model(x), labels, reduction="sum"), len(labels))

    sizes = [p.numel() for p in model.parameters()]
    along = [
        part.view_as(p) for part, p in zip(torch.split(v, sizes), model.parameters(), strict=True)
    ]
    curves = GaussNewton(model)
    found, _ = curves.product(compute, along)
    return torch.cat([f.reshape(-1) for f in found if f is not None]), curves, compute, along


KINDS = ["dnn", "sigmoid", "pnorm", "lstm"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_dense_matrix_times_the_direction(kind: str) -> None:
    model = network(kind).double().eval()
    x, labels = batch_for(kind)
    matrix = dense(model, x)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-12
    for seed in range(3):
        v = torch.randn(len(matrix), generator=torch.Generator().manual_seed(seed)).double()
        found, *_ = products(model, x, labels, v)
        torch.testing.assert_close(found, matrix @ v, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_all_three_ways_agree(kind: str) -> None:
    model = network(kind).double().eval()
    x, labels = batch_for(kind)
    v = torch.randn(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    first, curves, compute, along = products(model, x, labels, v)
    for way in (curves._apart, curves._twice_backward):
        curves._ways = [way]
        again, _ = curves.product(compute, along)
        torch.testing.assert_close(torch.cat([a.reshape(-1) for a in again]), first)


class Attending(nn.Module):
    """A block of torch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(INPUTS, 2, 5, 0.0, batch_first=True)
        self.output = nn.Linear(INPUTS, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.output(self.block(x))
        return scores.flatten(0, -2)


def test_attention_goes_on_without_fused_kernels() -> None:
    """They have neither a forward mode nor second derivatives."""
    torch.manual_seed(3)
    model = Attending().double().eval()
    x, labels = batch_for("lstm")
    matrix = dense(model, x)
    v = torch.randn(len(matrix), dtype=torch.float64)
    found, *_ = products(model, x, labels, v)
    torch.testing.assert_close(found, matrix @ v, rtol=1e-9, atol=1e-11)
    assert torch.backends.mha.get_fastpath_enabled()  # as it was


def test_an_lstm_goes_on_without_fused_kernels() -> None:
    """In float32 torch has a fused kernel for it, which has no forward mode."""
    model = network("lstm").eval()
    x, labels = batch_for("lstm")
    v = torch.randn(sum(p.numel() for p in model.parameters()))
    found, *_ = products(model, x.float(), labels, v)
    expected = dense(model.double(), x) @ v.double()
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def test_a_model_is_as_it_was_afterwards() -> None:
    model = network("dnn").double()
    x, labels = batch_for("dnn")
    before = model(x)
    products(model, x, labels, torch.ones(sum(p.numel() for p in model.parameters())).double())
    assert "forward" not in vars(model)
    assert torch.equal(model(x), before)
    assert all(p.grad is None for p in model.parameters())


# ------------------------------------------------------------------ tasks it cannot use


@dataclass(frozen=True)
class Bypassing(Quadratic):
    """Its loss uses the weights, not the model."""

    def loss(self, model: Any, batch: Any) -> Loss:
        return Loss(((model.w - batch) ** 2).sum(), len(batch))


@dataclass(frozen=True)
class CallingTwice(WithDropout):
    """Its loss calls the model for two inputs."""

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        return Loss(((model(batch) - model(batch + 1)) ** 2).sum(), len(batch))


@pytest.mark.parametrize(
    ("task", "said"), [(Bypassing(), "does not call the model"), (CallingTwice(), "more than once")]
)
def test_a_loss_that_hides_the_outputs_is_refused(task: Task, said: str) -> None:
    worker, params, tickets = drawn(task, 1)
    with pytest.raises(TaskError, match=said):
        worker.curvature(params, torch.ones_like(params), tickets, worker.new_state())


# ------------------------------------------------------------------ the worker


def drawn(task: Task, items: int) -> Any:
    """A worker, its first model, and tickets of the first items."""
    experiment = Experiment(task, Sequential())
    worker = Worker(task, experiment.pool(), seed=0)
    frames = worker.pool.frames
    return worker, worker.initial, tuple(Ticket(0, i, int(frames[i])) for i in range(items))


def test_it_is_the_mean_over_the_frames_of_all_items() -> None:
    worker, params, tickets = drawn(acoustic(), 5)
    torch.manual_seed(0)
    params.add_(0.3 * torch.randn_like(params))
    v = torch.randn_like(params)
    whole = worker.curvature(params, v, tickets, worker.new_state())
    parts = [worker.curvature(params, v, (t,), worker.new_state()) for t in tickets]
    mean = sum(p.vector.double() * p.frames for p in parts) / sum(p.frames for p in parts)
    assert whole.frames == sum(t.frames for t in tickets)
    torch.testing.assert_close(whole.vector, mean.float())


@dataclass(frozen=True)
class NeverDropping(WithDropout):
    """The same network, and nothing is dropped in training either."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return model


def test_dropout_is_off() -> None:
    """Noise is keyed by the item, so a product with it would repeat itself: compare with none."""
    found = []
    for task in (WithDropout(), NeverDropping()):
        worker, params, tickets = drawn(task, 3)
        params.copy_(worker.layout.pack(torch.full(e.shape, 0.3) for e in worker.layout.entries))
        along, state = torch.ones_like(params), worker.new_state()
        grad = worker.gradient(params, tickets[0], state).vector
        found.append((worker.curvature(params, along, tickets, state).vector, grad))
    assert torch.equal(found[0][0], found[1][0])
    assert not torch.equal(found[0][1], found[1][1]), "a gradient has it, else this proves nothing"


def test_batch_norm_stays_as_it_is_and_the_model_trains_again() -> None:
    for task in (WithDropout(), WithBuffers()):
        worker, params, tickets = drawn(task, 3)
        v, state = torch.ones_like(params), worker.new_state()
        before = {k: b.clone() for k, b in state.buffers.items()}
        first = worker.curvature(params, v, tickets, state)
        torch.manual_seed(99)
        again = worker.curvature(params, v, tickets, state)
        assert torch.equal(first.vector, again.vector)
        assert all(torch.equal(before[k], state.buffers[k]) for k in before)
        grad = worker.gradient(params, tickets[0], state)  # trains again afterwards
        assert worker.model.training
        assert grad.frames


def test_dry_tickets_have_no_part() -> None:
    worker, params, tickets = drawn(Quadratic(), 2)
    dry = Ticket(0, DRY, 0)
    v = torch.ones_like(params)
    some = worker.curvature(params, v, (*tickets, dry), worker.new_state())
    assert torch.equal(some.vector, worker.curvature(params, v, tickets, None).vector)
    none = worker.curvature(params, v, (dry,), worker.new_state())
    assert none.frames == 0
    assert not none.vector.any()


# ------------------------------------------------------------------ the effect


def test_the_mean_over_learners_is_that_of_one_learner_with_all_items() -> None:
    """And the simulator charges a product by its ratio to a gradient."""
    seen: dict[int, list[torch.Tensor]] = {}

    async def body(me: Learner, state: State) -> None:
        tickets = []
        for _ in range(12 // me.size):
            grad = await me.gradient(state.params)
            tickets += list(grad.tickets)
        v = torch.arange(state.params.numel()).float().sin()
        product = await me.curvature(state.params, v, tuple(tickets))
        mean = await me.allreduce(product.vector, weight=product.frames)
        seen.setdefault(me.size, []).append(mean.value)
        await me.commit()

    spent = {}
    for learners in (1, 3):
        sim = play(body, learners, Cluster.even(learners, frames_per_s=100.0))
        kinds = {"compute": 0.0, "curvature": 0.0}
        for span in sim.trace.spans:
            if span.kind in kinds:
                kinds[span.kind] += span.end_s - span.start_s
        spent[learners] = kinds["curvature"] / kinds["compute"]
        assert sim.context(0).account.books.product_frames > 0
    torch.testing.assert_close(seen[1][0], seen[3][0])
    assert all(torch.equal(one, seen[3][0]) for one in seen[3])
    assert spent == pytest.approx({1: PRODUCT_COST, 3: PRODUCT_COST})


def test_an_lstms_products_are_charged_as_measured() -> None:
    for task, cost in ((Sequences(), LSTM_COST), (acoustic(), PRODUCT_COST)):
        worker, params, tickets = drawn(task, 1)
        for some in (tickets, ()):  # who has no items knows it, too
            product = worker.curvature(params, params, some, worker.new_state())
            assert product.cost == cost
    strategy = HessianFree(curvature=0.5, cg_iterations=3, held_out_items=2)
    charged = {"compute": 0.0, "curvature": 0.0}
    experiment = Experiment(
        Sequences(), strategy, schedule=Constant(epochs=1), options=RuntimeOptions(trace=True)
    )
    sim = simulator(experiment, Cluster.even(1, frames_per_s=100.0))
    sim.run()
    for span in sim.trace.spans:
        if span.kind in charged:
            charged[span.kind] += span.end_s - span.start_s
    books = sim.context(0).account.books
    assert charged["curvature"] / charged["compute"] == pytest.approx(
        LSTM_COST * books.product_frames / books.frames
    )


def test_an_lstm_in_a_task_of_ones_own() -> None:
    worker, params, tickets = drawn(Sequences(), 4)
    v = torch.randn_like(params, dtype=torch.float64).float()
    found = worker.curvature(params, v, tickets, worker.new_state())
    flat = torch.cat([view.reshape(-1) for view in worker.layout.views(v)]).double()
    model = worker.model.double()
    total = sum(
        dense(model, worker.task.load("train", worker.pool.items("train")[t.index], 0)[0].double())
        @ flat
        for t in tickets
    )
    got = torch.cat([view.reshape(-1) for view in worker.layout.views(found.vector)])
    torch.testing.assert_close(got.double() * found.frames, total, rtol=1e-4, atol=1e-5)
