"""What a grammar may cost the jobs beside it: bounds that are counted, one that is timed, and the ends at them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest
from cranks import admit, assert_audited, engine, finish, model, result, run, turn
from databases import AnyStore
from llguidance import LLParserLimits

from decodelog.fsm.errors import GrammarRefused, GrammarTooCostly
from decodelog.fsm.limits import MASK_MS_MAX, MASKS_OVER_MS_MAX
from decodelog.fsm.machine.events import RequestFailed
from decodelog.fsm.output.standing import Standing
from decodelog.fsm.request.transforms import Grammar
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.families.scripted.script import Piece, Script, ScriptedConfig
from decodelog.runtime.grammar import parser as grammar
from decodelog.runtime.grammar.parser import Grammars, grammars_of
from decodelog.runtime.grammar.spending import Spending
from decodelog.store.memory.log import MemoryStore

pytestmark = pytest.mark.contract("OUT-5")

AMBIGUOUS = 'start: s "b"\ns: "a" | s s'
EOS = 256
EIGHT = 258
BETWEEN = 2000  # items: enough for the first mask of AMBIGUOUS, and too few after three of its tokens
PIECES = (Piece(text="a" * 8), Piece(text="a" * 32))


def long_tokens() -> ScriptedModel:
    """A model that writes eight letters at a time for ever, and whose vocabulary makes a mask look far ahead."""
    row = [0.0] * 260
    row[EIGHT] = 9.0
    return ScriptedModel(ScriptedConfig(script=Script(rows=(tuple(row),), then="repeat"), pieces=PIECES))


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


# ---- the bounds that are counted --------------------------------------------------------------------------------


@pytest.mark.contract("POL-7", "FSM-10")
def test_a_grammar_beyond_its_bounds_ends_its_job_alone_and_its_text_stays(store: AnyStore) -> None:
    of = long_tokens()
    job = admit(store, of, grammar=AMBIGUOUS, max_new_tokens=400)
    mates = [admit(store, of, max_new_tokens=60 + index) for index in range(4)]
    finish(engine(store, of, job, *mates))
    done = result(store, job)
    assert (done["state"], done["error"]["code"]) == ("FAILED", "grammar_too_costly")
    assert "items" in done["error"]["message"]
    tokens = done["usage"]["completion_tokens"]
    assert 0 < tokens < 60  # it is in nobody's way any more
    assert (done["text"], done["structure_complete"]) == ("a" * 8 * tokens, False)
    (end,) = [event for record in store.read(job) for event in record.events if isinstance(event, RequestFailed)]
    assert (end.cause, end.detail) == (done["error"]["code"], done["error"]["message"])
    for index, mate in enumerate(mates):
        beside = result(store, mate)
        assert (beside["finish_reason"], len(beside["token_ids"])) == ("length", 60 + index)
        assert beside["text"] == run(store, of, max_new_tokens=60 + index)["text"]
    assert_audited(store)


@pytest.mark.contract("RES-4", "FSM-4")
def test_counted_bounds_are_reached_at_the_same_token_after_a_crash(memory: AnyStore) -> None:
    """The counted bounds are reached at the same token again and after a crash."""
    of = long_tokens()
    whole = run(memory, of, grammar=AMBIGUOUS, max_new_tokens=400)
    tokens = whole["usage"]["completion_tokens"]
    for turns in (1, tokens - 1, tokens):
        job = admit(memory, of, grammar=AMBIGUOUS, max_new_tokens=400)
        turn(engine(memory, of, job), turns)
        finish(engine(memory, of, job, worker="second"))
        done = result(memory, job)
        assert (done["text"], done["error"]) == (whole["text"], whole["error"])


def test_a_text_that_costs_too_much_to_bring_back_ends_its_job_too(
    memory: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a log was begun with other bounds than it goes on with."""
    of = long_tokens()
    job = admit(memory, of, grammar=AMBIGUOUS, max_new_tokens=400)
    turn(engine(memory, of, job), 3)
    monkeypatch.setattr(grammar, "_LIMITS", LLParserLimits(step_max_items=BETWEEN))
    finish(engine(memory, of, job, worker="second"))
    assert result(memory, job)["error"]["code"] == "grammar_too_costly"
    assert result(memory, job)["usage"]["completion_tokens"] == 3


def test_a_grammar_whose_first_mask_is_beyond_the_bounds_is_refused(memory: AnyStore) -> None:
    of = ScriptedModel(ScriptedConfig(script=Script(text="a"), pieces=(Piece(text="a" * 300),)))
    with pytest.raises(GrammarRefused, match="items"):
        admit(memory, of, grammar=AMBIGUOUS)
    assert memory.rows() == []


