"""From synthesised audio to word error rates, through the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from hocket.cli.main import main
from hocket.speech.decode.priors import mean_posteriors
from hocket.speech.decode.recognition import NetworkScorer, network_of, task_of
from hocket.speech.features.store import FeatureStore
from hocket.speech.gmm.alignment import Corpus, Pass, phone_spans, usable
from hocket.speech.gmm.training import collect
from hocket.speech.graph.lexicon import Lexicon, read_lexicon
from hocket.speech.graph.senones import Senones
from hocket.speech.input.datadir import read_table
from hocket.speech.task import SpeechTask

pytestmark = pytest.mark.timeout(300)
SENONES = 80


def hocket(*args: object) -> int:
    return main([str(a) for a in args])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def data(root: Path) -> Path:
    """Four minutes of clean digits, two spoilt utterances among them."""
    options = ("--hours", 0.07, "--held-out-hours", 0.015, "--clean", "--quiet")
    assert hocket("corpus", "digits", "--out", root / "data", *options) == 0
    wavs = sorted(read_table(root / "data" / "train" / "wav.scp").items())
    first = root / "data" / wavs[0][1]
    first.write_bytes(first.read_bytes()[:-1000])
    text = root / "data" / "train" / "text"
    rows = text.read_text().splitlines()
    rows[1] = rows[1].split()[0]
    rows[2] += " supercalifragilistic"  # cmudict lacks it; espeak-ng speaks it
    text.write_text("\n".join(rows) + "\n")
    return root / "data"


@pytest.fixture(scope="module")
def experiment(root: Path, data: Path) -> Path:
    arguments = ("--senones", SENONES, "--lm-order", 2, "--quiet")
    assert hocket("prepare", data, "--out", root / "exp", *arguments) == 0
    return root / "exp"


@pytest.fixture(scope="module")
def run(root: Path, experiment: Path) -> Path:
    out = root / "run"
    settings = ("--set", "model.width=64", "--set", "strategy.sync_every=4")
    learners = ("--strategy", "kstep", "--learners", 2, "--epochs", 4, "--lr", 0.1)
    trace = ("--set", "runtime.trace=true", "--quiet")
    assert hocket("train", experiment, *learners, *settings, *trace, "--out", out) == 0
    return out


def test_bad_utterances_are_left_out_and_listed(experiment: Path, data: Path) -> None:
    listed = (experiment / "left_out.txt").read_text()
    names = sorted(read_table(data / "train" / "wav.scp"))
    assert f"{names[0]}\tfeatures" in listed
    assert "truncated" in listed
    assert f"{names[1]}\tdata\tits transcript is empty" in listed
    assert len(listed.splitlines()) <= 4


def test_every_step_is_kept_and_redone_when_options_change(
    experiment: Path, data: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--senones", SENONES, "--lm-order", 2, "--quiet")
    assert hocket("prepare", data, "--out", experiment, *arguments) == 0
    kept = capsys.readouterr().out
    assert kept.count(": kept") == 9
    copy = root / "copy"
    shutil.copytree(experiment, copy)
    changed = ("--senones", SENONES, "--lm-order", 1, "--quiet")
    assert hocket("prepare", data, "--out", copy, *changed) == 0
    said = capsys.readouterr().out
    assert said.count(": kept") == 7
    assert "graph: 12 words, 1-gram" in said


def test_alignments_pass_through_the_transcripts(experiment: Path) -> None:
    store = FeatureStore(experiment / "features" / "train", "mfcc")
    labels = np.load(experiment / "alignment" / "train.npy")
    senones = Senones.read(experiment / "lda" / "tree.json")
    assert senones.num_pdfs <= SENONES
    assert senones.depends_on_context
    lexicon = read_lexicon(experiment / "lexicon" / "lexicon.txt")
    for number in range(len(store)):
        first, length = store.first[number], store.frames[number]
        pdfs = labels[first : first + length]
        if pdfs[0] < 0:
            continue
        spans = phone_spans(pdfs, senones.owners)
        assert spans[:, 2].min() >= 3
        phones = [senones.phones[p - 1] for p in spans[:, 0] if p != 1]
        assert tuple(phones) in ways_to_say(store.words[number], lexicon)


def ways_to_say(words: list[str], lexicon: Lexicon) -> set[tuple[str, ...]]:
    rest: set[tuple[str, ...]] = {()}
    for word in words:
        rest = {(*r, *said) for r in rest for said in lexicon.said(word)}
    return rest


def test_the_number_of_processes_changes_nothing(experiment: Path, tmp_path: Path) -> None:
    corpus = Corpus(experiment / "features" / "train", experiment / "lexicon" / "lexicon.txt")
    numbers, _ = usable(corpus)
    found = []
    for jobs in (1, 2):
        path = tmp_path / f"{jobs}.npy"
        shutil.copy(experiment / "alignment" / "train.npy", path)
        what = Pass(corpus, path, experiment / "lda")
        answer = collect(what, numbers, realign=True, title="aligning", jobs=jobs, show=False)
        found.append((path.read_bytes(), answer.moments.log_likelihood, answer.loop().tobytes()))
    assert found[0] == found[1]


def test_the_task_deals_every_frame_once_an_epoch(experiment: Path) -> None:
    task = SpeechTask(str(experiment), batch_frames=200)
    items = task.items("train")
    labels = [task.load("train", item, epoch=1)[1] for item in items]
    counts = np.bincount(np.concatenate(labels), minlength=task.num_senones)
    everything = np.load(experiment / "alignment" / "train.npy")
    assert np.array_equal(
        counts, np.bincount(everything[everything >= 0], minlength=task.num_senones)
    )
    x, y = task.load("train", items[0], epoch=1)
    assert x.shape == (200, 440)
    again, other = task.load("train", items[0], 1)[1], task.load("train", items[0], 2)[1]
    assert np.array_equal(y, again)
    assert not np.array_equal(y, other)


def test_a_claim_is_tried_on_a_speech_task(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the settings that the folder brings along; every run is decoded."""
    (experiment / "train.toml").write_text("[model]\nwidth = 16\n[schedule]\nepochs = 2\n")
    ask = ("reproduce", "final-combination", "--smoke", "--jobs", 1, "--out", tmp_path)
    try:
        assert hocket(*ask, "--task", experiment) == 0
    finally:
        (experiment / "train.toml").unlink()
    assert "WER %" in capsys.readouterr().out
    assert (tmp_path / "final-combination-exp.html").exists()
    kept = [json.loads(p.read_text()) for p in tmp_path.glob("cache/*/outcome.json")]
    frames = {one["frames"] for one in kept}
    assert frames == {2 * sum(i.frames for i in SpeechTask(str(experiment)).items("train"))}
    assert all(0 < one["wer"] <= 2 for one in kept)


