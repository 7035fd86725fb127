"""Tokenizers of each kind, as fixtures: a real one, and small ones that are made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from decodelog.fsm.errors import Problem
from decodelog.runtime.model.releases import find_model
from decodelog.runtime.text.tokenizer import TextInterface, load_text

NAME = "smollm2-135m-instruct"
SPACE = "▁"

# Contractions, words with the blank before them, up to three digits, signs, and runs of blanks.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>")
UNUSED = 300


@pytest.fixture(scope="session")
def directory() -> Path:
    try:
        return find_model(NAME, Path.home() / ".cache" / "decodelog")
    except Problem as error:
        pytest.fail(f"{error}: these tests run on the real tokenizer")


@pytest.fixture(scope="session")
def real(directory: Path) -> TextInterface:
    return load_text(directory, 49152)


@pytest.fixture(scope="session")
def sentence_piece(tmp_path_factory: pytest.TempPathFactory) -> TextInterface:
    return sentence_piece_of(tmp_path_factory.mktemp("sentence-piece"), pairs(), LLAMA)


@pytest.fixture(scope="session")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> TextInterface:
    """The same, decoded the other way that SentencePiece vocabularies are."""
    steps = [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first", split=False)]
    return sentence_piece_of(tmp_path_factory.mktemp("metaspace"), pairs(), steps)


@pytest.fixture(scope="session")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> TextInterface:
    """The same pieces under the other model that SentencePiece trains."""
    model = models.Unigram([(piece, -1.0) for piece in PIECES], 0, byte_fallback=True)
    return sentence_piece_of(tmp_path_factory.mktemp("unigram"), model, LLAMA)


@pytest.fixture(scope="session")
def split_bytes(tmp_path_factory: pytest.TempPathFactory) -> TextInterface:
    """A byte-level BPE behind a regular expression; id 300 is nobody's, and score rows have ten columns more."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("ð", "Ł"), ("ðŁ", "ĺ"), ("Ã", "©"), ("â", "Ĥ"), ("Ġ", "ð")]
    tokens = [*alphabet, *(left + right for left, right in merges)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    vocabulary["Ċ" * 2] = UNUSED + 1
    tokenizer = Tokenizer(models.BPE(vocabulary, [*merges, ("Ċ", "Ċ")]))
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIALS])
    tokenizer.add_tokens([AddedToken("é!", normalized=False, special=False)])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    path = tmp_path_factory.mktemp("split-bytes")
    tokenizer.save(str(path / "tokenizer.json"))
    return load_text(path, UNUSED + 10)


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
PIECES += ["▁", "a", "b", "▁a", "▁b", "▁▁", "é"]
LLAMA = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


def pairs() -> models.BPE:
    vocabulary = {piece: index for index, piece in enumerate(PIECES)}
    merges = [("▁", "a"), ("▁", "b"), ("▁", "▁")]
    return models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True)


def sentence_piece_of(directory: Path, model: models.Model, steps: list[Any]) -> TextInterface:
    """A SentencePiece-like tokenizer: visible spaces, byte fallback, a BOS from the post-processor, an unused id."""
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("plain words", normalized=False, special=False)])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.save(str(directory / "tokenizer.json"))
    return load_text(directory, len(PIECES) + 4)
