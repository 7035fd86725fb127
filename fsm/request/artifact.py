"""What identifies a model artifact: the facts that an envelope's artifact and text-interface planes bind."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from .canonical import canonical_bytes

DOMAIN: Final = b"decodelog.artifact.v1"


@dataclass(frozen=True, slots=True)
class ArtifactFacts:
    """One loadable model, as the envelope sees it. Hashes are lower-case hex SHA-256.

    release_id           the registry's name, or `checkpoint-` and the first 16 digits of the checkpoint's hash
    checkpoint_sha256    the weight file's hash; of several files, the hash of their sorted `hash  name` lines
    template_sha256      of the chat template's UTF-8 text; None where the model has none
    bos_id, pad_id       None where the model declares none
    eos_ids              every id that ends a sequence, in the declared order, without repeats: those that its
                         configuration states, and the tokenizer's own end token
    turn_end_ids         what the chat template writes right after an assistant's words, if that is a token: in a chat
                         it ends the answer too
    cache_abi            layers, heads, widths, axis order, dtype and key rotation of the K/V cache, as one line
    weight_dtype         the dtype that the weights compute in, for example `float32`
    defaults             how generation_config.json would have it sampled, as sorted (name, JSON) pairs: no request
                         follows them
    """

    release_id: str
    architecture: str
    checkpoint_sha256: str
    config_sha256: str
    tokenizer_sha256: str
    template_sha256: str | None
    vocabulary_size: int
    context_tokens_max: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int | None
    cache_abi: str
    weight_dtype: str
    turn_end_ids: tuple[int, ...] = ()
    defaults: tuple[tuple[str, str], ...] = ()

    @property
    def artifact(self) -> str:
        """The artifact's digest; see `artifact_digest`."""
        return artifact_digest(
            self.release_id, self.architecture, self.checkpoint_sha256, self.config_sha256, self.weight_dtype,
            self.tokenizer_sha256, self.template_sha256,
        )  # fmt: skip

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Every id that may end an output, each once."""
        return tuple(dict.fromkeys((*self.eos_ids, *self.turn_end_ids)))

    @property
    def has_chat_template(self) -> bool:
        return self.template_sha256 is not None


def artifact_digest(
    release_id: str,
    architecture: str,
    checkpoint_sha256: str,
    config_sha256: str,
    weight_dtype: str,
    tokenizer_sha256: str,
    template_sha256: str | None,
) -> str:
    """What a job finds its model by, in hex: SHA-256 over what the model's files are, and nothing that is made of them.

    So it follows from the files and from a sealed request alike, and stays when a later release reads more out of them.
    """
    facts = [
        release_id, architecture, checkpoint_sha256, config_sha256, weight_dtype, tokenizer_sha256, template_sha256,
    ]  # fmt: skip
    return hashlib.sha256(DOMAIN + canonical_bytes(facts)).hexdigest()
