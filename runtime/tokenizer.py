"""A model's text interface: text to ids, chat to text, and the exact raw bytes of every token id.

Bytes come from the vocabulary, not from decoding: a byte-level vocabulary writes each byte as one printable character
(GPT-2's table), a SentencePiece one writes spaces as U+2581 and single bytes as `<0x0A>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from ..fsm.errors import BrokenArtifact, NoChatTemplate, TemplateFailed, TextNotEncodable, UnsupportedModel
from ..fsm.limits import TOKENIZER_BYTES_MAX
from .models.files import open_file, read_json, read_text

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's visible space
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class TextInterface:
    """One tokenizer with its chat template.

    pieces  exact bytes of each id below the vocabulary size; b"" for ids that no token has. A word's piece keeps its
            leading space: a generated text continues a prompt, so its joined pieces are what decode(prompt + ids) has
            beyond decode(prompt), for a prompt that ends between characters. Only the first space of a whole text,
            which SentencePiece puts there when it encodes, is dropped by decoding, and that one is the prompt's.
    """

    def __init__(self, directory: Path, vocabulary_size: int) -> None:
        """Errors: BrokenArtifact, UnsupportedModel (a decoder whose bytes are not known exactly)."""
        path = directory / "tokenizer.json"
        open_file(path, TOKENIZER_BYTES_MAX).close()
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise BrokenArtifact(str(path), str(error)) from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._model = directory.name
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(index for index, token in added.items() if token.special)
        steps = _decoder_steps(json.loads(self._tokenizer.to_str())["decoder"])
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
        self._template = template_of(directory)
        self._names = _special_names(directory)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`. Special tokens written in the text are recognised either way.

        add_special_tokens  also add what the tokenizer's own post-processor puts around every text (a BOS, say); many
                            tokenizers add nothing
        Errors: TextNotEncodable where the vocabulary lacks a byte of the text, which the library would drop silently.
        """
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        if not self._absent.isdisjoint(text.encode()):
            self._check_whole(text, ids)
        return ids

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

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The chat as one text, by the model's own Jinja template in a sandbox; pure: templates see no clock.

        Errors: NoChatTemplate; TemplateFailed where the template refuses the messages or is itself broken.
        """
        if self._template is None:
            raise NoChatTemplate(self._model)
        try:
            template = _environment().from_string(self._template)
            given = {"messages": messages, "add_generation_prompt": add_generation_prompt}
            return template.render(**self._names, **given, tools=None, documents=None)
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError, LookupError) as error:
            raise TemplateFailed(str(error) or type(error).__name__) from error


def load_text(directory: Path, vocabulary_size: int) -> TextInterface:
    """The text interface of the model in `directory`, whose score rows have `vocabulary_size` columns."""
    return TextInterface(directory, vocabulary_size)


def template_of(directory: Path) -> str | None:
    """The chat template: `chat_template.jinja`, else tokenizer_config.json's; of several, the one named default.

    Errors: BrokenArtifact.
    """
    path = directory / "chat_template.jinja"
    if path.is_file():
        return read_text(path)
    template = _tokenizer_config(directory).get("chat_template")
    if isinstance(template, list):
        named = [each for each in template if isinstance(each, dict) and each.get("name") == "default"]
        template = named[0].get("template") if named else None
    if template is None or isinstance(template, str):
        return template
    raise BrokenArtifact(str(directory / "tokenizer_config.json"), "its chat_template is not a text")


def special_id(directory: Path, name: str) -> int | None:
    """The id of the token that tokenizer_config.json calls `name` (`bos_token`, ...), where both are there."""
    content = _special_names(directory).get(name)
    path = directory / "tokenizer.json"
    if content is None or not path.is_file():
        return None
    added = read_json(path, TOKENIZER_BYTES_MAX).get("added_tokens")
    for token in added if isinstance(added, list) else ():
        match token:  # another shape is for the tokenizer library to refuse
            case {"content": str(text), "id": int(index)} if text == content:
                return index
    return None


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


# ---- templates -----------------------------------------------------------------------------------------------------


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; rendering keeps what it holds."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = to_json
    return environment


def _tokenizer_config(directory: Path) -> dict[str, Any]:
    path = directory / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}


def _special_names(directory: Path) -> dict[str, str]:
    """The special tokens that a template may name, by name; an entry may be a string or an added-token object."""
    config = _tokenizer_config(directory)
    names = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"):
        value = config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            names[name] = content
    return names
