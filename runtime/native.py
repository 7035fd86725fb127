"""A checkpoint directory as the crank sees it: the native decoder, its tokenizer, and one session a batch width."""

from __future__ import annotations

from pathlib import Path

import torch

from ..fsm.admission import RuntimeFacts
from ..fsm.artifact import ArtifactFacts
from .artifacts import load_facts
from .models.decoder import Decoder, load_decoder
from .models.facts import runtime_facts
from .session import Session
from .tokenizer import TextInterface, load_text

POSITIONS_FIRST = 256


class NativeModel:
    """One loaded checkpoint. Sessions are made on first use and keep `lanes` slots each."""

    def __init__(self, facts: ArtifactFacts, decoder: Decoder, text: TextInterface, lanes: int) -> None:
        self.facts = facts
        self.text = text
        self.runtime = framework_facts(str(decoder.device).partition(":")[0])
        self.recorded = tuple(sorted((name, str(value)) for name, value in runtime_facts(decoder).items()))
        self._decoder = decoder
        self._lanes = lanes
        self._sessions: dict[int, Session] = {}

    @classmethod
    def load(cls, directory: Path, lanes: int, device: str = "cpu") -> NativeModel:
        """Read and check the artifact, then its weights. Errors: BrokenArtifact, UnsupportedModel."""
        facts = load_facts(directory)
        return cls(facts, load_decoder(directory, device=device), load_text(directory, facts.vocabulary_size), lanes)

    def session(self, width: int) -> Session:
        """The session whose decode calls have exactly `width` rows."""
        if width not in self._sessions:
            context = self.facts.context_tokens_max
            arena = self._decoder.new_arena(
                max(self._lanes, width), min(POSITIONS_FIRST, context), positions_max=context
            )
            self._sessions[width] = Session(self._decoder, arena, width=width)
        return self._sessions[width]


def framework_facts(device_class: str) -> RuntimeFacts:
    """What float32 calls through torch on this device class are bound to."""
    return RuntimeFacts(
        "float32", "float32", "slot_arena", device_class, f"torch {torch.__version__.partition('+')[0]}"
    )
