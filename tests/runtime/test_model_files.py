"""The files of a checkpoint: what stands in for one is named, none is read without end, and no two contradict."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from test_decoder_config import RAW, write

from decodelog.fsm.errors import BrokenArtifact, ContradictoryModel, LimitExceeded, UnsupportedModel
from decodelog.fsm.limits import MODEL_JSON_BYTES_MAX
from decodelog.runtime import files
from decodelog.runtime.families.decoder import weights
from decodelog.runtime.families.decoder.config import parse_config
from decodelog.runtime.families.decoder.model import load_decoder
from decodelog.runtime.model.artifacts import load_facts
from decodelog.runtime.text.tokenizer import load_text

POINTER = files.LFS_POINTER + b"v1\noid sha256:" + b"a" * 64 + b"\nsize 5\n"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
NAMES = ("config.json", "tokenizer.json", "model.safetensors")


def checkpoint(directory: Path, **changes: Any) -> dict[str, torch.Tensor]:
    (directory / "tokenizer.json").write_text("{}")
    return write(directory, **changes)


# ---- contradictions --------------------------------------------------------------------------------------------------


@pytest.mark.contract("FAM-8")
@pytest.mark.parametrize("head", [torch.ones(11, 16), torch.zeros(11, 15), torch.zeros(12, 16)])
def test_a_head_that_contradicts_a_tied_config_is_refused(tmp_path: Path, head: torch.Tensor) -> None:
    """A head beside a config that says it is the embedding is refused naming both."""
    tensors = checkpoint(tmp_path, tie_word_embeddings=True)
    save_file(tensors | {HEAD: head}, tmp_path / "model.safetensors")
    with pytest.raises(ContradictoryModel, match="tie_word_embeddings") as caught:
        load_decoder(tmp_path)
    assert HEAD in str(caught.value)
    assert EMBEDDING in str(caught.value)
    assert "config.json" in caught.value.one


@pytest.mark.contract("FAM-8")
def test_one_number_of_a_head_is_enough(tmp_path: Path) -> None:
    tensors = checkpoint(tmp_path, tie_word_embeddings=True)
    head = tensors[EMBEDDING].clone()
    save_file(tensors | {HEAD: head}, tmp_path / "model.safetensors")
    load_decoder(tmp_path)
    head[10, 15] = 1e-30
    save_file(tensors | {HEAD: head}, tmp_path / "model.safetensors")
    with pytest.raises(ContradictoryModel):
        load_decoder(tmp_path)


@pytest.mark.contract("FAM-8")
def test_a_config_that_says_there_is_a_head_and_no_head_names_it(tmp_path: Path) -> None:
    tensors = checkpoint(tmp_path)
    del tensors[HEAD]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(BrokenArtifact, match=r"lm_head\.weight.*config\.json"):
        load_decoder(tmp_path)


@pytest.mark.contract("FAM-8")
def test_layers_that_the_config_does_not_have_are_named_with_its_number(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(RAW | {"num_hidden_layers": 1}))
    with pytest.raises(ContradictoryModel, match=r"num_hidden_layers = 1.*model\.layers\.1\."):
        load_decoder(tmp_path)


def shards(directory: Path, first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], index: bool) -> None:
    (directory / "model.safetensors").unlink()
    places: dict[str, str] = {}
    for number, tensors in enumerate((first, second), 1):
        save_file(tensors, directory / f"shard-{number}.safetensors")
        places |= dict.fromkeys(tensors, f"shard-{number}.safetensors")
    if index:
        (directory / weights.INDEX).write_text(json.dumps({"weight_map": places}))


@pytest.mark.contract("FAM-8")
@pytest.mark.parametrize("index", [True, False])
def test_a_tensor_that_two_files_have_is_refused(tmp_path: Path, index: bool) -> None:
    tensors = checkpoint(tmp_path)
    rest = {name: tensor for name, tensor in tensors.items() if name != EMBEDDING}
    shards(tmp_path, {EMBEDDING: tensors[EMBEDDING]}, rest, index)
    load_decoder(tmp_path)
    shards_again = rest | {EMBEDDING: torch.ones(11, 16)}
    save_file(shards_again, tmp_path / "shard-2.safetensors")
    with pytest.raises(ContradictoryModel, match=EMBEDDING):
        load_decoder(tmp_path)


@pytest.mark.contract("FAM-8")
def test_an_index_that_places_a_tensor_in_another_file_is_refused(tmp_path: Path) -> None:
    tensors = checkpoint(tmp_path)
    first = {name: tensors.pop(name) for name in (EMBEDDING, HEAD)}
    shards(tmp_path, first, tensors, index=True)
    index = json.loads((tmp_path / weights.INDEX).read_text())
    index["weight_map"][EMBEDDING] = "shard-2.safetensors"
    (tmp_path / weights.INDEX).write_text(json.dumps(index))
    with pytest.raises(ContradictoryModel, match=r"shard-2") as caught:
        load_decoder(tmp_path)
    assert weights.INDEX in caught.value.one


# ---- what is no file of a model --------------------------------------------------------------------------------------


@pytest.mark.contract("FAM-7")
@pytest.mark.parametrize("name", NAMES)
def test_a_git_lfs_pointer_is_named_as_one(tmp_path: Path, name: str) -> None:
    checkpoint(tmp_path)
    (tmp_path / name).write_bytes(POINTER)
    with pytest.raises(BrokenArtifact, match="Git LFS pointer") as caught:
        load_facts(tmp_path)
    assert caught.value.path == str(tmp_path / name)


@pytest.mark.contract("FAM-7")
@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.gguf", "model.pt"])
def test_weights_of_another_format_are_named(tmp_path: Path, name: str) -> None:
    checkpoint(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / name)
    with pytest.raises(UnsupportedModel, match="safetensors") as caught:
        load_facts(tmp_path)
    assert (caught.value.key, caught.value.value) == ("weights", name)


@pytest.mark.contract("ENV-1", "FAM-7")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stand_in", ["/dev/zero", "/dev/full", "a pipe", "a folder", "nothing"])
def test_what_is_no_regular_file_is_refused_and_never_read(tmp_path: Path, name: str, stand_in: str) -> None:
    checkpoint(tmp_path)
    (tmp_path / name).unlink()
    if stand_in == "a pipe":
        os.mkfifo(tmp_path / name)  # nobody writes to it: who waits for it waits for ever
    elif stand_in == "a folder":
        (tmp_path / name).mkdir()
    elif stand_in != "nothing":
        (tmp_path / name).symlink_to(stand_in)
    with pytest.raises(BrokenArtifact):
        load_facts(tmp_path)
    with pytest.raises(BrokenArtifact):
        load_decoder(tmp_path) if name != "tokenizer.json" else load_text(tmp_path, 11)


@pytest.mark.contract("ENV-1", "FAM-7")
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json", weights.INDEX])
def test_a_file_larger_than_any_of_its_kind_is_refused_by_its_size(tmp_path: Path, name: str) -> None:
    checkpoint(tmp_path)
    with (tmp_path / name).open("wb") as file:
        file.truncate(MODEL_JSON_BYTES_MAX + 1)
    with pytest.raises(LimitExceeded, match=name.replace(".", r"\.")):
        load_facts(tmp_path)


@pytest.mark.contract("ENV-1", "FAM-7")
def test_a_tokenizer_larger_than_any_is_refused_by_its_size(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(1 << 40)  # a terabyte that takes no room
    with pytest.raises(LimitExceeded, match=r"tokenizer\.json"):
        load_text(tmp_path, 11)


@pytest.mark.contract("ENV-1", "FAM-7")
@pytest.mark.parametrize("size", [10**12, 10**400])
@pytest.mark.parametrize("key", [key for key in RAW if key != "model_type"])
def test_a_size_that_no_model_has_is_refused_before_anything_is_made_of_it(key: str, size: int) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        parse_config(RAW | {key: size})
    assert caught.value.key == key
    assert len(str(caught.value)) < 400
