"""What a checkpoint is, and whether it loads here: looked at as a worker would load it, but for the memory."""

from __future__ import annotations

from dataclasses import asdict
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...fsm.errors import Problem
from ...fsm.request.registration import Registered
from ..advice import advised_facts
from ..extras import missing_extra
from ..jobs.shelf import facts_at, is_script

if TYPE_CHECKING:
    from ...fsm.request.artifact import ArtifactFacts

Facts = dict[str, Any]


def at(directory: Path) -> Facts:
    """The model in a directory: its files, what it is as far as that can be read, and whether it loads here.

    Its weights are read tensor by tensor and dropped again, so that this takes the time of a load and the memory of one
    tensor. `loads` is false with `error` where any of that is refused, in the words that a worker would leave its jobs
    with.
    """
    told: Facts = {"directory": str(directory), "files": _files(directory)}
    try:
        facts = facts_at(directory)
        told |= described(facts)
        if not is_script(directory):
            told |= _network(directory, facts)
    except Problem as problem:
        return told | {"loads": False, "error": advised_facts(problem)}
    except ModuleNotFoundError as error:
        if (missing := missing_extra(error)) is None:
            raise
        return told | {"loads": False, "error": advised_facts(missing)}
    return told | {"loads": True, "error": None}


def described(facts: ArtifactFacts) -> Facts:
    """What requests for a model are bound to, with its digest; and the defaults that no request follows."""
    told = {"artifact": facts.artifact} | asdict(facts)
    return told | {"defaults": dict(facts.defaults), "defaults_followed": False}


def registered(found: Registered) -> Facts:
    """The same of a registered model, and under which names it is registered."""
    told = {"names": list(found.names), "registered_ms": found.registered_ms}
    return told | described(found.registration.facts) | {"runtime": asdict(found.registration.runtime)}


def _files(directory: Path) -> list[Facts]:
    found = []
    for path in sorted(path for path in directory.iterdir() if path.is_file()):
        with path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        found.append({"name": path.name, "size_bytes": path.stat().st_size, "sha256": digest})
    return found


def _network(directory: Path, facts: ArtifactFacts) -> Facts:
    """The network's sizes, once its tokenizer and every tensor were read. Errors: those of loading it."""
    from ...runtime.families.decoder.config import read_config
    from ...runtime.families.decoder.model import load_decoder
    from ...runtime.families.decoder.weights import count_parameters
    from ...runtime.text.tokenizer import load_text

    load_text(directory, facts.vocabulary_size)
    decoder = load_decoder(directory, device="meta")
    sizes = asdict(read_config(directory)) | {"rope": str(decoder.config.rope)}
    return {"network": sizes, "parameters": count_parameters(directory)}
