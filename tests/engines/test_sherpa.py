"""sherpa-onnx reads what `examples/ctc.py --export` writes; `make test-engines` installs it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sherpa_onnx = pytest.importorskip("sherpa_onnx", reason="no sherpa-onnx: see `make test-engines`")
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning"),
]
EXAMPLE = Path(__file__).parents[2] / "examples" / "ctc.py"
BINS = 80


def test_the_exported_model_speaks_the_units_of_its_tokens(tmp_path: Path) -> None:
    """A network that hears one unit in every frame: sherpa-onnx answers with that unit, once."""
    spec = importlib.util.spec_from_file_location("ctc", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    ctc = sys.modules["ctc"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ctc)
    units = ctc.Units([ctc.Spoken(torch.empty(0), ("abc", "bad"))])
    torch.manual_seed(0)
    model = ctc.Conformer(BINS, len(units.names), width=16, blocks=1)
    torch.nn.init.zeros_(model.output.weight)
    speech = 0.1 * np.random.default_rng(0).normal(size=16_000).astype(np.float32)
    for heard in ("a", "d", "<blk>"):
        torch.nn.init.zeros_(model.output.bias)
        with torch.no_grad():
            model.output.bias[units.names.index(heard)] = 5.0
        ctc.export(model, units, BINS, tmp_path)
        recognizer = sherpa_onnx.OfflineRecognizer.from_zipformer_ctc(
            model=str(tmp_path / "model.onnx"), tokens=str(tmp_path / "tokens.txt")
        )
        stream = recognizer.create_stream()
        stream.accept_waveform(16_000, speech)
        recognizer.decode_stream(stream)
        assert stream.result.text == ("" if heard == "<blk>" else heard)
