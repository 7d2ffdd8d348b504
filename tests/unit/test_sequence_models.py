"""Networks for sequences against twins: torch's own layers, whole utterances, known sizes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from helpers.runs import simulated
from helpers.tasks import spoken
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from hocket import CLDNN, LSTM, TDNN, Constant, HocketError, NaturalSGD
from hocket.models.gauss_newton import LSTM_COST, PRODUCT_COST, GaussNewton
from hocket.models.lstm import LSTMNetwork, Recurrent, lstm_stack
from hocket.models.lstm_layer import Direction
from hocket.models.sequence import SequenceModel, SequenceNetwork
from hocket.models.streaming import Streaming
from hocket.models.tdnn import Delay, TDNNNetwork
from hocket.optim.natural_gradient.preconditioning import NaturalGradientOptions

ONE_WAY: list[SequenceModel] = [
    LSTM(layers=3, cells=9),
    LSTM(layers=2, cells=9, projection=4, bottleneck=3, look_ahead=0),
    TDNN(width=12, dilations=(1, 2, 0, 3)),
    TDNN(width=12, dilations=(1, 2), bottleneck=4),
    CLDNN(maps=3, conv_frames=5, conv_bins=3, linear=7, cells=6, width=8),
]


SMALL_CLDNN = CLDNN(
    maps=2, conv_frames=3, conv_bins=2, pool_bins=2, linear=3, layers=1, cells=3, width=4
)


def network_of(model: SequenceModel, inputs: int = 11, outputs: int = 5) -> SequenceNetwork:
    torch.manual_seed(3)
    network = model.network(inputs, outputs)
    nn.init.normal_(network.output.weight)
    return network.eval()


def twin_of(layer: nn.Module) -> nn.LSTM:
    """torch's own layer with the same weights."""
    assert isinstance(layer, Recurrent)
    ways = [way for way in (layer.ahead, layer.back) if way is not None]
    (num_inputs, hidden), cells = layer.ahead.sizes, layer.ahead.cells
    twin = nn.LSTM(
        num_inputs,
        cells,
        batch_first=True,
        bidirectional=len(ways) == 2,
        proj_size=0 if hidden == cells else hidden,
    ).to(layer.ahead.gates.weight.dtype)
    with torch.no_grad():
        for names, way in zip(twin._all_weights, ways, strict=True):
            inputs, recurrent = torch.split(way.gates.weight, [num_inputs, hidden], 1)
            bias = way.gates.bias
            values = [inputs, recurrent, bias, torch.zeros_like(bias)]
            values += [] if way.project is None else [way.project.weight]
            for name, value in zip(names, values, strict=True):
                getattr(twin, name).copy_(value)
    return twin


def test_the_published_network_can_be_built() -> None:
    with torch.device("meta"):
        network = LSTM.published().network(260, 32_000)
    first, others = 2 * 4 * 512 * (260 + 512 + 1), 2 * 4 * 512 * (1024 + 512 + 1)
    known = first + 5 * others + (1024 + 1) * 256 + (256 + 1) * 32_000
    assert sum(p.numel() for p in network.parameters()) == known
    assert round(known / 1e6) == 43  # X. Cui et al. 2021
    with torch.device("meta"):
        assert network(torch.empty(256, 21, 260)).shape == (256, 21, 32_000)


def test_all_published_kinds_have_the_same_interface() -> None:
    for model in (*ONE_WAY, LSTM(bidirectional=True, layers=1, cells=4)):
        left, right = model.reach
        network = network_of(model)
        assert network(torch.randn(2, 40, 11)).shape == (2, 40 - left - right, 5)
        # Limits on a step have one of their own for the layer that is named last.
        assert [name for name, _ in network.named_parameters()][-1] == "output.bias"


# ------------------------------------------------------------------ against torch's own layers


