"""What a caller gets of a job, piece by piece: text, and the tokens known to belong to it.

A token is handed out no earlier than text is: while a stop may still take it away, or its first character is not whole,
it waits. So text, ids, log-probabilities and offsets end at one boundary, the same in a stream, in the result, and
after a crash. Where that boundary lies, the request's alignment says:

text    text is cut at the stop; a token counts if it begins before the cut, and the last one may be cut in two
token   text ends at a token's end; a token counts if all of it is text
span    text is cut at the stop; every token counts, and what of them is text and what was trimmed is published
"""

from __future__ import annotations

from collections import deque
from math import isinf
from typing import Any, NamedTuple

from ..evidence.prompt_record import PromptToken
from ..evidence.receipt import Alternative, Selection
from ..machine.state import State
from ..output.detokenize import character_at, decode
from ..output.horizon import Horizon
from ..request.envelope import Alignment
from ..request.finish import MatchedStop


class Moment(NamedTuple):
    """What one event did, as the fold found it: the material of its emission.

    delta           text that it released
    before, after   the horizon on both sides of it
    selection, piece, hidden   of the token that it committed, if it did; hidden tokens add no text
    prompt          what it recorded of the prompt
    ended           the state after it, where it ended the job
    """

    sequence: int
    delta: str
    before: Horizon
    after: Horizon
    selection: Selection | None = None
    piece: bytes = b""
    hidden: bool = False
    prompt: tuple[PromptToken, ...] = ()
    ended: State | None = None


class Token(NamedTuple):
    """A token as a caller sees it.

    place                  its index among the output's tokens, or the prompt's, from 0; in JSON `index`
    token                  id in the vocabulary
    piece                  its exact bytes; in JSON `bytes`, as hexadecimal digits, beside `text`, which is what they
                           are by themselves
    hidden                 whether it is special and not shown
    byte_offset            of its first byte in the job's text, in bytes; a hidden one stands there and takes no room
    character_offset       of the character that this byte belongs to, in characters (code points)
    logprob_raw, logprob   nats, before and after the policy's transforms; None of a prompt's token where none is known
    alternatives           the best tokens in its place, where the request asks for them
    """

    place: int
    token: int
    piece: bytes
    hidden: bool
    byte_offset: int
    character_offset: int
    logprob_raw: float | None
    logprob: float | None
    alternatives: tuple[Alternative, ...]

    @property
    def end(self) -> int:
        """Offset of the first byte after it."""
        return self.byte_offset if self.hidden else self.byte_offset + len(self.piece)


class Span(NamedTuple):
    """A range [start, end) of the output: in bytes, and in characters."""

    bytes: tuple[int, int]
    characters: tuple[int, int]


class Emission(NamedTuple):
    """One item of a stream: what one event made visible. Some events make nothing visible, and have none.

    sequence     the event's place in the job's log; reading from the next number on gives exactly the rest
    text         text released, possibly empty
    characters   offset of `text` in the whole text, in characters (code points)
    bytes        offset of the same place in bytes
    place        how many output tokens were released before; in JSON `index`
    tokens       output tokens released, in order
    prompt       the prompt's tokens, on the one item that has them, where the request asks for them
    finish       on the last item: a finish reason, or "failed"
    usage        on the last item: counts of committed tokens, as in the result
    matched_stop   on the last item: the stop string that ended the output, or the id of the token that did; null where
                   none did
    visible, trimmed   on the last item, in span alignment: which part of the output is text, and which was cut off
    """

    sequence: int
    text: str
    characters: int
    bytes: int
    place: int
    tokens: tuple[Token, ...] = ()
    prompt: tuple[Token, ...] = ()
    finish: str | None = None
    usage: dict[str, int] | None = None
    matched_stop: MatchedStop | None = None
    visible: Span | None = None
    trimmed: Span | None = None


