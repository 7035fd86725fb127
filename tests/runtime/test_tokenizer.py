"""The text interface: exact bytes of every id, encoding with and without special tokens, chat templates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer

from decodelog.fsm.errors import (
    BrokenArtifact,
    NoChatTemplate,
    TemplateFailed,
    TextNotEncodable,
    UnsupportedModel,
)
from decodelog.fsm.limits import VOCABULARY_SIZE_MAX
from decodelog.runtime.text.tokenizer import TextInterface, added_tokens, load_text, special_names, template_of


def joined(text: TextInterface, ids: Sequence[int]) -> bytes:
    return b"".join(text.pieces[index] for index in ids)


# ---- exact bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.contract("OUT-1")
@given(st.text())
def test_a_texts_pieces_join_to_its_bytes_or_it_is_refused(real: TextInterface, text: str) -> None:
    try:
        ids = real.encode(text, add_special_tokens=True)
    except TextNotEncodable as error:
        absent = {bytes([byte]) for byte in text[error.offset].encode()} - set(real.pieces)
        assert absent
        return
    assert joined(real, ids) == text.encode()
    assert real.decode(ids) == text


@pytest.mark.contract("ENV-1", "OUT-1")
def test_a_character_that_the_vocabulary_lacks_is_refused_and_not_dropped(real: TextInterface) -> None:
    with pytest.raises(TextNotEncodable) as caught:
        real.encode("ab\x04c", add_special_tokens=False)
    assert (caught.value.character, caught.value.offset) == ("U+0004", 2)


@pytest.mark.contract("OUT-1")
@given(st.lists(st.integers(0, 49151), max_size=40))
def test_any_ids_pieces_join_to_the_tokenizers_own_decoding(real: TextInterface, ids: list[int]) -> None:
    assert joined(real, ids).decode("utf-8", "replace") == real.decode(ids)


@pytest.mark.contract("OUT-1")
def test_every_id_has_a_piece_and_no_piece_is_empty(real: TextInterface) -> None:
    assert len(real.pieces) == 49152
    assert all(real.pieces)
    assert {bytes([byte]) for byte in b"\t\n" + bytes(range(0x20, 0xC0))} <= set(real.pieces)


@pytest.mark.contract("OUT-1")
def test_text_survives_token_by_token(real: TextInterface) -> None:
    text = "Ünïcode 😀👩‍👩‍👧 日本語\n\t  1234567\r\n<|im_end|> Ġ ▁ \u0000\u200b"
    ids = real.encode(text, add_special_tokens=False)
    assert joined(real, ids) == text.encode()
    assert len([index for index in ids if real.pieces[index].isdigit()]) == 7  # each digit is a token of its own


@pytest.mark.contract("OUT-1")
@given(st.text(st.characters(codec="utf-8", exclude_characters="▁")))
def test_byte_fallback_pieces_join_to_the_text_behind_its_dummy_space(sentence_piece: TextInterface, text: str) -> None:
    ids = sentence_piece.encode(text, add_special_tokens=False)
    assert joined(sentence_piece, ids).decode().removeprefix(" ") == text.removeprefix(" ")


@pytest.mark.contract("OUT-1")
@given(st.lists(st.integers(0, 265), max_size=30))
def test_byte_fallback_ids_join_to_the_tokenizers_own_decoding(sentence_piece: TextInterface, ids: list[int]) -> None:
    # The library replaces each byte of an ill-formed run, decodelog each maximal ill-formed part: compare sound text.
    try:
        text = joined(sentence_piece, ids).decode()
    except UnicodeDecodeError:
        return
    assert text.removeprefix(" ") == sentence_piece.decode(ids)


def continues(text: TextInterface, prompt: list[int], ids: list[int]) -> bool:
    return text.decode([*prompt, *ids]) == text.decode(prompt) + joined(text, ids).decode()


WHOLE = st.one_of(  # ids that end between characters: a token of its own, or the bytes of one character
    st.sampled_from([0, 1, 2, *range(259, 267)]).map(lambda index: [index]),
    # The letter that stands for a space is one where it is spelled in bytes; the library's Metaspace shows a space.
    st.characters(codec="utf-8", exclude_characters="▁").map(lambda letter: [3 + byte for byte in letter.encode()]),
)
SPELLED = st.lists(WHOLE, min_size=1, max_size=8).map(lambda parts: [index for part in parts for index in part])


@pytest.mark.contract("OUT-1")
@given(prompt=SPELLED, ids=SPELLED)
@example(prompt=[1], ids=[262])
@example(prompt=[259], ids=[262, 263])
def test_a_continuations_pieces_are_what_it_adds_to_the_decoding(
    sentence_piece: TextInterface, metaspace: TextInterface, prompt: list[int], ids: list[int]
) -> None:
    """A continuation's pieces are what the whole decoding adds to the prompt's."""
    assert continues(sentence_piece, prompt, ids)
    assert continues(metaspace, prompt, ids)


@pytest.mark.contract("OUT-1")
@given(prompt=st.text(" aé日😀\n", min_size=1), continuation=st.text(" aé日😀\n", min_size=1))
def test_the_same_holds_for_a_byte_level_vocabulary(real: TextInterface, prompt: str, continuation: str) -> None:
    first, then = (real.encode(text, add_special_tokens=False) for text in (prompt, continuation))
    assert continues(real, first, then)


@pytest.mark.contract("OUT-1")
def test_pieces_of_a_sentence_piece_vocabulary(sentence_piece: TextInterface) -> None:
    assert sentence_piece.pieces[3 + 0x0A] == b"\n"
    assert sentence_piece.pieces[259:266] == (b" ", b"a", b"b", b" a", b" b", b"  ", "é".encode())
    assert sentence_piece.pieces[266] == b"plain words"
    assert sentence_piece.pieces[267:] == (b"",) * 3  # ids that score rows have and the tokenizer does not


@pytest.mark.contract("OUT-1")
def test_a_decoder_whose_bytes_are_unknown_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    for decoder in (decoders.WordPiece(), None):
        if decoder is not None:
            tokenizer.decoder = decoder
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(UnsupportedModel, match="tokenizer decoder"):
            load_text(tmp_path, 1)


@pytest.mark.contract("OUT-1")
@pytest.mark.parametrize("content", [None, "{}", "not json"])
def test_a_broken_tokenizer_file_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(BrokenArtifact, match=r"tokenizer\.json"):
        load_text(tmp_path, 1)


@pytest.mark.contract("ENV-1")
@pytest.mark.parametrize("kind", ["BPE", "WordLevel"])
def test_an_id_beyond_any_vocabulary_is_refused_before_allocation(tmp_path: Path, kind: str) -> None:
    """An id beyond any vocabulary is refused before an array is made for it."""
    path = tmp_path / "tokenizer.json"
    vocabulary = {"a": 0, "b": 1, "[UNK]": 2}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, []) if kind == "BPE" else models.WordLevel(vocabulary, unk_token="[UNK]")
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))
    assert load_text(tmp_path, 2).pieces == (b"a", b"b")
    raw = json.loads(path.read_text())
    raw["model"]["vocab"]["b"] = VOCABULARY_SIZE_MAX - 1
    path.write_text(json.dumps(raw))
    assert load_text(tmp_path, 2).pieces == (b"a", b"")
    for largest in (VOCABULARY_SIZE_MAX, 4_000_000_000):
        raw["model"]["vocab"]["b"] = largest
        path.write_text(json.dumps(raw))
        with pytest.raises(BrokenArtifact, match=f"a token has the id {largest}"):
            load_text(tmp_path, 2)


def test_a_file_over_which_the_library_panics_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The prefix of every part but a first one is longer than the part."""
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.decoder = decoders.ByteLevel()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    raw = json.loads(path.read_text())
    raw["model"] |= {"continuing_subword_prefix": "##", "merges": ["a b"]}
    path.write_text(json.dumps(raw))
    with pytest.raises(BrokenArtifact, match=r"tokenizer\.json: .*(slice index|out of range)"):
        load_text(tmp_path, 3)
    assert "panicked" in capfd.readouterr().err  # by the library's own hook