@pytest.mark.parametrize("projection", [0, 3])
def test_both_directions_of_padded_sequences_are_torchs_packed_ones(projection: int) -> None:
    torch.manual_seed(0)
    (layer,) = lstm_stack(6, 7, 1, bidirectional=True, projection=projection).double().layers
    assert isinstance(layer, Recurrent)
    x, lengths = torch.randn(3, 9, 6, dtype=torch.float64), [9, 4, 6]
    y, _ = layer(x, lengths, None)
    packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    z, _ = pad_packed_sequence(twin_of(layer)(packed)[0], batch_first=True)
    for row, length in enumerate(lengths):
        assert torch.allclose(y[row, :length], z[row, :length], rtol=1e-10)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_layer_without_padding_is_torchs_lstm_bit_for_bit(bidirectional: bool) -> None:
    torch.manual_seed(0)
    stack = lstm_stack(6, 7, 1, bidirectional=bidirectional)
    layer, x = stack.layers[0], torch.randn(3, 9, 6)
    assert isinstance(layer, Recurrent)
    assert torch.equal(layer(x, None, None)[0], twin_of(layer)(x)[0])


def test_forget_gates_begin_open() -> None:
    (layer,) = lstm_stack(4, 3, 1).layers
    assert isinstance(layer, Recurrent)
    assert layer.ahead.gates.bias.tolist() == [0.0] * 3 + [1.0] * 3 + [0.0] * 6


def test_a_delay_layer_is_a_dilated_convolution() -> None:
    torch.manual_seed(0)
    layer, twin = Delay(4, 6, 2, 0.0).double(), nn.Conv1d(4, 6, 3, dilation=2).double()
    with torch.no_grad():
        twin.weight.copy_(layer.affine.weight.view(6, 3, 4).transpose(1, 2))
        assert twin.bias is not None
        twin.bias.copy_(torch.randn(6))
        layer.affine.bias.copy_(twin.bias)
    x = torch.randn(2, 15, 4, dtype=torch.float64)
    z = torch.relu(twin(x.transpose(1, 2))).transpose(1, 2)
    expected = z / z.square().mean(-1, keepdim=True).sqrt()
    assert torch.allclose(layer(x), expected, rtol=1e-10)


def test_factorised_layers_are_smaller_and_begin_semi_orthogonal() -> None:
    plain, narrow = (network_of(TDNN(width=64, bottleneck=b)) for b in (0, 16))
    sizes = [sum(p.numel() for p in n.parameters()) for n in (plain, narrow)]
    assert sizes[1] < 0.5 * sizes[0]
    assert isinstance(narrow, TDNNNetwork)
    linear: Any = narrow.layers[1]
    product = linear.linear.weight @ linear.linear.weight.T
    assert torch.allclose(product, torch.eye(16), atol=1e-5)


# ------------------------------------------------------------------ dropout


def test_recurrent_dropout_thins_out_recurrent_weights_only_while_training() -> None:
    (layer,) = lstm_stack(4, 50, 1, recurrent_dropout=0.25).layers
    assert isinstance(layer, Recurrent)
    thin, own = layer.ahead.train().weights(), layer.ahead.gates.weight
    assert torch.equal(thin[0], own[:, :4])
    assert 0.2 < (thin[1] == 0).float().mean() < 0.3
    kept = thin[1] != 0
    assert torch.allclose(thin[1][kept], own[:, 4:][kept] / 0.75)
    assert torch.equal(layer.ahead.eval().weights()[1], own[:, 4:])


def test_dropout_hides_the_same_units_in_all_frames() -> None:
    (layer,) = lstm_stack(4, 50, 1, dropout=0.5).train().layers
    y, _ = layer(torch.randn(3, 8, 4), None, None)
    hidden = (y == 0).sum(1)  # frames in which a unit of a sequence is hidden
    assert set(hidden.unique().tolist()) == {0, 8}


# ------------------------------------------------------------------ streaming


