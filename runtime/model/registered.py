"""A registered model as what seals requests: as its own process would, without weights and without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ...fsm.request.registration import Registration, TextFiles

if TYPE_CHECKING:
    from ..text.tokenizer import TextInterface

Files = Callable[[], TextFiles]


class RegisteredModel:
    """What of a model is in a database. `files` gives what its text interface is made of; see `RegisteredText`."""

    def __init__(self, registration: Registration, files: Files) -> None:
        self.facts, self.runtime = registration.facts, registration.runtime
        self.text = RegisteredText(registration, files)


class RegisteredText:
    """`Text`, made once it is asked for: a prompt of token ids takes neither the files nor the tokenizer library.

    Errors of everything: those of `files`, and BrokenArtifact where the library cannot read them.
    """

    def __init__(self, registration: Registration, files: Files) -> None:
        self._registration, self._files = registration, files

    @cached_property
    def _made(self) -> TextInterface:
        from ..text.tokenizer import TextInterface

        of = self._registration
        place = f"the tokenizer of the registered model {of.artifact}"
        return TextInterface(self._files(), of.special_names, of.facts.vocabulary_size, place, of.facts.release_id)

    @property
    def pieces(self) -> Sequence[bytes]:
        return self._made.pieces

    def is_special(self, token: int) -> bool:
        return self._made.is_special(token)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._made.encode(text, add_special_tokens=add_special_tokens)

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], *, now_ms: int | None = None, literal: bool = True
    ) -> list[int]:
        return self._made.encode_chat(messages, now_ms=now_ms, literal=literal)