class Emitter:
    """Makes emissions of moments, in order. Taking one costs the same at any length."""

    def __init__(self, alignment: Alignment, prompt: tuple[int, ...] = (), skip_special: bool = True) -> None:
        self._alignment = alignment
        self._prompt_ids = prompt
        self._skip_special = skip_special
        self._waiting: deque[tuple[int, Moment]] = deque()  # offset of the first byte, and the moment
        self._tail = b""  # the output's bytes from the last released one on
        self._begin = 0, 0  # of the output in the text, in bytes and in characters: behind an echo
        self._end = 0  # of the newest token, with what was trimmed of it
        self._released = 0

    def stand(self, state: State, begin: tuple[int, int]) -> None:
        """Begin after a state whose text was all released, behind a prompt's text of `begin` bytes and characters."""
        self._begin, self._end = begin, state.horizon.position
        self._released = state.frontier.output

    def take(self, moment: Moment) -> Emission | None:
        """The moment's emission; None where it made nothing visible."""
        sequence, text, before, after, selection, piece, hidden, prompt, ended = moment
        if selection is not None:
            start = before.position
            self._waiting.append((start, moment))
            self._end = start
            if not hidden:
                self._tail += piece
                self._end += len(piece)
        place = self._released
        tokens = self._release(before, after, ended is not None) if self._waiting else ()
        if prompt:
            self._end = after.bytes_released
            self._begin = after.bytes_released, after.characters_released
        elif after.bytes_released > before.bytes_released:
            self._tail = self._tail[after.bytes_released - before.bytes_released :]
        if not (text or tokens or prompt or ended):
            return None
        listed = _prompt_tokens(self._prompt_ids, prompt, self._skip_special) if prompt else ()
        made = Emission(sequence, text, before.characters_released, before.bytes_released, place, tokens, listed)
        return made if ended is None else self._last(made, after, ended)

    def _release(self, before: Horizon, after: Horizon, ended: bool) -> tuple[Token, ...]:
        """The waiting tokens that the text is now known to have."""
        tokens: list[Token] = []
        frontier, rest = after.bytes_released, ended and self._alignment == "span"
        while self._waiting:
            start, moment = self._waiting[0]
            shown = not moment.hidden and moment.piece
            if not (start < frontier or (start == frontier and not shown) or rest):
                break
            if self._alignment == "token" and shown and start + len(moment.piece) > after.decided:
                break
            self._waiting.popleft()
            tokens.append(self._token(start, moment, before))
        return tuple(tokens)

    def _token(self, start: int, moment: Moment, before: Horizon) -> Token:
        character = before.characters_released
        if ahead := start - before.bytes_released:
            character += character_at(self._tail, ahead)
        selection = moment.selection
        if selection is None:
            raise TypeError("only a moment that committed a token waits")
        place, self._released = self._released, self._released + 1
        return Token(
            place,
            selection.token,
            moment.piece,
            moment.hidden,
            start,
            character,
            selection.logprob_raw,
            selection.logprob,
            selection.alternatives,
        )

    def _last(self, made: Emission, after: Horizon, ended: State) -> Emission:
        ending = ended.ending
        finish = "failed" if ending is None or ending.finish is None else ending.finish.value
        made = made._replace(finish=finish, usage=usage_of(ended), matched_stop=ended.matched_stop)
        if self._alignment != "span":
            return made
        size, characters = after.bytes_released, after.characters_released
        cut = decode(b"", self._tail, final=True)[0]
        return made._replace(
            visible=Span((self._begin[0], size), (self._begin[1], characters)),
            trimmed=Span((size, max(size, self._end)), (characters, characters + len(cut))),
        )


def usage_of(state: State) -> dict[str, int]:
    """Counts of committed tokens: those that a stop cut off too, since the model made them."""
    frontier, tenure = state.frontier, state.tenure
    return {
        "prompt_tokens": frontier.prompt,
        "completion_tokens": frontier.output,
        "total_tokens": frontier.prompt + frontier.output,
        "recomputed_tokens": tenure.recomputed,
        "attempts": tenure.attempt,
    }


def _prompt_tokens(ids: tuple[int, ...], recorded: tuple[PromptToken, ...], skip_special: bool) -> tuple[Token, ...]:
    """The prompt's tokens, with offsets into its own text."""
    tokens: list[Token] = []
    text_bytes = b"".join([token.piece for token in recorded if not (token.hidden and skip_special)])
    byte, characters, open_bytes = 0, 0, b""
    for index, (token, (piece, special, logprob, alternatives)) in enumerate(zip(ids, recorded, strict=True)):
        hidden = special and skip_special
        shown = b"" if hidden else piece
        character = characters + character_at(open_bytes + text_bytes[byte : byte + 1], len(open_bytes))
        tokens.append(Token(index, token, piece, hidden, byte, character, logprob, logprob, alternatives))
        text, open_bytes = decode(open_bytes, shown)
        byte, characters = byte + len(shown), characters + len(text)
    return tuple(tokens)


def plain(emission: Emission) -> dict[str, Any]:
    """The emission for JSON. What only some items have is left out of the others."""
    item: dict[str, Any] = {
        "sequence": emission.sequence,
        "text": emission.text,
        "characters": emission.characters,
        "bytes": emission.bytes,
        "index": emission.place,
        "tokens": [plain_token(token) for token in emission.tokens],
        "finish": emission.finish,
    }
    if emission.prompt:
        item["prompt"] = [plain_token(token) for token in emission.prompt]
    if emission.usage is not None:
        item |= {"usage": emission.usage, "matched_stop": emission.matched_stop}
    if emission.visible is not None and emission.trimmed is not None:
        item |= {"visible": emission.visible._asdict(), "trimmed": emission.trimmed._asdict()}
    return item


def plain_token(token: Token, size: int | None = None) -> dict[str, Any]:
    """The token for JSON: bytes as hexadecimal digits, beside the text that they are by themselves.

    size   bytes of the job's whole text, where it has ended: `visible_bytes` then says how many of the token's are text
    """
    item = {
        "index": token.place,
        "token": token.token,
        "text": token.piece.decode("utf-8", "replace"),
        "bytes": token.piece.hex(),
        "hidden": token.hidden,
        "byte_offset": token.byte_offset,
        "character_offset": token.character_offset,
        "logprob_raw": token.logprob_raw,
        "logprob": token.logprob,
        "alternatives": [plain_alternative(each) for each in token.alternatives],
    }
    return item if size is None else item | {"visible_bytes": max(min(token.end, size) - token.byte_offset, 0)}


def plain_alternative(alternative: Alternative) -> dict[str, Any]:
    """An alternative that the policy removed has no processed log-probability: null."""
    token, raw, processed, piece = alternative
    item = {"token": token, "logprob_raw": raw, "logprob": None if isinf(processed) else processed}
    return item if piece is None else item | {"text": piece.decode("utf-8", "replace"), "bytes": piece.hex()}
