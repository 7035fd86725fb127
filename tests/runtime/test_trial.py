"""A grammar that its compiler comes to no end with is refused, by its time and by its memory, and harms nobody."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from cranks import admit, assert_audited, model, result
from databases import AnyStore
from workers import FAST, worker

from decodelog.fsm.errors import GrammarRefused, Problem
from decodelog.fsm.request.transforms import Grammar
from decodelog.runtime.grammar import parser as grammars
from decodelog.runtime.grammar.parser import Grammars
from decodelog.runtime.grammar.trial import MIB, trial

ENDLESS = "start: X\nX: /.*a.{20}/ & ~/.*b.{20}/ & /.*c.{19}/"  # a state for each set of places


def spin() -> None:
    while True:
        pass


def eat() -> None:
    held = []
    while True:
        held.append(bytearray(64 * MIB))


def test_a_trial_tells_what_ends_from_what_does_not() -> None:
    def refuse() -> None:
        raise ValueError

    assert trial(lambda: None, 5, 256 * MIB) == ""
    assert trial(refuse, 5, 256 * MIB) == ""
    assert trial(spin, 1, 256 * MIB) == "it takes more than 1 s"
    assert trial(eat, 20, 256 * MIB) == "it takes more than 256 MiB of memory"
    assert "(-6)" in trial(os.abort, 5, 256 * MIB)
    assert "(-9)" in trial(lambda: os.kill(os.getpid(), signal.SIGKILL), 5, 256 * MIB)


def test_what_waits_for_nothing_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decodelog.runtime.grammar.trial.WAITED_S", 0.2)
    assert trial(lambda: time.sleep(3600), 5, 256 * MIB) == "it comes to no end in 0.2 s"


@pytest.mark.contract("OUT-5")
@pytest.mark.parametrize(("language", "source"), [("lark", ENDLESS), ("regex", "a?" * 30_000)])
def test_a_grammar_without_end_is_refused_once_and_for_all(
    monkeypatch: pytest.MonkeyPatch, language: str, source: str
) -> None:
    monkeypatch.setattr(grammars, "SECONDS", 1)
    made = Grammars([bytes([byte]) for byte in range(256)] + [b""], lambda token: token == 256)
    trials: list[int] = []

    def counted(*given: Any) -> Any:
        trials.append(1)
        return trial(*given)

    monkeypatch.setattr(grammars, "trial", counted)
    for _ in range(2):
        with pytest.raises(GrammarRefused, match="it takes more than 1 s"):
            made.parser(Grammar.model_validate({"kind": "grammar", "language": language, "source": source}), [256])
    assert len(trials) == 1
    made.parser(Grammar(kind="grammar", language="regex", source="a{3}"), [256])
    made.parser(Grammar(kind="grammar", language="regex", source="a{3}"), [256])
    assert len(trials) == 2


@pytest.mark.contract("OUT-5", "LOG-7")
def test_a_job_with_such_a_grammar_is_left_and_its_mates_go_on(
    store: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job with such a grammar is left with its reason and its mates go on."""
    of = model("Hello")
    heard: dict[str, Problem] = {}
    good = admit(store, of)
    with monkeypatch.context() as unchecked:  # as one that was submitted where it takes less time
        unchecked.setattr("decodelog.service.jobs.submit.check_grammar", lambda envelope, of: None)
        bad = admit(store, of, grammar=ENDLESS)
    monkeypatch.setattr(grammars, "SECONDS", 1)
    worker(store, of, notice=heard.__setitem__, pace=FAST).run(drain=True)
    assert result(store, good)["text"] == "Hello"
    assert (heard[bad].code, store.row(bad).owner, store.row(bad).finish) == ("grammar_refused", None, None)
    assert "it takes more than 1 s" in str(heard[bad])
    assert_audited(store)