def test_alignments_go_through_kaldis_archives_and_come_back(experiment: Path, root: Path) -> None:
    there, back = root / "kaldi", root / "back"
    assert hocket("export", experiment, "--out", there, "--features", "mfcc") == 0
    splits = [w for s in ("train", "dev") for w in (
        f"--{s}", there / s, f"--{s}-ali", there / s / "pdf.ark.gz")]  # fmt: skip
    senones = SpeechTask(str(experiment)).num_senones
    assert hocket("import", *splits, "--num-pdfs", senones, "--out", back, "--quiet") == 0
    for split in ("train", "dev"):
        a = FeatureStore(experiment / "features" / split, "mfcc", "none")
        b = FeatureStore(back / "features" / split, "kaldi", "none")
        before, after = (np.load(e / "alignment" / f"{split}.npy") for e in (experiment, back))
        assert len(b) > 5
        for number, name in enumerate(b.ids):
            old = a.ids.index(name)
            assert np.array_equal(a.utterance(old), b.utterance(number))
            old_labels = before[a.first[old] : a.first[old] + a.frames[old]]
            assert np.array_equal(
                old_labels, after[b.first[number] : b.first[number] + b.frames[number]]
            )


def test_damaged_files_are_named(
    run: Path, experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (run / "decode").is_dir():
        assert hocket("decode", run, "--quiet") == 0
    copy, exp = tmp_path / "run", tmp_path / "exp"
    shutil.copytree(run, copy)
    shutil.copytree(experiment, exp)
    model, config = copy / "model.safetensors", copy / "config.json"
    labels, result = exp / "alignment" / "train.npy", copy / "decode" / "result.json"
    for path, keep, arguments, says in [
        (model, 1000, ("decode", copy, "--quiet"), "copy it again, or take the model of the last"),
        (labels, 5000, ("train", exp, "--out", tmp_path / "r", "--quiet"), "prepare it again"),
        (config, 20, ("score", copy), "cannot be read"),
        (config, 20, ("decode", copy), "is not a run directory"),
        (result, 20, ("score", copy), "decode again"),
        (result, 0, ("score", copy), "decode again"),
    ]:
        good = path.read_bytes()
        path.write_bytes(good[:keep])
        assert hocket(*arguments) in (1, 2)
        said = capsys.readouterr().err
        assert says in said, said
        assert path.name in said
        assert "Traceback" not in said
        path.write_bytes(good)


def test_options_that_cannot_take_effect_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (run / "decode").is_dir():
        assert hocket("decode", run, "--quiet") == 0
    loglikes = ("decode", run, "--write-loglikes", tmp_path / "x.ark")
    for arguments, option in [
        ((*loglikes, "--beam", 12), "--beam"),
        ((*loglikes, "--max-active", 99), "--max-active"),
        ((*loglikes, "--jobs", 1), "--jobs"),
        (("score", run, "--json", "--worst", 2), "--worst"),
        (("score", run, "--json", "--html", tmp_path / "x.html"), "--html"),
        (("score", run, run, "--worst", 2), "--worst"),
    ]:
        assert hocket(*arguments) == 2
        assert f"{option} has no effect" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_trained_decoded_and_scored(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hocket("decode", run, "--quiet") == 0
    said = capsys.readouterr().out
    assert "tuned on dev: acoustic scale" in said
    result = json.loads((run / "decode" / "result.json").read_text())
    errors = result["score"]["errors"]
    wrong = errors["substitutions"] + errors["deletions"] + errors["insertions"]
    assert wrong / errors["words"] < 0.5  # held-out voices, four minutes of training
    assert hocket("score", run) == 0
    assert f"{wrong} errors in {errors['words']} words" in capsys.readouterr().out
    reference = run.parent / "data" / "test"
    assert hocket("score", run / "decode" / "test.hyp", "--ref", reference, "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["wer"] == pytest.approx(wrong / errors["words"])
    assert len(again["speakers"]) >= 2


def test_priors_may_be_the_networks_own(run: Path, experiment: Path) -> None:
    model, own, _ = network_of(run, "posterior")
    _, counted, _ = network_of(run, "alignment")
    assert float(own.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    assert not torch.equal(own, counted)
    task = task_of(run)
    with torch.inference_mode():
        x, _ = task.sample(1000)
        direct = torch.softmax(model(x), 1).mean(0).numpy()
    np.testing.assert_allclose(mean_posteriors(model, task, 1000), direct, rtol=1e-3, atol=1e-6)
    scorers = NetworkScorer(run), NetworkScorer(run, "posterior")
    store = scorers[0].store("dev")
    a, b = (scorer.scores(store, 0) for scorer in scorers)
    np.testing.assert_allclose(a - b, (own - counted).expand(len(a), -1).numpy(), atol=1e-4)


def test_the_report_is_one_file_with_everything_in_it(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert hocket("report", run, run, "--out", page, "--target-loss", 3.0) == 0
    text = page.read_text()
    assert text.count("<svg") >= 6
    assert "dev loss against time" in text
    assert "rank 1" in text
    assert "http" not in text.replace("http://www.w3.org", "")


def test_resumed_training_reads_the_same_experiment(run: Path, experiment: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    assert config["task"]["experiment"] == str(experiment.resolve())
    assert config["facts"]["senones"] <= SENONES
    assert hocket("train", "--resume", "--out", run, "--epochs", 5, "--quiet") == 0


def test_a_run_of_an_experiment_that_changed_is_not_decoded(
    run: Path, experiment: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = root / "changed"
    shutil.copytree(run, copy)
    config = json.loads((copy / "config.json").read_text())
    config["facts"]["prepared"] = "another"
    (copy / "config.json").write_text(json.dumps(config))
    assert hocket("decode", copy) == 2
    assert "was prepared again" in capsys.readouterr().err


def test_commands_say_what_is_missing(
    root: Path, experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.hyp").write_text("a one\n")
    for arguments, message in [
        (("train", tmp_path, "--out", tmp_path / "r"), "preparation is not finished"),
        (("train", "nowhere", "--out", tmp_path / "r"), "'stream' nor a folder made by"),
        (("prepare", tmp_path / "none", "--out", tmp_path / "e"), "no such folder"),
        (("prepare", tmp_path, "--out", tmp_path / "e"), "neither a Kaldi data directory"),
        (("decode", tmp_path), "is not a run directory"),
        (("score", tmp_path), "holds no decoded words"),
        (("score", tmp_path / "x.hyp"), "give the reference"),
        (("report", tmp_path, "--out", tmp_path / "p.html"), "is not a run directory"),
        (("corpus", "digits", "--out", tmp_path / "c", "--snr", "loud"), "--snr takes A:B"),
        (("corpus", "digits", "--out", tmp_path / "c", "--snr", "5:9", "--clean"), "leave one out"),
        (("corpus", "digits", "--out", tmp_path / "c", "--jobs", 0), "--jobs must be at least 1"),
    ]:
        assert hocket(*arguments) in (1, 2)
        assert message in capsys.readouterr().err


def test_the_worst_utterances_can_be_looked_at_and_listened_to(
    root: Path, run: Path, experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (run / "decode").is_dir():
        assert hocket("decode", run, "--quiet") == 0
    page = root / "worst.html"
    assert hocket("score", run, "--worst", 3, "--html", page) == 0
    said = capsys.readouterr().out
    text = page.read_text()
    shown = said.count("REF:")
    assert shown == text.count("<audio") <= 3
    assert text.count("data:audio/wav;base64,UklGR") == shown  # RIFF
    assert hocket("score", experiment, run) == 0
    assert "difference" in capsys.readouterr().out


def test_the_network_aligns_again(run: Path, experiment: Path, tmp_path: Path) -> None:
    """Its alignment passes through the same phones and fits the network better than the old one."""
    again = tmp_path / "again"
    assert hocket("realign", run, "--out", again, "--jobs", 1, "--quiet") == 0
    store = FeatureStore(again / "features" / "train", "mfcc")
    senones = Senones.read(again / "lda" / "tree.json")
    lexicon = read_lexicon(again / "lexicon" / "lexicon.txt")
    before, after = (np.load(exp / "alignment" / "train.npy") for exp in (experiment, again))
    assert (after[before >= 0] >= 0).all()
    assert 0 < (before != after)[before >= 0].mean() < 0.5
    scorer = NetworkScorer(run)
    scored = scorer.store("train")
    gains = []
    for number in range(0, len(store), 7):
        first, length = store.first[number], store.frames[number]
        mine = slice(first, first + length)
        if before[first] < 0:
            continue
        spans = phone_spans(after[mine], senones.owners)[:, 0]
        spoken = tuple(senones.phones[p - 1] for p in spans if p != 1)
        assert spoken in ways_to_say(store.words[number], lexicon)
        rows, scores = np.arange(length), scorer.scores(scored, number)
        gains.append((scores[rows, after[mine]] - scores[rows, before[mine]]).mean())
    assert np.mean(gains) > 0
    task = SpeechTask(str(again))
    assert task.describe()["prepared"] != SpeechTask(str(experiment)).describe()["prepared"]
    assert len(task.items("dev")) > 0
    assert hocket("realign", run, "--out", again, "--quiet") == 2  # it is there already
