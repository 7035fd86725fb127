"""A registered model: made from a checkpoint's files, and from its registration made again what seals requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from ...fsm.request.registration import Registration, TextFiles
from .port import Text


class RegisteredModel:
    """Seals requests as the process would that registered it, without weights and without torch.

    files   gives what its text interface is made of; asked for once a prompt is text, which takes the tokenizer library
    """

    def __init__(self, registration: Registration, files: Callable[[], TextFiles]) -> None:
        self.facts, self.runtime = registration.facts, registration.runtime
        self._names, self._files = registration.special_names, files

    @cached_property
    def text(self) -> Text:
        """Errors: CorruptModel."""
        from ..text.tokenizer import TextInterface

        files, artifact = self._files(), self.facts.artifact
        place = f"the tokenizer of the registered model {artifact}"
        return TextInterface(files, self._names, self.facts.vocabulary_size, place, self.facts.release_id)
