"""The tokenizers of `vocabularies`, for every test of this folder."""

from __future__ import annotations

from vocabularies import directory, metaspace, real, sentence_piece, split_bytes, unigram

__all__ = ["directory", "metaspace", "real", "sentence_piece", "split_bytes", "unigram"]