# ---- special tokens ------------------------------------------------------------------------------------------------


@pytest.mark.contract("OUT-3")
def test_special_tokens_are_those_that_the_tokenizer_marks(real: TextInterface, sentence_piece: TextInterface) -> None:
    assert [index for index in range(49152) if real.is_special(index)] == list(range(17))
    assert [index for index in range(269) if sentence_piece.is_special(index)] == [0, 1, 2]  # not "plain words"


@pytest.mark.contract("ENV-7")
def test_only_the_tokenizers_own_rule_adds_special_tokens(real: TextInterface, sentence_piece: TextInterface) -> None:
    assert sentence_piece.encode("a", add_special_tokens=True)[0] == 1
    assert 1 not in sentence_piece.encode("a", add_special_tokens=False)
    assert real.encode("a", add_special_tokens=True) == real.encode("a", add_special_tokens=False)


def test_special_ids_are_found_by_their_name(directory: Path) -> None:
    names, added = special_names(directory), added_tokens(directory)
    assert added[names["eos_token"]] == 2
    assert "mask_token" not in names


# ---- chat templates ------------------------------------------------------------------------------------------------

CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "Hello <|im_end|> & 'quotes' \\n"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\n"}],
    [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "日本"},
    ],
]


@pytest.mark.contract("ENV-7")
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("prompt", [True, False])
def test_chats_render_and_encode_as_in_transformers(
    real: TextInterface, directory: Path, chat: list[dict[str, str]], prompt: bool
) -> None:
    theirs = AutoTokenizer.from_pretrained(directory)
    text = real.apply_chat_template(chat, add_generation_prompt=prompt)
    assert text == theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt)
    expected: Any = theirs.apply_chat_template(chat, tokenize=True, add_generation_prompt=prompt, return_dict=True)
    assert real.encode(text, add_special_tokens=False) == expected["input_ids"]


