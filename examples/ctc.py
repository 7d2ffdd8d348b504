"""End to end: a small Conformer trained with CTC in a loop of one's own, on several learners.

    python examples/ctc.py                                     # synthetic "speech", alone
    python -m hocket.launch --learners 2 examples/ctc.py --strategy bmuf
    python examples/ctc.py --experiment exp/digits --epochs 30  # a prepared experiment

Everything about the model, the loss and the loop is plain torch; `hocket.attach` lets a strategy
step. Units are characters. Greedy decoding takes the best unit of each frame; lexicon decoding
searches a graph of the words' spellings with kaldi-decoder. `--export DIR` writes model.onnx, with
the inputs, outputs and metadata that sherpa-onnx asks of a CTC model (`zipformer2_ctc`), and its
tokens.txt; features must be those of the training, also there.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hocket

BLANK = 0
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "zero"]
SUBSAMPLING = 4  # frames of input for one of output


@dataclass(frozen=True)
class Spoken:
    """One utterance: normalised features (frames, dims), and its words."""

    x: torch.Tensor
    words: tuple[str, ...]


# ---------------------------------------------------------------------------- data


def synthetic(count: int, seed: int, dims: int = 16) -> list[Spoken]:
    """Utterances of one to three words; each letter has a pattern that lasts for some frames."""
    fixed = torch.Generator().manual_seed(0)
    patterns = {c: torch.randn(dims, generator=fixed) for c in sorted({*"".join(WORDS), " "})}
    rng = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        number = int(torch.randint(1, 4, (), generator=rng))
        words = tuple(WORDS[int(torch.randint(10, (), generator=rng))] for _ in range(number))
        rows = [patterns[c].expand(12, -1) for c in f" {' '.join(words)} "]
        x = torch.cat(rows)
        made.append(Spoken(x + 0.5 * torch.randn(x.shape, generator=rng), words))
    return made


def prepared(experiment: Path, split: str) -> list[Spoken]:
    """The utterances of a split of a prepared experiment."""
    from hocket.speech.features.store import FeatureStore, kinds_in

    folder = experiment / "features" / split
    store = FeatureStore(folder, kinds_in(folder)[0])
    whole = [Spoken(torch.from_numpy(store.utterance(n)), tuple(store.words[n]))
             for n in range(len(store))]  # fmt: skip
    return [one for one in whole if one.words and len(one.x) >= 4 * SUBSAMPLING]


class Units:
    """Characters as numbers, from 1; the blank is 0, and words end at spaces."""

    def __init__(self, texts: Sequence[Spoken]) -> None:
        self.names = ["<blk>", *sorted({c for one in texts for c in " ".join(one.words)} | {" "})]
        self.numbers = {name: number for number, name in enumerate(self.names)}

    def encode(self, words: Sequence[str]) -> list[int]:
        """Return the numbers of a transcript."""
        return [self.numbers[c] for c in " ".join(words)]

    def decode(self, best: Sequence[int]) -> list[str]:
        """Return words: repetitions become one unit, then blanks go."""
        units = [unit for unit, _ in itertools.groupby(best) if unit != BLANK]
        return "".join(self.names[unit] for unit in units).split()


def minibatches(spoken: Sequence[Spoken], size: int, seed: int) -> Iterator[list[Spoken]]:
    """Yield minibatches of utterances of similar length, in random order."""
    rng = torch.Generator().manual_seed(seed)
    by_length = sorted(spoken, key=lambda one: len(one.x))
    groups = [by_length[i : i + size] for i in range(0, len(by_length), size)]
    for number in torch.randperm(len(groups), generator=rng).tolist():
        yield groups[number]


# ---------------------------------------------------------------------------- the model


class Attention(nn.Module):
    """Self-attention; torch's own module keeps the number of frames of an exported graph fixed."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """Let every frame look at all that are no padding."""
        count, frames, width = x.shape
        parts = self.inner(x).view(count, frames, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(2, 3)) * (width // self.heads) ** -0.5
        weights = weights.masked_fill(padding[:, None, None], -1e4).softmax(-1)
        result: torch.Tensor = self.outer((weights @ v).transpose(1, 2).reshape(x.shape))
        return result


class ConformerBlock(nn.Module):
    """Half a feed-forward layer, attention, convolution, the other half (Gulati et al. 2020)."""

    def __init__(self, width: int, heads: int, kernel: int) -> None:
        super().__init__()
        self.halves = nn.ModuleList(self._feed_forward(width) for _ in range(2))
        self.before_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.before_convolution = nn.LayerNorm(width)
        self.gate = nn.Linear(width, 2 * width)
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.after_convolution = nn.LayerNorm(width)  # not batch norm: minibatches are small
        self.out = nn.Linear(width, width)
        self.last = nn.LayerNorm(width)

    @staticmethod
    def _feed_forward(width: int) -> nn.Module:
        return nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """Return (N, T, width); `padding` is true where there is no frame."""
        x = x + 0.5 * self.halves[0](x)
        x = x + self.attention(self.before_attention(x), padding)
        y = nn.functional.glu(self.gate(self.before_convolution(x)), dim=-1)
        y = self.depthwise(y.masked_fill(padding[..., None], 0.0).transpose(1, 2)).transpose(1, 2)
        x = x + self.out(nn.functional.silu(self.after_convolution(y)))
        x = x + 0.5 * self.halves[1](x)
        result: torch.Tensor = self.last(x)
        return result


class Conformer(nn.Module):
    """A Conformer sized down: two convolutions that keep a quarter of the frames, then blocks."""

    def __init__(self, dims: int, units: int, width: int, blocks: int, heads: int = 4) -> None:
        super().__init__()
        self.front = nn.ModuleList(
            nn.Conv1d(fan_in, width, 3, stride=2, padding=1) for fan_in in (dims, width)
        )
        self.blocks = nn.ModuleList(ConformerBlock(width, heads, 9) for _ in range(blocks))
        self.output = nn.Linear(width, units)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log posteriors (N, T / 4, units) and how many of them are no padding."""
        for convolution in self.front:
            x = nn.functional.relu(convolution(x.transpose(1, 2))).transpose(1, 2)
            lengths = (lengths + 1) // 2
            padding = torch.arange(x.shape[1])[None] >= lengths[:, None]
            x = x.masked_fill(padding[..., None], 0.0)
        for block in self.blocks:
            x = block(x, padding)
        return self.output(x).log_softmax(-1), lengths


def scored(model: nn.Module, spoken: Sequence[Spoken]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the model makes of some utterances."""
    x = nn.utils.rnn.pad_sequence([one.x for one in spoken], batch_first=True)
    result: tuple[torch.Tensor, torch.Tensor] = model(
        x, torch.tensor([len(one.x) for one in spoken])
    )
    return result


def ctc_loss(model: nn.Module, spoken: Sequence[Spoken], units: Units) -> torch.Tensor:
    """Return the mean loss of an utterance's unit."""
    scores, lengths = scored(model, spoken)
    targets = [units.encode(one.words) for one in spoken]
    flat = torch.tensor([unit for target in targets for unit in target])
    sizes = torch.tensor([len(target) for target in targets])
    return nn.functional.ctc_loss(
        scores.transpose(0, 1), flat, lengths, sizes, blank=BLANK, zero_infinity=True
    )


# ---------------------------------------------------------------------------- recognition


def lexicon_graph(words: Sequence[str], units: Units) -> Any:
    """Return a graph of all sequences of words: kaldifst, labels are unit + 1 and word + 1."""
    import kaldifst

    graph = kaldifst.StdVectorFst()
    space = units.numbers[" "]
    start = graph.add_state()
    graph.start = start

    def emit(state: int, unit: int, word: int) -> int:
        """Add a unit: once or more; a blank may follow, but must before the same unit again."""
        reached: int = graph.add_state()
        graph.add_arc(state, kaldifst.StdArc(unit + 1, word, 0.0, reached))
        graph.add_arc(reached, kaldifst.StdArc(unit + 1, 0, 0.0, reached))
        return reached

    def rest(state: int) -> int:
        """Add blanks after a unit."""
        resting: int = graph.add_state()
        graph.add_arc(state, kaldifst.StdArc(BLANK + 1, 0, 0.0, resting))
        graph.add_arc(resting, kaldifst.StdArc(BLANK + 1, 0, 0.0, resting))
        return resting

    graph.add_arc(start, kaldifst.StdArc(BLANK + 1, 0, 0.0, start))
    boundary = graph.add_state()  # after a space, or at the beginning
    graph.add_arc(start, kaldifst.StdArc(0, 0, 0.0, boundary))
    for number, word in enumerate(words):
        ends = [boundary]
        before = None
        for place, letter in enumerate(word):
            unit = units.numbers[letter]
            if unit == before:
                ends = ends[1:]  # only after a blank
            reached = graph.add_state()
            for end in ends:
                label = number + 1 if place == 0 else 0
                graph.add_arc(end, kaldifst.StdArc(unit + 1, label, 0.0, reached))
            graph.add_arc(reached, kaldifst.StdArc(unit + 1, 0, 0.0, reached))
            ends, before = [reached, rest(reached)], unit
        for end in ends:
            graph.set_final(end, 0.0)
            spaced = emit(end, space, 0)
            for state in (spaced, rest(spaced)):
                graph.set_final(state, 0.0)
                graph.add_arc(state, kaldifst.StdArc(0, 0, 0.0, boundary))
    return graph


def with_lexicon(graph: Any, scores: torch.Tensor, words: Sequence[str]) -> list[str]:
    """Return the words on the best path of one utterance."""
    import kaldi_decoder
    import kaldifst

    options = kaldi_decoder.FasterDecoderOptions(beam=20.0, max_active=3000)
    decoder = kaldi_decoder.FasterDecoder(graph, options)
    decoder.decode(kaldi_decoder.DecodableCtc(scores.contiguous().numpy()))
    ok, best = decoder.get_best_path()
    if not ok:
        return []
    _, _, outputs, _ = kaldifst.get_linear_symbol_sequence(best)
    return [words[label - 1] for label in outputs]


@torch.inference_mode()
def recognise(model: nn.Module, spoken: Sequence[Spoken], units: Units) -> None:
    """Print character and word error rates, greedy and with the lexicon."""
    import kaldialign

    model.eval()
    words = sorted({word for one in spoken for word in one.words})
    graph = lexicon_graph(words, units)
    answers: dict[str, list[list[str]]] = {"greedy": [], "lexicon": []}
    for batch in (spoken[i : i + 32] for i in range(0, len(spoken), 32)):
        scores, lengths = scored(model, batch)
        for row, length in zip(scores, lengths.tolist(), strict=True):
            answers["greedy"].append(units.decode(row[:length].argmax(1).tolist()))
            answers["lexicon"].append(with_lexicon(graph, row[:length], words))
    for name, found in answers.items():
        rates = []
        for split in (list, str.split):  # characters, then words
            pairs = [(split(" ".join(one.words)), split(" ".join(hyp)))
                     for one, hyp in zip(spoken, found, strict=True)]  # fmt: skip
            errors = sum(kaldialign.edit_distance(ref, hyp)["total"] for ref, hyp in pairs)
            rates.append(errors / sum(len(ref) for ref, _ in pairs))
        print(f"{name}: CER {rates[0]:.1%}, WER {rates[1]:.1%}")


# ---------------------------------------------------------------------------- export


def export(model: nn.Module, units: Units, dims: int, folder: Path) -> None:
    """Write model.onnx and tokens.txt for sherpa-onnx."""
    import onnx

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model.onnx"
    sizes = {"x": {0: "N", 1: "T"}, "x_lens": {0: "N"}, "log_probs": {0: "N", 1: "T"}}
    torch.onnx.export(
        model.eval(),
        (torch.zeros(2, 80, dims), torch.tensor([80, 60])),
        file,
        input_names=["x", "x_lens"],
        output_names=["log_probs", "log_probs_len"],
        dynamic_axes=sizes | {"log_probs_len": {0: "N"}},
        opset_version=17,
        dynamo=False,
    )
    made = onnx.load(file)
    facts = {"model_type": "zipformer2_ctc", "version": "1", "model_author": "hocket",
             "comment": "examples/ctc.py", "vocab_size": str(len(units.names)),
             "subsampling_factor": str(SUBSAMPLING), "feat_dim": str(dims)}  # fmt: skip
    onnx.helper.set_model_props(made, facts)
    onnx.save(made, file)
    rows = [f"{'▁' if name == ' ' else name} {number}\n" for number, name in enumerate(units.names)]
    (folder / "tokens.txt").write_text("".join(rows), encoding="utf-8")
    print(f"{file} and tokens.txt beside it")


# ---------------------------------------------------------------------------- the loop


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--experiment", type=Path, help="made by `hocket prepare`")
    parser.add_argument("--strategy", default="kstep", help="any that hocket.attach takes")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8, help="utterances")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--export", type=Path, metavar="DIR")
    return parser.parse_args()


def main() -> None:
    """Train, recognise, and perhaps export."""
    args = arguments()
    if args.experiment is None:
        train, dev = synthetic(160, seed=1), synthetic(40, seed=2)
    else:
        train, dev = (prepared(args.experiment, split) for split in ("train", "dev"))
    units = Units([*train, *dev])
    dims = train[0].x.shape[1]
    torch.manual_seed(0)
    model = Conformer(dims, len(units.names), args.width, args.blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    with hocket.attach(model, optimizer, strategy=args.strategy) as dist:
        for epoch in range(args.epochs):
            batches = list(minibatches(train, args.batch, seed=epoch))[dist.rank :: dist.size]
            total = 0.0
            for batch in batches:
                loss = ctc_loss(model, batch, units)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                dist.step(sum(len(one.x) for one in batch))
                total += float(loss.detach())
            if dist.rank == 0:
                print(f"epoch {epoch + 1}: loss {total / len(batches):.3f}", flush=True)
    if dist.rank == 0:
        recognise(model, dev, units)
        if args.export is not None:
            export(model, units, dims, args.export)


if __name__ == "__main__":
    main()
