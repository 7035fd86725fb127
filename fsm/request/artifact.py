"""What identifies a model artifact: the facts that an envelope's artifact and text-interface planes bind."""

from __future__ import annotations

from dataclasses import dataclass


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

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Every id that may end an output, each once."""
        return tuple(dict.fromkeys((*self.eos_ids, *self.turn_end_ids)))

    @property
    def has_chat_template(self) -> bool:
        return self.template_sha256 is not None
