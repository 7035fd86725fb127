"""Signatures: who vouches for an exported file, and what is refused as a key."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path

import pytest
from commandline import decodelog, script
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from decodelog.service.archive.export import export
from decodelog.service.database import opened
from decodelog.service.inspect.audit import verify
from decodelog.service.signing import public_key, signer
from decodelog.store.archive.bundle import SIGNATURE, Bundle, Signature
from decodelog.store.archive.frames import frames

pytestmark = pytest.mark.contract("LOG-3")


def keys(folder: Path, name: str = "key") -> tuple[Path, Path]:
    """The files of a new private key and of its public one."""
    private, public = folder / f"{name}.pem", folder / f"{name}.public.pem"
    key = Ed25519PrivateKey.generate()
    private.touch(0o600)
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


def of_unknown_curve(key: bytes, kind: str) -> bytes:
    """A key on P-256 in DER, as one in PEM on a curve that has no name."""
    curve = bytes.fromhex("06082a8648ce3d030107")
    assert curve in key
    text = base64.encodebytes(key.replace(curve, curve[:-1] + b"\x7f"))
    return f"-----BEGIN {kind} KEY-----\n{text.decode()}-----END {kind} KEY-----\n".encode()


@pytest.fixture
def db(sqlite_url: str, tmp_path: Path) -> str:
    model = script(tmp_path / "model", script={"text": "Hi"})
    for _ in range(2):
        assert decodelog("run", "--model", model, "--prompt", "G", db=sqlite_url).code == 0
    return sqlite_url


@pytest.fixture
def signed(db: str, tmp_path: Path) -> tuple[Path, Path]:
    """A signed file, and the public key."""
    private, public = keys(tmp_path)
    file = tmp_path / "signed.dlog"
    told = decodelog("export", "--all", "--out", file, "--key", private, "--json", db=db)
    assert told.code == 0
    assert told.json["signed_by"] == public_key(public).hex()
    return file, public


def told(file: Path, key: Path | None = None) -> tuple[int, list[str]]:
    ended = decodelog("verify", file, "--json", *(["--key", key] if key else []))
    return ended.code, [fault["kind"] for fault in ended.json["faults"]]


def test_a_signed_file_is_proven_with_the_key_and_with_no_other(signed: tuple[Path, Path], tmp_path: Path) -> None:
    file, public = signed
    _, other = keys(tmp_path, "other")
    assert told(file) == (0, [])
    assert told(file, public) == (0, [])
    assert told(file, other) == (1, ["signature"])
    assert "proven" in decodelog("verify", file, "--key", public).stdout
    assert "not checked without --key" in decodelog("verify", file).stdout
    assert "not proven" in decodelog("verify", file, "--key", other).stdout
    assert decodelog("verify", file, "--json").json["signature_checked"] is False


def test_a_file_without_this_keys_signature_is_refused(db: str, signed: tuple[Path, Path], tmp_path: Path) -> None:
    """Everything else of it is sound: whoever can write a file can take all its digests anew."""
    file, public = signed
    private, _ = keys(tmp_path, "other")
    plain, foreign, posed = (tmp_path / name for name in ("plain", "foreign", "posed"))
    with opened(db) as store:
        export(store, None, plain)
        export(store, None, foreign, sign=signer(private))
        claimed = public_key(public)
        export(store, None, posed, sign=lambda digest: Signature(claimed, signer(private)(digest).value))
    for each in (plain, foreign, posed):
        assert verify(each).ok
        assert told(each, public) == (1, ["signature"])
    with file.open("rb") as opened_file:
        signature = Bundle(opened_file).signature
    assert signature is not None
    with opened(db) as store:
        job = store.rows()[0].job
        export(store, [job], tmp_path / "moved", sign=lambda digest: signature)  # of another file
    assert told(tmp_path / "moved", public) == (1, ["signature"])


def test_every_changed_byte_of_a_signed_file_is_found(signed: tuple[Path, Path]) -> None:
    file, public = signed
    data = file.read_bytes()
    with file.open("rb") as opened_file:
        (at,) = [frame.offset for frame in frames(opened_file) if frame.kind == SIGNATURE]
    for place in [*range(30, at, 97), *range(at, len(data))]:
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert not verify(file, public_key(public)).ok, place
    for cut in (at, len(data) - 1):
        file.write_bytes(data[:cut])
        assert not verify(file, public_key(public)).ok
    file.write_bytes(data + data[at:])
    assert not verify(file).ok


def test_the_same_logs_and_the_same_key_are_the_same_bytes(db: str, tmp_path: Path) -> None:
    private, _ = keys(tmp_path)
    for name in ("one", "two", "plain"):
        with opened(db) as store:
            export(store, None, tmp_path / name, sign=None if name == "plain" else signer(private))
    one, two, plain = ((tmp_path / name).read_bytes() for name in ("one", "two", "plain"))
    assert one == two
    assert one.startswith(plain)


def test_a_restore_can_ask_for_a_signature(db: str, signed: tuple[Path, Path], tmp_path: Path) -> None:
    file, public = signed
    _, other = keys(tmp_path, "other")
    new = f"sqlite:///{tmp_path / 'new.db'}"
    refused = decodelog("restore", file, "--key", other, "--json", db=new)
    assert (refused.code, refused.error["code"]) == (2, "broken_snapshot")
    assert not (tmp_path / "new.db").exists()
    assert decodelog("restore", file, "--key", public, db=new).code == 0


def test_what_cannot_be_used_as_a_key_is_refused_by_name(db: str, tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    curve = generate_private_key(SECP256R1())
    asked = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    texts = {
        "none": b"nothing",
        "public": public.read_bytes(),
        "other kind": curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        "password": asked,
        "empty": b"",
        "unknown curve": of_unknown_curve(
            curve.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()), "PRIVATE"
        ),
    }
    for name, data in texts.items():
        path = tmp_path / name
        path.touch(0o600)
        path.write_bytes(data)
        told = decodelog("export", "--all", "--out", tmp_path / "out", "--key", path, "--json", db=db)
        assert (told.code, told.error["code"]) == (2, "unusable_key"), name
    (tmp_path / "unknown public").write_bytes(
        of_unknown_curve(curve.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo), "PUBLIC")
    )
    for mode in (0o640, 0o604, 0o644):
        private.chmod(mode)
        told = decodelog("export", "--all", "--out", tmp_path / "out", "--key", private, "--json", db=db)
        assert (told.error["code"], "chmod 600" in told.error["message"]) == ("unusable_key", True)
    assert not (tmp_path / "out").exists()
    os.mkfifo(tmp_path / "pipe")
    for path in (private, tmp_path / "none", tmp_path / "unknown public", tmp_path / "pipe", Path("/dev/zero")):
        told = decodelog("verify", tmp_path / "any", "--key", path, "--json")
        assert told.error["code"] == "unusable_key"


def test_without_the_library_a_key_is_refused_and_everything_else_works(
    db: str, signed: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, public = signed
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    told = decodelog("verify", file, "--key", public, "--json")
    assert (told.error["code"], "decodelog[sign]" in told.error["message"]) == ("extra_missing", True)
    assert decodelog("verify", file).code == 0