def templated(directory: Path, real_directory: Path, template: Any, **config: Any) -> TextInterface:
    (directory / "tokenizer.json").write_bytes((real_directory / "tokenizer.json").read_bytes())
    config |= {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return load_text(directory, 49152)


TEMPLATES = {
    "special tokens": ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>hi</s>"),
    "blocks leave no blanks": (
        "{% if true %}\n    {% for m in messages %}\n{{ m.role }}\n{% endfor %}\n{% endif %}",
        "user\n",
    ),
    "loop controls": ("{% for m in messages %}{% break %}{% endfor %}x", "x"),
    "generation blocks": ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hi"),
    "json is not escaped for HTML": ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
    "no tools": ("{{ tools is none }}", "True"),
}


@pytest.mark.contract("ENV-7")
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_sees_what_templates_expect(tmp_path: Path, directory: Path, name: str) -> None:
    template, expected = TEMPLATES[name]
    text = templated(tmp_path, directory, template)
    assert text.apply_chat_template([{"role": "user", "content": "hi"}]) == expected


@pytest.mark.contract("ENV-7")
@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{% if %}", "Expected an expression"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ nothing.at.all }}", "undefined"),
        ("{{ 1 // 0 }}", "zero"),
    ],
)
def test_a_refusing_or_broken_template_is_typed(tmp_path: Path, directory: Path, template: str, reason: str) -> None:
    text = templated(tmp_path, directory, template)
    with pytest.raises(TemplateFailed, match=reason):
        text.apply_chat_template([{"role": "user", "content": "hi"}])


@pytest.mark.contract("ENV-7")
def test_where_a_template_is_looked_for(tmp_path: Path, directory: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert templated(tmp_path, directory, named).apply_chat_template([]) == "d"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert template_of(tmp_path) == "file"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(BrokenArtifact, match="chat_template"):
        template_of(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(NoChatTemplate, match=tmp_path.name):
        templated(tmp_path, directory, None).apply_chat_template([])
