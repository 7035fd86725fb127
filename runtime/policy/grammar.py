"""Grammars by llguidance: which tokens may follow, and where a token leads, for one tokenizer.

A parser is a function of the tokens that it took. It is no part of a job's state: what it says of each token is bound
in the token's receipt, and after a crash it is brought back by the committed tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from json import loads
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, __version__, regex_to_lark

from ...fsm.canonical import ordered_json
from ...fsm.errors import BrokenInvariant, GrammarRefused
from ...fsm.limits import BLANKS_MAX
from ...fsm.output.standing import Standing
from ...fsm.transforms import Grammar
from ..model import Model
from .json_guard import JsonGuard, TokenFacts
from .kinds import Mask

# What is the language's alone is not narrowed: any cut of a legal text into tokens is legal, and all of it is UTF-8.
# The last of such lines counts, so a grammar cannot set them otherwise.
_OPTIONS = '%llguidance {"no_forcing": true, "allow_invalid_utf8": false}'
_JSON_OPTIONS = {"whitespace_flexible": True, "whitespace_pattern": rf"[ \t\n\r]{{1,{BLANKS_MAX}}}"}
_GUIDANCE = "x-guidance"
LIBRARY = ("grammar_library", f"llguidance {__version__}")
_LISTING = re.compile(r"\n *1 \| ")


class Grammars:
    """Compiles grammars over one tokenizer.

    pieces   exact bytes of each token id; b"" where an id has none: such a token is in no text
    special  whether an id is a special token: in a text only where a Lark grammar names it
    eos_ids  what may end a whole text
    """

    def __init__(self, pieces: Sequence[bytes], special: Callable[[int], bool], eos_ids: Collection[int]) -> None:
        size = len(pieces)
        self.pieces = pieces
        self.eos_ids = frozenset(eos_ids)
        self.facts = TokenFacts(pieces)
        self.usable: Mask = np.array([bool(piece) or index in self.eos_ids for index, piece in enumerate(pieces)])
        # The library needs an end token. Where the model has none, one beyond its vocabulary stands in.
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Vocabulary(pieces, special, sorted(eos_ids) or [size])),
            n_vocab=size + 1,
            eos_token=sorted(eos_ids) or [size],
        )

    def parser(self, grammar: Grammar) -> Parser:
        """A parser at the beginning of a text.

        Errors: GrammarRefused with the compiler's words, or because no text is in the language.
        """
        matcher = LLMatcher(self._tokenizer, _lark(grammar), log_level=0)
        if matcher.is_error():
            # The library's words, without its listing of the text that it was given.
            reason = _LISTING.split(matcher.get_error(), maxsplit=1)[0]
            raise GrammarRefused(grammar.language, " ".join(reason.split()))
        parser = Parser(self, matcher, JsonGuard(self.facts) if grammar.language == "json_schema" else None)
        if not parser.allowed().any():
            raise GrammarRefused(grammar.language, "it has no text, or the model has no token to begin one")
        return parser


def grammars_of(model: Model) -> Grammars:
    """The grammars over a model's tokenizer, built once a model: that takes a tenth of a second and more."""
    if (grammars := _BUILT.get(model)) is None:
        grammars = _BUILT[model] = Grammars(model.text.pieces, model.text.is_special, model.facts.end_ids)
    return grammars


_BUILT: WeakKeyDictionary[Model, Grammars] = WeakKeyDictionary()


class Parser:
    """Where one output stands in its grammar.

    taken  tokens taken so far
    """

    def __init__(self, grammars: Grammars, matcher: LLMatcher, guard: JsonGuard | None, taken: int = 0) -> None:
        self.taken = taken
        self._grammars = grammars
        self._matcher = matcher
        self._guard = guard
        self._allowed: Mask | None = None

    def allowed(self) -> Mask:
        """[V] bool: the tokens after which the text can still be completed, and end tokens where it is whole.

        All False where nothing can follow. Shared: not to be written to.
        """
        if self._allowed is None:
            self._allowed = self._support()
        return self._allowed

    def take(self, token: int) -> Standing:
        """Move over one chosen token; where the text stands after it. INVALID also where no token can follow."""
        matcher = self._matcher
        self.taken, self._allowed = self.taken + 1, None
        ends = token in self._grammars.eos_ids
        kept = matcher.consume_token(token) and (ends or self._keeps(self._grammars.pieces[token]))
        if not kept:
            return Standing.INVALID
        whole = matcher.is_accepting()
        if ends:
            # The end token is no text: a text that was whole before it is COMPLETE, and it is what ends the output.
            return Standing.COMPLETE if whole else Standing.INVALID
        if whole and matcher.is_stopped():
            return Standing.TERMINATED
        if self.allowed().any():
            return Standing.COMPLETE if whole else Standing.INCOMPLETE
        return Standing.TERMINATED if whole else Standing.INVALID

    def stand_after(self, tokens: Sequence[int]) -> None:
        """Be where these committed tokens lead: those that were not taken yet are taken now.

        BrokenInvariant where the tokens are no beginning of a text.
        """
        rest = tokens[self.taken :]
        if not rest:
            return
        self.taken, self._allowed = len(tokens), None
        text = b"".join([self._grammars.pieces[token] for token in rest if token not in self._grammars.eos_ids])
        if not (self._matcher.consume_tokens(list(rest)) and self._keeps(text)):
            raise BrokenInvariant(clause="OUT-5", reason="the committed tokens are not of the request's grammar")

    def fork(self) -> Parser:
        """An equal parser that moves by itself."""
        guard = None if self._guard is None else self._guard.fork()
        return Parser(self._grammars, self._matcher.deep_copy(), guard, self.taken)

    def _keeps(self, text: bytes) -> bool:
        return self._guard is None or self._guard.take(text)

    def _support(self) -> Mask:
        grammars, matcher = self._grammars, self._matcher
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error() or (matcher.is_stopped() and not matcher.is_accepting()):
            return np.zeros(len(grammars.pieces), np.bool_)
        allowed = np.unpackbits(bits, count=len(grammars.pieces), bitorder="little").view(np.bool_)
        allowed &= grammars.usable
        if self._guard is not None:
            self._guard.restrict(allowed)
        return allowed


def _lark(grammar: Grammar) -> str:
    """The grammar in the library's own language."""
    match grammar.language:
        case "json_schema":
            return f"start: %json {_schema(loads(grammar.source))}\n{_OPTIONS}"
        case "regex":
            return f"start: /{regex_to_lark(grammar.source, use_ascii='')}/\n{_OPTIONS}"
    return f"{grammar.source}\n{_OPTIONS}"


def _schema(schema: dict[str, Any]) -> str:
    if _GUIDANCE in schema:
        raise GrammarRefused("json_schema", f"{_GUIDANCE} is no keyword of JSON Schema, and not the request's to set")
    return ordered_json({**schema, _GUIDANCE: _JSON_OPTIONS})


class _Vocabulary:
    """The tokenizer as the library asks for it. It tokenizes nothing: no token is ever forced."""

    bos_token_id = None

    def __init__(self, pieces: Sequence[bytes], special: Callable[[int], bool], eos_ids: Sequence[int]) -> None:
        self.eos_token_id = eos_ids[0]
        self.tokens = [*pieces, b"" if eos_ids[0] < len(pieces) else b"<end>"]
        self.special_token_ids = [*filter(special, range(len(pieces))), *(each for each in eos_ids)]

    def __call__(self, text: str | bytes) -> list[int]:
        return []