@pytest.mark.parametrize("model", ONE_WAY, ids=lambda m: f"{m.name}-{m.reach}")
@pytest.mark.parametrize("piece", [1, 7, 64])
def test_pieces_with_carried_state_are_the_whole_utterance(
    model: SequenceModel, piece: int
) -> None:
    network = network_of(model)
    x, left = torch.randn(50, 11), network.left + 4
    padded = torch.cat([x[:1].expand(left, -1), x, x[-1:].expand(network.right, -1)])
    whole = network(padded[None])[0, 4:].detach()
    stream = Streaming(network, left)
    scores, known = [], []
    for part in torch.split(x, piece):
        scores.append(stream.push(part))
        known.append(sum(map(len, scores)))
    got = torch.cat([*scores, stream.finish()])
    assert got.shape == whole.shape
    assert float((got - whole).abs().max()) < 1e-5
    # The score of a frame is known as soon as `right` frames more have come.
    heard = [min(50, (n + 1) * piece) for n in range(len(known))]
    assert known == [max(0, h - network.right) for h in heard]


def test_a_bidirectional_network_cannot_be_streamed() -> None:
    with pytest.raises(HocketError, match="cannot be streamed"):
        Streaming(network_of(LSTM(bidirectional=True, layers=1)))


# ------------------------------------------------------------------ curvature, natural gradient


@pytest.mark.parametrize(
    "model",
    [
        LSTM(layers=2, cells=4, look_ahead=1),
        LSTM(layers=1, cells=3, bidirectional=True),
        TDNN(width=5, dilations=(1, 2), bottleneck=2),
        SMALL_CLDNN,
    ],
    ids=lambda m: f"{m.name}-{m.reach}",
)
def test_the_gauss_newton_product_is_the_one_of_the_matrix(model: SequenceModel) -> None:
    task = spoken(model, num_frames=300, chunk_frames=6, batch_frames=12)
    torch.manual_seed(1)
    network: Any = task.build_model().double()
    nn.init.normal_(network.output.weight)
    batch = task.load("train", task.items("train")[3], 0)
    batch = batch._replace(x=batch.x.double())
    parameters = list(network.parameters())
    direction = [torch.randn_like(p) for p in parameters]
    product, _ = GaussNewton(network).product(partial(task.loss, network, batch), direction)

    scores = network(batch.x, batch.lengths, batch.places(model.reach))
    rows = [torch.autograd.grad(z, parameters, retain_graph=True) for z in scores.flatten()]
    jacobian = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    p = scores.softmax(1).detach()
    hessian: torch.Tensor = torch.block_diag(  # type: ignore[no-untyped-call]
        *[torch.diag(q) - torch.outer(q, q) for q in p]
    )
    v = torch.cat([d.flatten() for d in direction])
    expected = jacobian.T @ (hessian @ (jacobian @ v))
    got = torch.cat(
        [
            (torch.zeros_like(q) if g is None else g).flatten()
            for g, q in zip(product, parameters, strict=True)
        ]
    )
    assert torch.allclose(got, expected, rtol=1e-8, atol=1e-10)


def test_a_product_is_charged_more_where_a_fused_kernel_has_no_forward_mode() -> None:
    for model in ONE_WAY:
        expected = PRODUCT_COST if model.name == "tdnn" else LSTM_COST
        assert GaussNewton(network_of(model)).cost == expected


