"""Networks as ONNX files; the one door to the exporter. Needs the extra `hocket[onnx]`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from hocket.errors import ConfigError
from hocket.support.files import atomically

OPSET = 17  # old enough for the runtimes in use, new enough for all that our networks do


def write_onnx(
    model: nn.Module,
    example: torch.Tensor,
    path: Path,
    given: str,
    result: str,
    facts: Mapping[str, str],
) -> None:
    """Write a model of one input (N, T, ...) and one output (N, T, ...), sizes N and T open."""
    try:
        import onnx
    except ImportError as error:
        raise ConfigError(
            f"an ONNX file needs {error.name}, which is not installed: pip install 'hocket[onnx]'"
        ) from error
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent} is not a folder: make it, or write elsewhere")
    open_sizes = {0: "utterances", 1: "frames"}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with atomically(path) as partial:
        torch.onnx.export(
            model,
            (example,),
            partial,
            input_names=[given],
            output_names=[result],
            dynamic_axes={given: open_sizes, result: open_sizes},
            opset_version=OPSET,
            dynamo=False,  # the newer exporter keeps the length of recurrent layers fixed
        )
        made = onnx.load(partial)
        onnx.helper.set_model_props(made, dict(facts))
        onnx.checker.check_model(made)
        onnx.save(made, partial)
