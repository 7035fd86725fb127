"""A model's text interface: text to ids, chat to text, and the exact raw bytes of every token id.

Bytes come from the vocabulary, not from decoding: a byte-level vocabulary writes each byte as one printable character
(GPT-2's table), a SentencePiece one writes spaces as U+2581 and single bytes as `<0x0A>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ...fsm.errors import (
    BrokenArtifact,
    LimitExceeded,
    NoChatTemplate,
    TemplateFailed,
    TextNotEncodable,
    UnsupportedModel,
)
from ...fsm.limits import TEMPLATE_CHARACTERS_MAX, TOKENIZER_BYTES_MAX, VOCABULARY_SIZE_MAX
from ...fsm.request.registration import TextFiles
from ..faults import is_fault, told
from ..files import open_file, read_json, read_text
from .chat import ChatTemplate, Marked, marked

TOKENIZER_FILE = "tokenizer.json"
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's visible space
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class TextInterface:
    """One tokenizer with its chat template.

    pieces  exact bytes of each id below the vocabulary size; b"" for ids that no token has. A word's piece keeps its
            leading space: a generated text continues a prompt, so its joined pieces are what decode(prompt + ids) has
            beyond decode(prompt), for a prompt that ends between characters. Only the first space of a whole text,
            which SentencePiece puts there when it encodes, is dropped by decoding, and that one is the prompt's.
    """

    def __init__(
        self, files: TextFiles, names: Mapping[str, str], vocabulary_size: int, place: str, model: str = ""
    ) -> None:
        """From what a tokenizer's files hold, and the special tokens that a template may name.

        place, model   where the tokenizer lies, and which model's it is: for errors
        Errors: BrokenArtifact, UnsupportedModel (a decoder whose bytes are not known exactly).
        """
        self._place = path = place
        with _translated(path):
            self._tokenizer = Tokenizer.from_buffer(files.tokenizer)
            largest = max(self._tokenizer.get_vocab().values(), default=0)
        if largest >= VOCABULARY_SIZE_MAX:  # the library makes arrays of that length
            reason = f"a token has the id {largest}, and no vocabulary is larger than {VOCABULARY_SIZE_MAX}"
            raise BrokenArtifact(path, reason)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._model = model or place
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(index for index, token in added.items() if token.special)
        decoder = self._tokenizer.decoder  # written down by itself: to write the vocabulary too takes half a second
        steps = _decoder_steps(None if decoder is None else json.loads(decoder.__getstate__()))
        byte_level = steps == ["ByteLevel"]
        table = _byte_characters()
        self.pieces = tuple(
            added[index].content.encode()
            if index in added
            else _piece(self._tokenizer.id_to_token(index), table if byte_level else None)
            for index in range(vocabulary_size)
        )
        alphabet = {piece[0] for piece in self.pieces if len(piece) == 1} if byte_level else range(0x100)
        self._absent = frozenset(range(0x100)).difference(alphabet)
        ids = self._tokenizer.encode("a\r\nb", add_special_tokens=False).ids
        self._keeps_returns = b"\r\n" in b"".join(self.pieces[index] for index in ids if index < vocabulary_size)
        source = files.template
        self._template = None if source is None else ChatTemplate(source, names)
        self._added = {index: token.content for index, token in added.items()}
        self._control = {
            index: words
            for index, words in self._added.items()
            if words.strip() and (index in self._special or words in (source or ""))
        }
        self._without_added = cache(self._make_without_added)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`. Special tokens written in the text are recognised either way.

        Where the vocabulary cannot write CR LF, the line ends are LF: the same lines.
        add_special_tokens  also add what the tokenizer's own post-processor puts around every text (a BOS, say); many
                            tokenizers add nothing
        Errors: TextNotEncodable where the vocabulary lacks a byte of the text, which the library would drop silently.
        """
        text = self._lines(text)
        with _translated(self._place):
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        if not self._absent.isdisjoint(text.encode()):
            self._check_whole(text, ids)
        return ids

    def _lines(self, text: str) -> str:
        return text if self._keeps_returns else text.replace("\r\n", "\n")

    def _check_whole(self, text: str, ids: Sequence[int]) -> None:
        """An absent byte may still be inside an added token; where the bytes do not add up, it is lost."""
        if text.encode() not in b"".join(self.pieces[index] for index in ids):
            offset = next(i for i, character in enumerate(text) if not self._absent.isdisjoint(character.encode()))
            raise TextNotEncodable(f"U+{ord(text[offset]):04X}", offset)

    def decode(self, ids: Sequence[int]) -> str:
        """The tokenizer library's own decoding, special tokens shown."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def is_special(self, token: int) -> bool:
        """Whether the tokenizer marks the id as special, to be hidden from readers."""
        return token in self._special

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, now_ms: int | None = None
    ) -> str:
        """The chat as one text, by the model's own Jinja template: as it is written, control tokens and all.

        Errors: NoChatTemplate, and those of `ChatTemplate.render`.
        """
        return self._chat_template().render(messages, add_generation_prompt, now_ms)

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], *, now_ms: int | None = None, literal: bool = True
    ) -> list[int]:
        """Token ids of a chat as a prompt: see `fsm.request.seal.TextPort`.

        Control tokens are the special ones, and those that the template itself writes.
        Errors: NoChatTemplate, TemplateFailed, TextNotEncodable.
        """
        chat = marked(self._chat_template(), messages, now_ms, self._control if literal else {})
        chat = chat._replace(text=self._lines(chat.text))
        if chat.mark not in chat.text:
            return self.encode(chat.text, add_special_tokens=False)
        ids = self._encode_marked(chat)
        text = chat.plain(self._control)
        if not self._absent.isdisjoint(text.encode()):
            self._check_whole(text, ids)
        return ids

    def _encode_marked(self, chat: Marked) -> list[int]:
        """The library encodes what stands between two added tokens by itself. So does this, and where a message has
        spelled one, by a tokenizer that knows of none. Errors: TemplateFailed where that too comes upon one."""
        encoding = self._tokenizer.encode(chat.text, add_special_tokens=False)
        ids: list[int] = []
        part: list[int] = []  # of what follows the newest added token
        begin = 0

        def close(end: int) -> None:
            words = chat.text[begin:end]
            if chat.mark not in words:
                ids.extend(part)
                return
            plain = self._without_added(begin > 0).encode(chat.plain(self._control, words)).ids
            if spelled := self._control.keys() & set(plain):
                raise TemplateFailed(
                    f"a message spells {self._control[min(spelled)]}, which this tokenizer cannot keep"
                )
            ids.extend(plain)

        for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self._added and chat.text[start:stop].strip() == self._added[token].strip():
                close(start)
                ids.append(token)
                part, begin = [], stop
            else:
                part.append(token)
        close(len(chat.text))
        return ids

    def _make_without_added(self, within: bool) -> Tokenizer:
        """This tokenizer without its added tokens; `within` a text, where none puts a space before what it is given."""
        settings = json.loads(self._tokenizer.to_str()) | {"added_tokens": [], "post_processor": None}
        if within:
            _put_no_space(settings["pre_tokenizer"])
        return Tokenizer.from_str(json.dumps(settings))

    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            raise NoChatTemplate(self._model)
        return self._template


@contextmanager
def _translated(place: str) -> Iterator[None]:
    """Where the library fails or panics, its file is what it cannot bear."""
    try:
        yield
    except BaseException as error:  # it raises plain Exception, and its panics are none
        if not is_fault(error):
            raise
        raise BrokenArtifact(place, told(error)) from error


def load_text(directory: Path, vocabulary_size: int) -> TextInterface:
    """The text interface of the model in `directory`, whose score rows have `vocabulary_size` columns."""
    place = str(directory / TOKENIZER_FILE)
    return TextInterface(text_files(directory), special_names(directory), vocabulary_size, place, directory.name)


def text_files(directory: Path) -> TextFiles:
    """What the text interface of the model in `directory` is made of. Errors: BrokenArtifact, LimitExceeded."""
    try:
        with open_file(directory / TOKENIZER_FILE, TOKENIZER_BYTES_MAX) as file:
            return TextFiles(file.read(), template_of(directory))
    except OSError as error:
        raise BrokenArtifact(str(directory / TOKENIZER_FILE), str(error)) from error


def template_of(directory: Path) -> str | None:
    """The chat template: `chat_template.jinja`, else tokenizer_config.json's; of several, the one named default.

    Errors: BrokenArtifact, LimitExceeded.
    """
    path = directory / "chat_template.jinja"
    template = read_text(path) if path.is_file() else _tokenizer_config(directory).get("chat_template")
    if isinstance(template, list):
        named = [each for each in template if isinstance(each, dict) and each.get("name") == "default"]
        template = named[0].get("template") if named else None
    if template is None:
        return None
    if not isinstance(template, str):
        raise BrokenArtifact(str(directory / "tokenizer_config.json"), "its chat_template is not a text")
    if len(template) > TEMPLATE_CHARACTERS_MAX:
        raise LimitExceeded("the chat template (characters)", len(template), TEMPLATE_CHARACTERS_MAX)
    return template


def added_tokens(directory: Path) -> dict[str, int]:
    """The ids of tokenizer.json's added tokens by their words; none where there is no such file."""
    path = directory / TOKENIZER_FILE
    added = read_json(path, TOKENIZER_BYTES_MAX).get("added_tokens") if path.is_file() else None
    tokens: dict[str, int] = {}
    for token in added if isinstance(added, list) else ():
        match token:  # another shape is for the tokenizer library to refuse
            case {"content": str(text), "id": int(index)}:
                tokens.setdefault(text, index)
    return tokens