@pytest.mark.parametrize(
    ("language", "source", "begin", "end"),
    [("json_schema", '{"maxLength":9000,"type":"string"}', '"', '"'), ("regex", r"<[^\n]{1,9000}>", "<", ">")],
)
def test_a_long_text_of_bounded_length_costs_no_more_than_it_may(
    language: str, source: str, begin: str, end: str
) -> None:
    """Each of its characters, escapes and beginnings of characters is a state of its own for the lexer."""
    letters = Grammars([bytes([byte]) for byte in range(256)] + [b"quickbrownfox" * 4], lambda token: False)
    at = letters.parser(Grammar.model_validate({"kind": "grammar", "language": language, "source": source}), [])
    standings = [at.take(token) for token in (ord(begin), *[256] * 170, ord(end))]
    assert set(standings[:-1]) == {Standing.INCOMPLETE}
    assert standings[-1].whole


def test_no_error_of_the_library_tells_of_the_text() -> None:
    letters = Grammars([b"quickbrownfox", b"b", b"quickbrownfox" * 4], lambda token: False)
    at = letters.parser(Grammar(kind="grammar", language="lark", source='start: s "B"\ns: /[a-z]/ | s s'), [])
    with pytest.raises(GrammarTooCostly) as caught:
        deque(map(at.take, [0] * 40))
    assert "items" in str(caught.value)
    assert "fox" not in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- the bound that is timed ------------------------------------------------------------------------------------


class Clock:
    """Time that passes as it is told to: so many milliseconds at each step."""

    def __init__(self, *steps_ms: float) -> None:
        self.now = 0.0
        self.asked = 0
        self._steps = iter(steps_ms)
        self._inside = False

    def __call__(self) -> float:
        if self._inside:
            self.now += next(self._steps) / 1000
        self.asked += 1
        self._inside = not self._inside
        return self.now


def spend(wall_ms: list[float], cpu_ms: list[float]) -> Iterator[Spending]:
    spent = Spending(wall=Clock(*wall_ms), cpu=Clock(*cpu_ms))
    for _ in wall_ms:
        spent.end(spent.begin())
        yield spent


def test_short_steps_never_add_up_and_read_no_clock() -> None:
    """Short steps never add up to too much and the processor is not asked."""
    short = [MASK_MS_MAX * 0.9] * 5000
    *_, spent = spend(short, [])
    assert spent.steps == 5000
    assert spent.over_s == 0
    assert isinstance(spent.cpu, Clock)
    assert spent.cpu.asked == 0


def test_long_steps_add_up_by_what_they_take_too_much() -> None:
    long = [MASK_MS_MAX + 100.0] * 50
    seen: list[int] = []
    with pytest.raises(GrammarTooCostly, match="this machine"):
        seen.extend(spent.steps for spent in spend(long, long))
    assert len(seen) == 1 + MASKS_OVER_MS_MAX // 100  # the first long one only says that the processor is to be asked


def test_a_busy_machine_ends_no_job() -> None:
    *_, spent = spend([500.0] * 200, [MASK_MS_MAX * 0.5] * 200)
    assert spent.over_s == 0
    assert spent.wall_s == pytest.approx(100)


def test_a_parser_spends_by_these_clocks_and_its_fork_by_its_own(memory: AnyStore) -> None:
    of = model()
    at = grammars_of(of).parser(Grammar(kind="grammar", language="regex", source="[ab]*"), [EOS])
    at.spent.wall, at.spent.cpu = Clock(*[2000.0] * 9), Clock(*[2000.0] * 9)
    assert at.take(ord("a")) is Standing.COMPLETE
    other = at.fork()
    with pytest.raises(GrammarTooCostly, match="2 masks"):
        at.take(ord("b"))
    assert (at.spent.steps, other.spent.steps) == (2, 1)


def test_a_grammar_out_of_time_ends_its_job_typed(store: AnyStore) -> None:
    """A job that is out of time ends typed without the token that was one too many."""
    of = model("aaaaaaaaaa")
    job, mate = admit(store, of, regex="a*"), admit(store, of)
    made = engine(store, of, job, mate)
    held = made.jobs[job].parser
    assert held is not None
    held.spent.wall, held.spent.cpu = Clock(*[600.0] * 9), Clock(*[600.0] * 9)
    finish(made)
    done = result(store, job)
    assert (done["state"], done["error"]["code"], done["text"]) == ("FAILED", "grammar_too_costly", "aa")
    assert "3 masks took 1.8 s" in done["error"]["message"]
    assert result(store, mate)["text"] == "aaaaaaaaaa"
    assert_audited(store)
    assert store.claim("another", 1000, 1, [job]) == []
