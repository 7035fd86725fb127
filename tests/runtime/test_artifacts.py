"""Models on this machine: how they are found, and that hashes are believed only while files stay the same."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_model import NAME, fetched, reference, release, wheel

from decodelog.fsm.errors import (
    BrokenArtifact,
    ContradictoryModel,
    ModelNotFetched,
    Problem,
    UnknownModel,
    UnsupportedModel,
)
from decodelog.runtime.families.decoder.weights import weight_files
from decodelog.runtime.model import artifacts, releases
from decodelog.runtime.model.artifacts import fetch_model, load_facts
from decodelog.runtime.model.releases import find_model, list_models

__all__ = ["fetched", "release", "wheel"]


# ---- finding ---------------------------------------------------------------------------------------------------------


def test_a_fetched_model_is_found_by_name_and_by_directory(tmp_path: Path, fetched: Path) -> None:
    assert find_model(NAME, tmp_path) == fetched
    assert find_model(str(fetched), tmp_path / "elsewhere") == fetched


def test_an_unknown_model_names_the_known_ones_and_how_to_fetch(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel) as caught:
        find_model("gpt-9", tmp_path)
    assert caught.value.known == sorted(releases.RELEASES)
    assert "smollm2-135m-instruct" in str(caught.value)
    assert "fetch one of those names" in str(caught.value)
    with pytest.raises(UnknownModel):
        fetch_model("gpt-9", tmp_path)


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-of-that-name/model", "a\0b", "\ud800", ""])
def test_a_name_that_no_file_can_have_is_an_unknown_model(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        find_model(name, tmp_path)
    assert caught.value.name == name


def test_a_known_model_that_is_not_here_says_how_to_fetch_it(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFetched, match=f"the model {NAME} is not on this machine; fetch it"):
        find_model(NAME, tmp_path)


def test_listing_tells_what_is_here(tmp_path: Path, fetched: Path) -> None:
    by_name = {listing.name: listing for listing in list_models(tmp_path)}
    assert by_name[NAME].fetched
    assert by_name[NAME].size_bytes > 10_000
    assert not by_name["smollm2-135m-instruct"].fetched
    assert by_name["smollm2-135m-instruct"].size_bytes == 0


# ---- facts -----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("ENV-6")
def test_the_facts_of_a_fetched_model(fetched: Path) -> None:
    facts = load_facts(fetched)
    text = (fetched / "tokenizer_config.json").read_text()
    assert facts.release_id == NAME
    assert facts.architecture == "decoder_only"
    for found, name in [
        (facts.checkpoint_sha256, "model.safetensors"),
        (facts.config_sha256, "config.json"),
        (facts.tokenizer_sha256, "tokenizer.json"),
    ]:
        assert found == hashlib.sha256((fetched / name).read_bytes()).hexdigest()
    assert facts.template_sha256 == hashlib.sha256(json.loads(text)["chat_template"].encode()).hexdigest()
    assert facts.has_chat_template
    assert (facts.vocabulary_size, facts.context_tokens_max) == (8, 32)
    assert (facts.bos_id, facts.eos_ids, facts.pad_id) == (1, (2,), 0)
    assert facts.cache_abi == ("slot_arena/v1:layers=2,kv_heads=2,head_dim=8,dtype=float32,rope=default(theta=5000)")
    assert load_facts(fetched, dtype="bfloat16").weight_dtype == "bfloat16"
    with pytest.raises(UnsupportedModel, match="float8"):
        load_facts(fetched, dtype="float8")


@pytest.mark.contract("ENV-6")
def test_a_hash_is_believed_only_while_size_and_time_stay(fetched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    original = artifacts._sha256

    def counting(path: Path) -> str:
        hashed.append(path.name)
        return original(path)

    monkeypatch.setattr(artifacts, "_sha256", counting)
    facts = load_facts(fetched)
    assert hashed == []
    os.utime(fetched / "model.safetensors")
    assert load_facts(fetched) == facts
    assert hashed == ["model.safetensors"]
    assert load_facts(fetched, verify=True) == facts
    assert sorted(hashed[1:]) == ["config.json", "model.safetensors", "tokenizer.json"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def flip_unseen(path: Path) -> None:
    status = path.stat()
    flip(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.contract("ENV-6")
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize(("damage", "verify"), [(flip, False), (flip_unseen, True), (Path.unlink, False)])
def test_a_changed_or_missing_file_is_named(
    fetched: Path, name: str, damage: Callable[[Path], None], verify: bool
) -> None:
    damage(fetched / name)
    with pytest.raises(BrokenArtifact) as caught:
        load_facts(fetched, verify=verify)
    assert name in str(caught.value) or "safetensors" in str(caught.value)


@pytest.mark.contract("ENV-6", "FAM-7")
def test_a_directory_of_anyones_is_described_by_its_hashes(tmp_path: Path, fetched: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(fetched, copy)
    (copy / releases.MANIFEST).unlink()
    facts = load_facts(copy)
    assert facts.release_id == f"checkpoint-{facts.checkpoint_sha256[:16]}"
    tiny: Any = reference()
    tiny.save_pretrained(copy, max_shard_size="10KB")
    (copy / "model.safetensors").unlink(missing_ok=True)
    sharded = load_facts(copy)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in weight_files(copy)]
    assert len(lines) > 2
    assert sharded.checkpoint_sha256 == hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.mark.contract("OUT-3")
def test_the_end_ids_come_from_the_generation_config_first(tmp_path: Path, fetched: Path) -> None:
    path = fetched / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": [5, 2, 5]}))
    assert load_facts(fetched).eos_ids == (5, 2)
    path.unlink()
    copy = tmp_path / "copy"
    shutil.copytree(fetched, copy)
    (copy / releases.MANIFEST).unlink()
    config = json.loads((copy / "config.json").read_text())
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        del config[key]
    (copy / "config.json").write_text(json.dumps(config))
    facts = load_facts(copy)  # by the tokenizer's names
    assert (facts.bos_id, facts.eos_ids, facts.pad_id) == (1, (2,), 0)


@pytest.mark.contract("ENV-6")
@pytest.mark.parametrize("kind", ["bos", "eos", "pad"])
@pytest.mark.parametrize("where", ["generation_config.json", "config.json", "tokenizer_config.json"])
def test_a_special_id_that_the_vocabulary_lacks_is_refused_at_load(fetched: Path, where: str, kind: str) -> None:
    """Else a mask of the end ids would write into the row of a batch mate."""
    size = load_facts(fetched).vocabulary_size
    (fetched / releases.MANIFEST).unlink()
    last = size - 1 if kind != "eos" else [2, size - 1]
    for stated, name in ((last, None), (size, str(size)), ([2, size + 7], str(size + 7)), (-1, "-1")):
        if where == "tokenizer_config.json":
            if not isinstance(stated, int):
                continue
            state(fetched, "config.json", **{f"{kind}_token_id": None})
            state(fetched, "generation_config.json", **{f"{kind}_token_id": None})
            state(fetched, where, **{f"{kind}_token": "<|far|>"})
            tokenizer = json.loads((fetched / "tokenizer.json").read_text())
            tokenizer["added_tokens"] = [{"content": "<|far|>", "id": stated}]
            (fetched / "tokenizer.json").write_text(json.dumps(tokenizer))
        else:
            state(fetched, "generation_config.json", **{f"{kind}_token_id": None})
            state(fetched, where, **{f"{kind}_token_id": stated})
        if name is None:
            load_facts(fetched)
            continue
        if kind == "pad":  # nothing is padded
            assert load_facts(fetched).pad_id in (None, *range(size))
            continue
        if (where, kind) == ("tokenizer_config.json", "eos") and isinstance(stated, int) and stated >= size:
            with pytest.raises(ContradictoryModel, match=rf"its end token has the id {name}"):
                load_facts(fetched)
            continue
        with pytest.raises(BrokenArtifact, match=rf"{kind}_token_id is {name}, and its vocabulary"):
            load_facts(fetched)


def state(directory: Path, name: str, **fields: object) -> None:
    path = directory / name
    before = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**before, **fields}))


@pytest.mark.contract("OUT-3")
def test_the_real_models_facts() -> None:
    try:
        directory = find_model("smollm2-135m-instruct", Path.home() / ".cache" / "decodelog")
    except Problem as error:
        pytest.fail(f"{error}: this test runs on the real model")
    facts = load_facts(directory)
    assert (facts.vocabulary_size, facts.context_tokens_max) == (49152, 8192)
    assert (facts.bos_id, facts.eos_ids, facts.pad_id) == (1, (2,), 2)
    assert facts.checkpoint_sha256 == "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd"


UNSTATED = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}  # then the tokenizer is asked


@pytest.mark.contract("ENV-6")
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", b"\xff", r"config\.json"),
        ("config.json", b"3", "not a JSON object"),
        ("tokenizer_config.json", b'{"chat_template": "\xff"}', r"tokenizer_config\.json"),
        ("tokenizer_config.json", b"[]", "not a JSON object"),
        ("tokenizer_config.json", b'{"chat_template": 3}', "chat_template is not a text"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}, {"name": ["default"]}]}', None),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default", "template": {}}]}', "chat_template"),
        ("tokenizer_config.json", b'{"chat_template": ["default"], "eos_token": 3}', None),
        ("tokenizer_config.json", b'{"chat_template": "\\udcff"}', r"tokenizer_config\.json"),
        ("chat_template.jinja", b"{{ '\xff' }}", r"chat_template\.jinja.*utf-8"),
        ("generation_config.json", b"null", "not a JSON object"),
        ("generation_config.json", b'{"eos_token_id": "2"}', "eos_token_id"),
        ("generation_config.json", b'{"pad_token_id": [[2]]}', "pad_token_id"),
        ("generation_config.json", b'{"bos_token_id": true}', "bos_token_id"),
        ("tokenizer.json", b'{"added_tokens": 3}', None),
        ("tokenizer.json", b'{"added_tokens": [3, {"id": "2", "content": "<|im_end|>"}, {}]}', None),
        ("tokenizer.json", b"\xff", r"tokenizer\.json"),
        (releases.MANIFEST, b"{}", "does not list"),
        (releases.MANIFEST, b'{"files": ["config.json"]}', "does not list"),
        (releases.MANIFEST, b'{"files": {"config.json": {}}}', "does not list"),
        (releases.MANIFEST, b'{"files": {"config.json": 3}}', "does not list"),
    ],
)
def test_a_file_of_another_form_is_named(fetched: Path, name: str, content: bytes, words: str | None) -> None:
    config = json.loads((fetched / "config.json").read_text())
    (fetched / "config.json").write_text(json.dumps(config | UNSTATED))
    (fetched / releases.MANIFEST).unlink()
    (fetched / name).write_bytes(content)
    if words is None:  # as good as absent, or for the tokenizer library to judge
        assert load_facts(fetched).eos_ids == ()
        return
    with pytest.raises((BrokenArtifact, UnsupportedModel), match=words):
        load_facts(fetched)
