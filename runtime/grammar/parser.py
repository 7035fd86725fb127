"""Grammars by llguidance: which tokens may follow, and where a token leads, for one tokenizer.

A parser is a function of the tokens that it took. It is no part of a job's state: what it says of each token is bound
in the token's receipt, and after a crash it is brought back by the committed tokens.

What may end an output is the request's to say, in one list: end tokens and stop ids alike are no part of the text, are
masked until it is whole, and allowed from there on. The library knows none of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from hashlib import sha256
from json import loads
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, __version__, regex_to_lark

from ...fsm.errors import BrokenInvariant, GrammarRefused, GrammarTooCostly
from ...fsm.limits import BLANKS_MAX, LEXER_STATES_MAX, MASK_ITEMS_MAX, MASK_ROW_ITEMS_MAX
from ...fsm.output.standing import Standing
from ...fsm.request.canonical import ordered_json
from ...fsm.request.transforms import Grammar
from ..faults import is_fault, told
from ..model.port import Described
from ..policy.kinds import Mask
from .json_guard import JsonGuard, TokenFacts
from .spending import Spending
from .trial import trial

# What is the language's alone is not narrowed: any cut of a legal text into tokens is legal, and all of it is UTF-8.
# The last of such lines counts, so a grammar cannot set them otherwise.
_OPTIONS = '%llguidance {"no_forcing": true, "allow_invalid_utf8": false}'
_JSON_OPTIONS = {"whitespace_flexible": True, "whitespace_pattern": rf"[ \t\n\r]{{1,{BLANKS_MAX}}}"}
_GUIDANCE = "x-guidance"
LIBRARY = ("grammar_library", f"llguidance {__version__}")
SECONDS, MEMORY = 10, 1 << 29
"""What compiling a grammar and its first mask may take: of a processor's time, and in bytes."""
REMEMBERED = 1024
_LISTING = re.compile(r"\n *1 \| |\n<(?:state|non-verbose/)>")
"""Where the text begins that the library was given, or a word in its place."""

_NOTHING_FOLLOWS = ("NoExtension", "NoExtensionBias")

# Counted, so that they say the same on every machine. Without `verbose_errors` a message holds none of the output.
_LIMITS = LLParserLimits(
    step_max_items=MASK_ITEMS_MAX,
    max_items_in_row=MASK_ROW_ITEMS_MAX,
    max_lexer_states=LEXER_STATES_MAX,
    verbose_errors=False,
)


class Grammars:
    """Compiles grammars over one tokenizer.

    pieces   exact bytes of each token id; b"" where an id has none: such a token is in no text
    special  whether an id is a special token: in a text only where a Lark grammar names it
    """

    def __init__(self, pieces: Sequence[bytes], special: Callable[[int], bool]) -> None:
        size = len(pieces)
        self.pieces = pieces
        self.facts = TokenFacts(pieces)
        self._tried: dict[bytes, str] = {}  # what came of the trial of each grammar, the newest ones
        self.usable: Mask = np.array([bool(piece) for piece in pieces])
        # The library needs an end token: one beyond the vocabulary, which nobody can choose.
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Vocabulary(pieces, special)), n_vocab=size + 1, eos_token=[size]
        )

    def parser(self, grammar: Grammar, ending_ids: Collection[int]) -> Parser:
        """A parser at the beginning of a text, which any of `ending_ids` may end once it is whole.

        Errors: GrammarRefused with the compiler's words, because it takes too long or too much memory, or because no
        text is in the language.
        """
        try:
            text = _lark(grammar)
            if reason := self._hopeless(text):
                raise GrammarRefused(grammar.language, reason)
            matcher = self._matcher(text)
        except BaseException as raised:
            if isinstance(raised, GrammarRefused) or not is_fault(raised):
                raise
            raise GrammarRefused(grammar.language, told(raised)) from raised
        if matcher.is_error():
            raise GrammarRefused(grammar.language, _reason(matcher))
        guard = JsonGuard(self.facts) if grammar.language == "json_schema" else None
        parser = Parser(self, matcher, guard, ending_ids)
        try:
            begins = parser.allowed().any()
        except GrammarTooCostly as fault:
            raise GrammarRefused(grammar.language, fault.reason) from fault
        if not begins:
            raise GrammarRefused(grammar.language, "it has no text, or the model has no token to begin one")
        return parser

    def _matcher(self, text: str) -> LLMatcher:
        return LLMatcher(self._tokenizer, text, log_level=0, limits=_LIMITS)

    def _hopeless(self, text: str) -> str:
        """Why the compiler comes to no end with a grammar, if so; a short one can take all time and memory there is."""
        digest = sha256(text.encode()).digest()
        if (reason := self._tried.get(digest)) is None:
            reason = trial(lambda: self._matcher(text).compute_bitmask(), SECONDS, MEMORY)
            if len(self._tried) >= REMEMBERED:
                self._tried.pop(next(iter(self._tried)), None)
            self._tried[digest] = reason
        return reason


