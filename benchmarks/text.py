"""(g) From a token's bytes to what a caller gets: detokeniser, stop automaton, horizon, and the token's place in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy

from jobs import seconds
from measuring import Figures, medians, take_turns

from decodelog.fsm.evidence.receipt import Selection
from decodelog.fsm.output.horizon import START, Horizon, advance
from decodelog.fsm.output.stop_matcher import StopMatcher, compile_stops
from decodelog.fsm.reading.emission import Emitter, Moment
from decodelog.runtime.model.releases import find_model
from decodelog.runtime.text.tokenizer import load_text
from decodelog.service.jobs.models import home

MODEL, VOCABULARY = "smollm2-135m-instruct", 49_152
EARLY, LATE, WINDOW = 100, 8000, 400
# Begun often and never whole: a stop would end the work that is to be measured.
STOPS = (b"\n\nUser: 7431", b"</answer-of-no-one>", b"<|im_end|><|im_end|>", b"#### # ####")
REPEATS = 20
CHOSEN = Selection(0, 1, -0.5, -0.25, 1.0)


def text(rounds: int, note: Callable[[str], None]) -> Figures:
    """Microseconds a token with four stop strings, around positions 100 and 8,000 of one stream; the greater of them.

    What comes out is what a stream carries: text, and tokens with their offsets once no stop can take them away.

    Tokens are drawn from the whole of SmolLM2's vocabulary, so that characters are often cut in two. Both windows get
    the same ones.
    """
    note(f"{rounds} rounds of {WINDOW} tokens around positions {EARLY} and {LATE}")
    matcher = compile_stops(STOPS)
    pieces = drawn_pieces(LATE + WINDOW)
    window = pieces[:WINDOW]

    def at(position: int) -> Callable[[], float]:
        emitter = Emitter("text")
        before = fed(START, matcher, emitter, pieces[: position - WINDOW // 8])

        def once() -> float:
            own = deepcopy(emitter)
            return seconds(lambda: fed(before, matcher, own, window))

        return lambda: min(once() for _ in range(REPEATS)) / WINDOW * 1e6

    figures = medians(take_turns({"text_early_us": at(EARLY), "text_late_us": at(LATE)}, rounds))
    return figures | {"text_us": max(figures["text_early_us"], figures["text_late_us"])}


def drawn_pieces(count: int) -> list[bytes]:
    """The bytes of so many tokens of SmolLM2, special ones left out."""
    interface = load_text(find_model(MODEL, home()), VOCABULARY)
    ordinary = [piece for index, piece in enumerate(interface.pieces) if not interface.is_special(index)]
    return random.Random(7).choices(ordinary, k=count)


def fed(horizon: Horizon, matcher: StopMatcher, emitter: Emitter, pieces: list[bytes]) -> Horizon:
    for sequence, piece in enumerate(pieces, 1):
        before = horizon
        horizon, text, match = advance(before, matcher, piece)
        if match is not None:
            raise RuntimeError("a stop has ended the stream")
        emitter.take(Moment(sequence, text, before, horizon, CHOSEN, piece))
    return horizon
