"""A checkpoint directory as the crank sees it: the native decoder, its tokenizer, and sessions of any batch width."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from threading import Lock

import torch

from ...fsm.request.admission import RuntimeFacts
from ..families.decoder.facts import runtime_facts
from ..families.decoder.model import Decoder, load_decoder
from ..families.session import Session
from ..text.tokenizer import load_text
from .artifacts import load_facts

POSITIONS_FIRST = 256


class NativeModel:
    """One checkpoint. Its weights are read when the first call needs them, so a refused request costs no load.

    lanes   jobs that each session has room for
    device  where it computes
    """

    def __init__(self, directory: Path, lanes: int, device: str = "cpu") -> None:
        """Read and check the artifact and its tokenizer. Errors: BrokenArtifact, UnsupportedModel."""
        self.facts = load_facts(directory)
        self.text = load_text(directory, self.facts.vocabulary_size)
        self.runtime = framework_facts(device.partition(":")[0])
        self._directory = directory
        self._device = device
        self._loading = Lock()
        self._decoder: Decoder | None = None
        self.lanes = lanes

    @property
    def decoder(self) -> Decoder:
        """The network, loaded on first use, by one thread for all. Errors: BrokenArtifact, UnsupportedModel."""
        with self._loading:
            if self._decoder is None:
                self._decoder = load_decoder(self._directory, device=self._device)
            return self._decoder

    @cached_property
    def recorded(self) -> tuple[tuple[str, str], ...]:
        """What the network runs on, as sorted (name, value) pairs."""
        return tuple(sorted((name, str(value)) for name, value in runtime_facts(self.decoder).items()))

    def session(self, width: int) -> Session:
        """A new session for jobs of this batch width, with lanes of its own. Errors: UnequalRows."""
        context = self.facts.context_tokens_max
        arena = self.decoder.new_arena(self.lanes, min(POSITIONS_FIRST, context), positions_max=context)
        return Session(self.decoder, arena, width=width)


def framework_facts(device_class: str) -> RuntimeFacts:
    """What float32 calls through torch on this device class are bound to."""
    return RuntimeFacts(
        "float32", "float32", "slot_arena", device_class, f"torch {torch.__version__.partition('+')[0]}"
    )
