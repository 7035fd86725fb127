"""A GGUF file is converted to the weights it was written from, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_model import fetched, reference, release, wheel, write_gguf
from transformers import AutoModelForCausalLM

from decodelog.fsm.errors import BrokenArtifact, UnsupportedModel
from decodelog.runtime.families.decoder.config import parse_config
from decodelog.runtime.families.decoder.model import load_decoder
from decodelog.runtime.model.gguf import convert_gguf

__all__ = ["fetched", "release", "wheel"]


@pytest.mark.contract("FAM-7")
def test_a_converted_checkpoint_has_the_original_weights_in_their_order(fetched: Path) -> None:
    original = reference().state_dict()
    converted = AutoModelForCausalLM.from_pretrained(fetched, dtype=torch.float32)
    for name, values in converted.state_dict().items():
        assert torch.equal(values, original[name]), name
    assert converted.config.rope_parameters["rope_theta"] == 5000.0
    assert converted.config.rms_norm_eps == 1e-5  # the float32 of the file, as the decimal it was written from
    assert load_decoder(fetched).config == parse_config(json.loads((fetched / "config.json").read_text()))


@pytest.mark.contract("FAM-7")
@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("general.architecture", {"architecture": "gpt2"}),
        ("tokenizer.ggml.model", {"model": "llama"}),
        ("tokenizer.ggml.pre", {"pre": "qwen2"}),
        ("tensor", {"tensor": "blk.0.attn_sinks.weight"}),
        ("llama.rope.scaling", {"scaling": "yarn"}),
    ],
)
def test_a_file_that_is_not_understood_in_full_is_refused(tmp_path: Path, key: str, change: dict[str, str]) -> None:
    write_gguf(tmp_path / "x.gguf", **change)
    with pytest.raises(UnsupportedModel) as caught:
        convert_gguf(tmp_path / "x.gguf", tmp_path)
    assert caught.value.key == key


@pytest.mark.contract("FAM-7")
@pytest.mark.parametrize("content", [b"", b"GGUF", b"no GGUF file at all, and long enough to hold its header"])
def test_a_file_that_is_no_gguf_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(BrokenArtifact, match=r"x\.gguf"):
        convert_gguf(tmp_path / "x.gguf", tmp_path)