class Noted(nn.Linear):
    """Computes what `nn.Linear` does; the class alone is another."""


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("projection", [0, 3])
@pytest.mark.parametrize("lengths", [None, [9, 4, 6]], ids=["whole", "padded"])
def test_gates_as_affine_layers_have_the_kernels_gradients(
    bidirectional: bool, projection: int, lengths: list[int] | None
) -> None:
    torch.manual_seed(0)
    stack = lstm_stack(6, 5, 2, bidirectional=bidirectional, projection=projection).double()
    x = torch.randn(3, 9, 6, dtype=torch.float64, requires_grad=True)
    wanted = torch.randn(3, 9, (projection or 5) * (1 + bidirectional), dtype=torch.float64)
    for row, length in enumerate(lengths or []):
        wanted[row, length:] = 0
    parameters = [x, *stack.parameters()]

    def found() -> tuple[torch.Tensor, ...]:
        y, _ = stack(x, lengths, None)
        return y * wanted, *torch.autograd.grad((y * wanted).sum(), parameters)

    by_the_kernel = found()
    for way in (m for m in stack.modules() if isinstance(m, Direction)):
        for layer in (way.gates, way.project):
            if layer is not None:
                layer.__class__ = Noted
        assert way.apart
    for got, expected in zip(found(), by_the_kernel, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def test_the_natural_gradient_of_gates_is_that_of_an_affine_layer_over_all_frames() -> None:
    """A twin that computes frame by frame says what gates read and what their derivatives are."""
    torch.manual_seed(0)
    layer = lstm_stack(4, 3, 1).layers[0].double()
    assert isinstance(layer, Recurrent)
    x, gates = torch.randn(2, 7, 4, dtype=torch.float64), layer.ahead.gates
    h = c = torch.zeros(2, 3, dtype=torch.float64)
    read, before, outputs = [], [], []
    for t in range(7):
        read.append(torch.cat([x[:, t], h], 1))
        before.append(gates(read[-1]))
        i, f, g, o = before[-1].chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    wanted = torch.randn(2, 7, 3, dtype=torch.float64)
    derivatives = torch.autograd.grad((torch.stack(outputs, 1) * wanted).sum(), before)
    twin = nn.Sequential(nn.Linear(7, 12)).double()
    twin.load_state_dict({"0.weight": gates.weight, "0.bias": gates.bias})
    NaturalGradientOptions().tap(twin)
    (twin(torch.stack(read, 1).detach()) * torch.stack(derivatives, 1)).sum().backward()

    NaturalGradientOptions().tap(layer)
    (layer(x, None, None)[0] * wanted).sum().backward()
    for mine, its in zip(gates.parameters(), twin.parameters(), strict=True):
        assert mine.grad is not None
        assert its.grad is not None
        torch.testing.assert_close(mine.grad, its.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (TDNN(width=8, bottleneck=3), "all parameters"),
        (LSTM(layers=1, cells=4, projection=2, bottleneck=3), "all parameters"),
        (LSTM(layers=1, cells=4, bidirectional=True), "all parameters"),
        (
            LSTM(layers=1, cells=4, projection=2, recurrent_dropout=0.1),
            "plain SGD for 3 parameters: stack.layers.0.ahead.gates.weight",
        ),
        (SMALL_CLDNN, "plain SGD for 2 parameters: patterns.convolution.weight"),
    ],
    ids=["tdnn", "lstm", "blstm", "thinned lstm", "cldnn"],
)
def test_natural_gradient_says_what_it_leaves_to_sgd(model: SequenceModel, says: str) -> None:
    network = model.network(6, 5)
    assert says in NaturalGradientOptions().tap(network).note()
    task = spoken(model, num_frames=600)
    result = simulated(task, "kstep", 2, optimizer=NaturalSGD(lr=0.05), schedule=Constant(epochs=1))
    assert result.frames == 600


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: LSTM(layers=0), "layers must be at least 1"),
        (lambda: LSTM(projection=128), "below model.cells"),
        (lambda: LSTM(bidirectional=True, look_ahead=3), "no effect"),
        (lambda: LSTM(recurrent_dropout=1.0), "below 1"),
        (lambda: TDNN(dilations=()), "at least one layer"),
        (lambda: TDNN(dilations=(-1,)), "between 0 and 1000"),
        (lambda: TDNN(bottleneck=256), "below model.width"),
        (lambda: TDNN(dilations=(1,), bottleneck=2), "no effect on the first layer"),
        (lambda: CLDNN(conv_frames=4), "odd"),
        (lambda: CLDNN(input_transform="lda"), "mix the mel bins"),
        (lambda: CLDNN().network(6, 3), "leave nothing of frames of 6 values"),
    ],
)
def test_sizes_that_cannot_be_meant_are_refused(made: Any, says: str) -> None:
    with pytest.raises(HocketError, match=says):
        made()


def test_an_input_transform_is_the_networks_first_layer() -> None:
    task = spoken(LSTM(layers=1, cells=4, input_transform="lda"), num_frames=600)
    network = task.build_model()
    assert isinstance(network, LSTMNetwork)
    assert isinstance(network.front, nn.Linear)
    assert not network.front.weight.requires_grad