def grammars_of(model: Described) -> Grammars:
    """The grammars over a model's tokenizer, built once a model: that takes a tenth of a second and more."""
    if (grammars := _BUILT.get(model)) is None:
        grammars = _BUILT[model] = Grammars(model.text.pieces, model.text.is_special)
    return grammars


_BUILT: WeakKeyDictionary[Described, Grammars] = WeakKeyDictionary()


class Parser:
    """Where one output stands in its grammar.

    taken  tokens taken so far;  spent  what they have cost
    """

    def __init__(
        self,
        grammars: Grammars,
        matcher: LLMatcher,
        guard: JsonGuard | None,
        ending_ids: Collection[int],
        taken: int = 0,
        spent: Spending | None = None,
    ) -> None:
        self.taken = taken
        self.spent = spent or Spending()
        self._grammars = grammars
        self._matcher = matcher
        self._guard = guard
        self._ending_ids = frozenset(ending_ids)
        self._ending = np.array(sorted(self._ending_ids), np.int64)
        self._allowed: Mask | None = None
        self._over = False  # an end token was taken, or one that is of no text: nothing follows

    def allowed(self) -> Mask:
        """[V] bool: the tokens after which the text can still be completed, and what may end it where it is whole.

        All False where nothing can follow. Shared: not to be written to. Errors: GrammarTooCostly.
        """
        if self._allowed is None:
            self._allowed = self._support()
        return self._allowed

    def take(self, token: int) -> Standing:
        """Move over one chosen token; where the text stands after it. INVALID also where no token can follow.

        Errors: GrammarTooCostly where a step has gone beyond what it may cost; the parser is then of no further use.
        """
        begun = self.spent.begin()
        standing = self._take(token)
        self.spent.end(begun)
        return standing

    def _take(self, token: int) -> Standing:
        matcher = self._matcher
        self.taken, self._allowed = self.taken + 1, None
        if token in self._ending_ids:
            # It is no text: a text that was whole before it is COMPLETE, and it is what ends the output.
            whole, self._over = matcher.is_accepting() and not self._over, True
            return Standing.COMPLETE if whole else Standing.INVALID
        if self._over or not self._consume([token]):
            self._over = True
            return Standing.INVALID
        whole = matcher.is_accepting()
        if whole and matcher.is_stopped():
            return Standing.TERMINATED
        if self.allowed().any():
            return Standing.COMPLETE if whole else Standing.INCOMPLETE
        return Standing.TERMINATED if whole else Standing.INVALID

    def stand_after(self, tokens: Sequence[int]) -> None:
        """Be where these committed tokens lead: those that were not taken yet are taken now.

        Errors: BrokenInvariant where the tokens are no beginning of a text, GrammarTooCostly as ever.
        """
        rest = list(tokens[self.taken :])
        if not rest:
            return
        self.taken, self._allowed = len(tokens), None
        if rest[-1] in self._ending_ids:
            self._over = True
            rest.pop()
        if not self._consume(rest):
            raise BrokenInvariant(clause="OUT-5", reason="the committed tokens are not of the request's grammar")

    def fork(self) -> Parser:
        """An equal parser that moves by itself."""
        guard = None if self._guard is None else self._guard.fork()
        spent = replace(self.spent)
        other = Parser(self._grammars, self._matcher.deep_copy(), guard, self._ending_ids, self.taken, spent)
        other._over = self._over
        return other

    def _consume(self, tokens: list[int]) -> bool:
        """Move over tokens of the text; whether all of them are."""
        taken = self._matcher.try_consume_tokens(tokens)
        if not self._able() or taken < len(tokens):
            return False
        return self._guard is None or self._guard.take(b"".join([self._grammars.pieces[token] for token in tokens]))

    def _support(self) -> Mask:
        grammars, matcher = self._grammars, self._matcher
        size = len(grammars.pieces)
        if self._over:
            return np.zeros(size, np.bool_)
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if not self._able():
            return np.zeros(size, np.bool_)
        allowed = np.unpackbits(bits, count=size, bitorder="little").view(np.bool_)
        allowed &= grammars.usable
        if self._guard is not None:
            self._guard.restrict(allowed)
        allowed[self._ending] = matcher.is_accepting()
        return allowed

    def _able(self) -> bool:
        """Whether the library can go on; not where it finds that nothing follows. Errors: GrammarTooCostly."""
        if not self._matcher.is_error():
            return True
        if (reason := _reason(self._matcher)) in _NOTHING_FOLLOWS:
            return False
        raise GrammarTooCostly(
            reason
        )  # one of its limits is reached: at nothing else that is done with it here it fails


def _reason(matcher: LLMatcher) -> str:
    """The library's words, in one line."""
    return " ".join(_LISTING.split(matcher.get_error(), maxsplit=1)[0].split())


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

    def __init__(self, pieces: Sequence[bytes], special: Callable[[int], bool]) -> None:
        self.eos_token_id = len(pieces)
        self.tokens = [*pieces, b"<end>"]
        self.special_token_ids = [*filter(special, range(len(pieces))), self.eos_token_id]

    def __call__(self, text: str | bytes) -> list[int]:
        return []
