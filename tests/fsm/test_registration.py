"""What is stored of a registered model: read for ever, and refused where it is not what was stored."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import pytest

from decodelog.fsm.errors import CorruptModel
from decodelog.fsm.request.admission import RuntimeFacts
from decodelog.fsm.request.artifact import ArtifactFacts
from decodelog.fsm.request.registration import (
    Registration,
    TextFiles,
    record_digest,
    registration_of,
    text_files_of,
)

TOKENIZER, TEMPLATE = b'{"a": 1}', "{{ messages }} é"
HASHES = [sha256(content).hexdigest() for content in (TOKENIZER, TEMPLATE.encode())]
FACTS = ArtifactFacts(
    release_id="release",
    architecture="decoder_only",
    checkpoint_sha256="1" * 64,
    config_sha256="2" * 64,
    tokenizer_sha256=HASHES[0],
    template_sha256=HASHES[1],
    vocabulary_size=8,
    context_tokens_max=32,
    bos_id=None,
    eos_ids=(2, 1),
    pad_id=0,
    cache_abi="abi",
    weight_dtype="float32",
    turn_end_ids=(3,),
    defaults=(("temperature", "0.6"),),
)
MODEL = Registration(FACTS, RuntimeFacts("float32", "float32", "slot_arena", "cpu", "torch 2"), {"eos_token": "<e>"})
FILES = TextFiles(TOKENIZER, TEMPLATE)
RECORD = (
    b'{"facts":{"architecture":"decoder_only","bos_id":null,"cache_abi":"abi","checkpoint_sha256":"' + b"1" * 64
    + b'","config_sha256":"' + b"2" * 64 + b'","context_tokens_max":32,"defaults":[["temperature","0.6"]],'
    b'"eos_ids":[2,1],"pad_id":0,"release_id":"release","template_sha256":"' + HASHES[1].encode()
    + b'","tokenizer_sha256":"' + HASHES[0].encode()
    + b'","turn_end_ids":[3],"vocabulary_size":8,"weight_dtype":"float32"},'
    b'"runtime":{"cache_kind":"slot_arena","compute_dtype":"float32","device_class":"cpu",'
    b'"framework_revision":"torch 2","logit_dtype":"float32"},"special_names":{"eos_token":"<e>"}}'
)  # fmt: skip
"""As the first release wrote it."""


@pytest.mark.contract("ENV-7")
def test_a_record_has_these_bytes_and_is_read_back() -> None:
    assert MODEL.record() == RECORD
    assert registration_of(MODEL.artifact, RECORD, record_digest(RECORD)) == MODEL
    assert text_files_of(MODEL, FILES.hashed()) == FILES
    bare = replace(MODEL, facts=replace(FACTS, template_sha256=None))
    assert text_files_of(bare, FILES.hashed()) == TextFiles(TOKENIZER, None)
    assert TextFiles(TOKENIZER, None).hashed() == {FACTS.tokenizer_sha256: TOKENIZER}


@pytest.mark.contract("LOG-3")
def test_any_changed_byte_of_a_record_is_refused() -> None:
    digest = record_digest(RECORD)
    for place in range(len(RECORD)):
        changed = RECORD[:place] + bytes([RECORD[place] ^ 1]) + RECORD[place + 1 :]
        with pytest.raises(CorruptModel, match="does not have the digest beside it"):
            registration_of(MODEL.artifact, changed, digest)


@pytest.mark.contract("LOG-3")
def test_a_record_with_its_digest_must_still_be_one_and_of_that_model() -> None:
    for record, reason in ((b"{}", "cannot be read"), (b"\xff", "cannot be read"), (RECORD, "is of")):
        with pytest.raises(CorruptModel, match=reason):
            registration_of("f" * 64, record, record_digest(record))


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize("sha256_of", HASHES)
def test_text_files_that_are_gone_or_others_are_refused(sha256_of: str) -> None:
    there = FILES.hashed()
    with pytest.raises(CorruptModel, match="does not have the SHA-256"):
        text_files_of(MODEL, there | {sha256_of: there[sha256_of] + b" "})
    del there[sha256_of]
    with pytest.raises(CorruptModel, match="is missing"):
        text_files_of(MODEL, there)