# ---- exact bytes ---------------------------------------------------------------------------------------------------


def _decoder_steps(decoder: Mapping[str, Any] | None) -> list[str]:
    """The decoder's steps by name. Errors: UnsupportedModel for one whose effect on bytes is not one to one."""
    steps = decoder["decoders"] if decoder and decoder["type"] == "Sequence" else [decoder] if decoder else []
    names = [step["type"] for step in steps]
    known = all(
        name in ("ByteLevel", "ByteFallback", "Fuse", "Metaspace")
        or (name == "Replace" and (step["pattern"], step["content"]) == ({"String": _SPACE}, " "))
        or (name == "Strip" and (step["content"], step["start"], step["stop"]) == (" ", 1, 0))
        for name, step in zip(names, steps, strict=True)
    )
    if not known or ("ByteLevel" in names and len(names) > 1) or not names:
        raise UnsupportedModel("tokenizer decoder", repr(names), "a byte-level or a SentencePiece decoder")
    return names


def _piece(token: str | None, table: Mapping[str, int] | None) -> bytes:
    """A vocabulary entry's bytes, through the byte characters' table, or as SentencePiece writes them."""
    if token is None:
        return b""
    if table is not None:
        if all(character in table for character in token):
            return bytes(table[character] for character in token)
        return token.encode()
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE, " ").encode()


def _byte_characters() -> dict[str, int]:
    """GPT-2's byte alphabet: printable Latin-1 bytes stand for themselves, the others take U+0100 and up, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _put_no_space(step: dict[str, Any] | None) -> None:
    """Let a pre-tokenizer that puts a space before the first word of a text take what it is given for no first one."""
    if step is not None and step["type"] == "Metaspace" and step.get("prepend_scheme") == "first":
        step["prepend_scheme"] = "never"
    for each in (step or {}).get("pretokenizers", ()):
        _put_no_space(each)


# ---- its configuration -----------------------------------------------------------------------------------------------


def _tokenizer_config(directory: Path) -> dict[str, Any]:
    path = directory / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}


def special_names(directory: Path) -> dict[str, str]:
    """The special tokens that a template may name, by name; an entry may be a string or an added-token object."""
    config = _tokenizer_config(directory)
    names = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"):
        value = config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            names[name] = content
    return names
