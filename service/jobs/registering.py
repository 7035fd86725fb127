"""Registered models: what clients without weights seal their requests for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...fsm.errors import SchemaViolation, UnknownModel, UnsupportedModel
from ...fsm.limits import NAME_CHARACTERS_MAX
from ...fsm.request.draft import Draft
from ...fsm.request.names import check_model_name
from ...fsm.request.registration import DIGEST_BEGINNING, Registered, Registration, Registry
from ..extras import extras_named
from .models import Models
from .shelf import is_script

if TYPE_CHECKING:
    from ...fsm.request.artifact import ArtifactFacts
    from ...runtime.model.port import Described


class Known(NamedTuple):
    """A model that is registered by now, and the digest of what its name meant before, where that was another."""

    registered: Registered
    replaced: str | None


def register(registry: Registry, models: Models, given: str, name: str | None = None) -> Known:
    """Register the fetched model or the checkpoint `given`, under `name`; a fetched one has its own name anyway.

    Doing so again changes nothing. A name that means another model means this one from now on: jobs keep theirs.
    Errors: those of loading its facts and its tokenizer, and SchemaViolation for what can be no name.
    """
    with extras_named():
        from ...runtime.model.artifacts import load_facts
        from ...runtime.model.native import framework_facts
        from ...runtime.model.releases import find_model
        from ...runtime.text.tokenizer import load_text, special_names, text_files

        if is_script(given):
            raise UnsupportedModel("architecture", "scripted", "a checkpoint with a tokenizer")
        directory = find_model(given, models.home)
        facts = load_facts(directory)
        load_text(directory, facts.vocabulary_size)  # what cannot be read here cannot be read elsewhere
        registration = Registration(facts, framework_facts("cpu"), special_names(directory))
        files = text_files(directory)
    if name is None:
        name = given if find_name(given) else None
    else:
        check_name(name)
    replaced = registry.register(registration, files, name)
    registry.text_files(registration)  # where a file was changed meanwhile, it is found now
    found = registry.registered(registration.artifact)
    return Known(found or Registered(registration, (), 0), replaced)


def find_name(given: str) -> bool:
    """Whether a model is given by a name that can be fetched, and not by a directory."""
    from ...runtime.model.releases import RELEASES

    return given in RELEASES and not Path(given).is_dir()


def check_name(name: str) -> None:
    """Refuse a name that is none, or that could be taken for a digest or a directory. Errors: SchemaViolation."""
    check_model_name(name)
    if len(name) > NAME_CHARACTERS_MAX or "/" in name or name.startswith(("~", ".")):
        raise SchemaViolation(
            "name", f"{name!r:.80} is no model's name: at most {NAME_CHARACTERS_MAX} characters, no /"
        )
    if DIGEST_BEGINNING.fullmatch(name):
        raise SchemaViolation("name", f"{name!r:.80} could be taken for a digest; give one with other letters")


def describe(registry: Registry, models: Models, given: str) -> tuple[Described, str]:
    """What requests for `given` are sealed by, and the name that their jobs have the model by.

    A directory and a model of one's own are loaded. Any other name is first one that is registered, so that every
    client of a database seals alike; then one that was fetched.
    Errors: UnknownModel, with the names that are known; ModelNotFetched, CorruptModel, and those of `Models.load`.
    """
    name = models.lasting_name(given)
    is_word = name == given and given.isprintable() and len(given) <= NAME_CHARACTERS_MAX
    if is_word and not models.has_own(given) and (found := registry.registered(given)) is not None:
        return models.registered(registry, found.registration), given
    try:
        return models.load(name), name
    except UnknownModel as error:
        names = {name for each in registry.registrations() for name in each.names}
        raise UnknownModel(error.name, sorted({*error.known, *names})) from error


def ignored_defaults(facts: ArtifactFacts, draft: Draft) -> dict[str, str]:
    """How generation_config.json would have this request sampled, where the request itself does not say."""
    said = draft.model_fields_set | ({"do_sample"} if "temperature" in draft.model_fields_set else set())
    return {name: value for name, value in facts.defaults if name not in said}


def told_defaults(ignored: dict[str, str]) -> str:
    """The same in words."""
    stated = ", ".join(f"{name} {value}" for name, value in ignored.items())
    return f"the model's generation_config.json is not followed ({stated}); what is to count is given with the request"
