"""Signing exported files: with the public key anybody can check who vouches for every head in a file.

Keys are Ed25519 in PEM files, as `openssl genpkey -algorithm ed25519` writes them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ..fsm.errors import UnusableKey
from ..fsm.reading.audit import Fault
from ..store.archive.bundle import Bundle, Signature
from .files import open_regular

DOMAIN: Final = b"decodelog.export.signature.v1"
"""What a signature is of, before the digest: a key that signs other things signs none of these by chance."""

KIND: Final = "signature"
KEY_BYTES_MAX: Final = 64 * 1024

PublicKey = bytes
"""32 bytes."""


def signer(path: Path) -> Callable[[bytes], Signature]:
    """Signs digests with the private key in a PEM file that only its owner can read. Errors: UnusableKey."""
    text = _read(path, private=True)
    serialization, kinds, refusals = _library()
    try:
        key = serialization.load_pem_private_key(text, password=None)
    except refusals as error:
        raise UnusableKey(str(path), f"it is no private key in PEM without a password ({error})") from error
    if not isinstance(key, kinds.Ed25519PrivateKey):
        raise UnusableKey(str(path), f"it is a key of another kind ({type(key).__name__})")
    public = key.public_key().public_bytes_raw()
    return lambda digest: Signature(public, key.sign(DOMAIN + digest))


def public_key(path: Path) -> PublicKey:
    """The public key in a PEM file. Errors: UnusableKey."""
    text = _read(path, private=False)
    serialization, kinds, refusals = _library()
    try:
        key = serialization.load_pem_public_key(text)
    except refusals as error:
        raise UnusableKey(str(path), f"it is no public key in PEM ({error})") from error
    if not isinstance(key, kinds.Ed25519PublicKey):
        raise UnusableKey(str(path), f"it is a key of another kind ({type(key).__name__})")
    raw: bytes = key.public_bytes_raw()
    return raw


def signature_faults(bundle: Bundle, key: PublicKey) -> list[Fault]:
    """Why a file is not proven to be signed with this key; empty where it is."""
    signature = bundle.signature
    if signature is None:
        return [_fault("the file is not signed")]
    if not bundle.digest:
        return [_fault("the file is not what was signed")]
    if signature.key != key:
        return [_fault(f"the file says that it is signed with {signature.key.hex()}, and the key is {key.hex()}")]
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature.value, DOMAIN + bytes.fromhex(bundle.digest))
    except InvalidSignature:
        return [_fault("the signature is not that key's, or not of this file")]
    return []


def _fault(detail: str) -> Fault:
    return Fault("", 0, KIND, detail)


def _read(path: Path, private: bool) -> bytes:
    """The text of a key; a private one that others may read is refused."""
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            # Whoever can read it can sign as well.
            if private and stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO):
                raise UnusableKey(str(path), f"others may read it: `chmod 600 {path}`")
            return file.read(KEY_BYTES_MAX)
    except OSError as error:
        raise UnusableKey(str(path), error.strerror or str(error)) from error


def _library() -> tuple[Any, Any, tuple[type[Exception], ...]]:
    """The two parts of the optional signing library, and the error with which it refuses a text.

    Errors: ModuleNotFoundError where it is not installed.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    return serialization, ed25519, (ValueError, TypeError, UnsupportedAlgorithm)  # a TypeError asks for a password
