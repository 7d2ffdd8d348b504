"""Kaldi's archives in and out."""

from __future__ import annotations

import gzip
from pathlib import Path

import kaldiio
import numpy as np
import pytest

from hocket.cli.main import main
from hocket.speech.decode.recognition import NetworkScorer
from hocket.speech.features.store import FeatureStore
from hocket.speech.task import SpeechTask

NUM_PDFS, DIMS = 5, 7


def hocket(*args: object) -> int:
    return main([str(a) for a in args])


def kaldi_split(folder: Path, names: list[str], *, compress: bool = False) -> Path:
    """Features and alignments as Kaldi's own tools would leave them."""
    rng = np.random.default_rng(len(names))
    folder.mkdir(parents=True)
    matrices, vectors = {}, {}
    for name in names:
        frames = int(rng.integers(20, 40))
        pdfs = np.sort(rng.integers(NUM_PDFS, size=frames)).astype(np.int32)
        x = rng.normal(size=(frames, DIMS)) + pdfs[:, None]
        matrices[name], vectors[name] = x.astype(np.float32), pdfs
    ark, scp = folder / "feats.ark", folder / "feats.scp"
    kaldiio.save_ark(str(ark), matrices, scp=str(scp), compression_method=2 if compress else None)
    for part in range(2):
        with gzip.open(folder / f"pdf.{part + 1}.gz", "wb") as file:
            kaldiio.save_ark(file, {n: vectors[n] for n in names[part::2]})
    (folder / "utt2spk").write_text("".join(f"{n} {n[0]}\n" for n in names))
    return folder


def do_import(root: Path, out: Path, *more: object, num_pdfs: int = NUM_PDFS) -> int:
    train, dev = root / "train", root / "dev"
    return hocket(
        "import", "--train", train, "--train-ali", f"{train}/pdf.*.gz", "--dev", dev, "--dev-ali",
        f"{dev}/pdf.*.gz", "--num-pdfs", num_pdfs, "--out", out, "--quiet", *more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kaldi")
    kaldi_split(root / "train", [f"{s}{n}" for s in "ab" for n in range(8)])
    kaldi_split(root / "dev", ["c0", "c1", "c2"], compress=True)
    assert do_import(root, root / "exp", "--test", root / "dev") == 0
    return root


@pytest.fixture(scope="module")
def run(root: Path) -> Path:
    """A small network trained on what was imported."""
    run = root / "run"
    small = ("--set", "model.width=16", "--set", "task.batch_frames=64", "--epochs", 8, "--lr", 0.1)
    assert hocket("train", root / "exp", *small, "--quiet", "--out", run) == 0
    return run


def test_what_was_imported_is_what_was_there(root: Path) -> None:
    store = FeatureStore(root / "exp" / "features" / "train", "kaldi", "none")
    labels = np.load(root / "exp" / "alignment" / "train.npy")
    theirs = kaldiio.load_scp(str(root / "train" / "feats.scp"))
    assert sorted(theirs) == store.ids
    pdfs: dict[str, np.ndarray] = {}
    for part in (1, 2):
        with gzip.open(root / "train" / f"pdf.{part}.gz") as file:
            pdfs |= dict(kaldiio.load_ark(file))
    for number, name in enumerate(store.ids):
        assert np.array_equal(store.utterance(number), theirs[name])
        first = store.first[number]
        assert np.array_equal(labels[first : first + store.frames[number]], pdfs[name])
    priors = np.load(root / "exp" / "alignment" / "priors.npy")
    assert np.allclose(priors, (np.bincount(labels) + 1) / (len(labels) + NUM_PDFS))


def test_export_and_import_again_give_the_same_files(root: Path, tmp_path: Path) -> None:
    assert hocket("export", root / "exp", "--out", tmp_path / "out") == 0
    for split in ("train", "dev"):
        ark = tmp_path / "out" / split / "pdf.ark.gz"
        ark.rename(ark.with_name("pdf.1.gz"))
    assert do_import(tmp_path / "out", tmp_path / "again") == 0
    for name in ("alignment/train.npy", "alignment/priors.npy", "features/train/kaldi.npy"):
        again = (tmp_path / "again" / name).read_bytes()
        assert again == (root / "exp" / name).read_bytes()


def test_the_task_reads_what_was_imported(root: Path) -> None:
    task = SpeechTask(str(root / "exp"))
    assert task.kind == "kaldi"
    assert task.num_inputs == 11 * DIMS


def test_train_and_write_log_likelihoods(root: Path, run: Path, tmp_path: Path) -> None:
    ark = tmp_path / "loglikes.ark"
    assert hocket("decode", run, "--split", "test", "--write-loglikes", ark, "--quiet") == 0
    written = dict(kaldiio.load_ark(str(ark)))
    scorer = NetworkScorer(run)
    store = scorer.store("test")
    assert sorted(written) == store.ids
    log_priors = np.log(np.load(root / "exp" / "alignment" / "priors.npy"))
    for number, name in enumerate(store.ids):
        assert np.array_equal(written[name], scorer.scores(store, number))
        # log-likelihood + log prior is a log posterior: it sums to one
        assert np.allclose(np.exp(written[name] + log_priors).sum(1), 1, atol=1e-5)
    assert np.array_equal(kaldiio.load_scp(str(tmp_path / "loglikes.scp"))["c0"], written["c0"])


def test_there_is_no_graph_to_decode_with(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hocket("decode", run, "--quiet") == 2
    assert "--write-loglikes" in capsys.readouterr().err


def test_what_is_wrong_is_named(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert do_import(root, tmp_path / "a", num_pdfs=4) == 2
    assert "has the pdf 4, but there are 4" in capsys.readouterr().err
    assert do_import(root, root / "exp") == 2
    assert "already" in capsys.readouterr().err
    spoilt = tmp_path / "spoilt"
    kaldi_split(spoilt / "train", ["a1", "a2", "a3"])
    kaldi_split(spoilt / "dev", ["c0"])
    scp = spoilt / "train" / "feats.scp"
    good = scp.read_text()
    scp.write_text(good + "a9 touch /tmp/never |\n")
    assert do_import(spoilt, tmp_path / "b") == 2
    assert "runs no commands" in capsys.readouterr().err
    scp.write_text(good.replace("a1 ", "a8 "))
    assert do_import(spoilt, tmp_path / "c") == 0
    assert "1 utterances left out" in capsys.readouterr().out
    assert "no alignment" in (tmp_path / "c" / "left_out.txt").read_text()
    whole = (spoilt / "train" / "pdf.1.gz").read_bytes()
    (spoilt / "train" / "pdf.1.gz").write_bytes(whole[:-12])
    assert do_import(spoilt, tmp_path / "d") == 2
    assert "pdf.1.gz: cannot be unfolded" in capsys.readouterr().err
