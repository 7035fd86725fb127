"""A registered model: what it takes to seal requests for it, kept in the database for clients that have no weights.

The artifact's digest is its key, and is in each request that is sealed for it. What is read back is held to its hashes
again: the record to a digest of its own, the tokenizer and the chat template to those that the facts name.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple, Protocol

from pydantic import TypeAdapter, ValidationError

from ..errors import CorruptModel
from .admission import RuntimeFacts
from .artifact import ArtifactFacts
from .canonical import canonical_bytes

DOMAIN: Final = b"decodelog.model.v1"
DIGEST_BEGINNING: Final = re.compile(r"[0-9a-f]{8,}")
"""What means a model by its digest, whole or as far as it is given; no model is called so."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a model is, and what requests for it are bound to.

    runtime         of the process that registered it: what would have sealed the request there
    special_names   the special tokens that its chat template may name, by name
    """

    facts: ArtifactFacts
    runtime: RuntimeFacts
    special_names: dict[str, str]

    @property
    def artifact(self) -> str:
        return self.facts.artifact

    def record(self) -> bytes:
        """Canonical JSON of all of it; `registration_of` takes it back to an equal one."""
        return canonical_bytes(asdict(self))


class TextFiles(NamedTuple):
    """What a text interface is made of: tokenizer.json as it is, and the chat template, if there is one."""

    tokenizer: bytes
    template: str | None

    def hashed(self) -> dict[str, bytes]:
        """Both by their SHA-256, in hex."""
        contents = [self.tokenizer, *([] if self.template is None else [self.template.encode()])]
        return {hashlib.sha256(content).hexdigest(): content for content in contents}


class Registered(NamedTuple):
    """A registration as the database has it: under which names, and since when (ms since 1970)."""

    registration: Registration
    names: tuple[str, ...]
    registered_ms: int


class Registry(Protocol):
    """The registered models of a database. They hold no content of any job, and nothing of a job depends on them."""

    def register(self, model: Registration, files: TextFiles, name: str | None = None) -> str | None:
        """Keep a model, and have `name` mean it from now on; the digest of the model that it meant before, if another.

        Doing so again changes nothing.
        """

    def registered(self, wanted: str) -> Registered | None:
        """The model of that name or digest, or whose digest alone begins so. Errors: CorruptModel."""

    def registrations(self) -> list[Registered]:
        """All of them, oldest first. Errors: CorruptModel."""

    def text_files(self, model: Registration) -> TextFiles:
        """What its text interface is made of, held to the hashes in its facts. Errors: CorruptModel."""


def record_digest(record: bytes) -> bytes:
    return hashlib.sha256(DOMAIN + record).digest()


def registration_of(artifact: str, record: bytes, digest: bytes) -> Registration:
    """The registration that was stored under `artifact`. Errors: CorruptModel where it is not what was stored."""
    if record_digest(record) != digest:
        raise CorruptModel(artifact, "its record does not have the digest beside it")
    try:
        found = _RECORD.validate_json(record)
    except ValidationError as error:
        raise CorruptModel(artifact, f"its record cannot be read: {error.errors()[0]['msg']}") from error
    if found.artifact != artifact:
        raise CorruptModel(artifact, f"its record is of {found.artifact}")
    return found


def text_files_of(model: Registration, contents: dict[str, bytes]) -> TextFiles:
    """The text files of a model among contents by their names. Errors: CorruptModel for one that is not what it was."""

    def content(what: str, sha256: str) -> bytes:
        if (found := contents.get(sha256)) is None:
            raise CorruptModel(model.artifact, f"its {what} is missing, or larger than any")
        if hashlib.sha256(found).hexdigest() != sha256:
            raise CorruptModel(model.artifact, f"its {what} does not have the SHA-256 {sha256}")
        return found

    facts = model.facts
    template = None if facts.template_sha256 is None else content("chat template", facts.template_sha256).decode()
    return TextFiles(content("tokenizer", facts.tokenizer_sha256), template)


_RECORD: Final = TypeAdapter(Registration)
