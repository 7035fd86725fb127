"""Known faults of text, stops and limits, on the real engine: alone, in a batch, and with workers that die."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from cranks import admit, assert_audited, engine, finish, result, state_of, transcript, turn
from databases import AnyStore, wall_clock_ms

from decodelog.fsm.errors import NotAdmissible, Problem, SchemaViolation
from decodelog.fsm.ports import Store
from decodelog.fsm.reading.emission import Emission
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.families.scripted.script import EOS, Piece, Script, ScriptedConfig
from decodelog.store.memory.log import MemoryStore

FIRST = 258  # the id of a script's first piece
PLAIN = "Hello, world."


@pytest.fixture
def store() -> Iterator[Store]:
    opened = MemoryStore(clock=wall_clock_ms)
    yield opened
    opened.close()


class Case(NamedTuple):
    """Tokens by their bytes; what is asked for; and what must be seen. `special` names those that are hidden."""

    tokens: Sequence[bytes]
    draft: dict[str, Any]
    text: str
    finish: str
    deltas: Sequence[str] | None = None
    special: Sequence[bytes] = ()
    ends: bool = True


def says(tokens: Sequence[bytes], special: Sequence[bytes] = (), ends: bool = True) -> ScriptedModel:
    """A model that writes these tokens, then EOS, or the same again."""
    pieces = tuple(Piece(hex=token.hex(), special=token in special) for token in tokens)
    script = Script(tokens=tuple(range(FIRST, FIRST + len(tokens))), then="eos" if ends else "repeat")
    return ScriptedModel(ScriptedConfig(script=script, pieces=pieces))


def split_of(case: Case, seed: int) -> Case:
    """The same bytes in other tokens: single bytes, two halves of anything, or one. Special tokens stay whole."""
    rng = random.Random(seed)
    tokens: list[bytes] = []
    run: list[bytes] = []
    for token in [*case.tokens, None]:
        if token is not None and token not in case.special:
            run.append(token)
            continue
        data = b"".join(run)
        size = (1, max(1, len(data)), rng.randint(1, 4))[seed % 3]
        tokens += [data[at : at + size] for at in range(0, len(data), size)]
        run = []
        if token is not None:
            tokens.append(token)
    return case._replace(tokens=tokens, deltas=None)


def streamed(
    store: AnyStore, case: Case, mates: int = 0, crash_every: int = 0
) -> tuple[dict[str, Any], list[Emission]]:
    """Run a case to its end; its result, and what was published of it by all engines together.

    crash_every  turns after which the worker dies, at least 2: a turn that brings lost lanes back makes no token
    """
    of = says(case.tokens, case.special, case.ends)
    published: dict[str, list[Emission]] = defaultdict(list)

    def sink(job: str, emissions: Sequence[Emission], _: object) -> None:
        published[job] += emissions

    job = admit(store, of, **case.draft)
    others = [admit(store, of, max_new_tokens=3 + index, stop=[]) for index in range(mates)]
    made = engine(store, of, job, *others, sink=sink)
    while crash_every and not store.row(job).status.terminal:
        turn(made, crash_every)
        made.close()
        if not store.row(job).status.terminal:
            made = engine(store, of, job, sink=sink, worker=f"after {store.row(job).head.sequence}")
    finish(made)
    return result(store, job), published[job]


def check(store: AnyStore, case: Case, **how: int) -> list[Emission]:
    done, published = streamed(store, case, **how)
    assert (done["text"], done["finish_reason"]) == (case.text, case.finish)
    assert "".join(item.text for item in published) == case.text
    whole = transcript(store, done["job"])
    assert published == whole.emissions
    assert done["token_ids"] == [token.token for item in published for token in item.tokens]
    assert done["token_ids"] == whole.token_ids[: len(done["token_ids"])]
    assert done["usage"]["completion_tokens"] == len(whole.token_ids)
    assert published[-1].usage == done["usage"]
    if case.deltas is not None:
        assert [item.text for item in published if item.text] == [delta for delta in case.deltas if delta]
    assert_audited(store)
    return published


FACE = "\N{GRINNING FACE}"
WRONG = "\N{REPLACEMENT CHARACTER}"
MARS = [b"is", b" Mars", b"?\n", b"No"]
ALPHABET = [f" {letter}".encode() for letter in "LMNOPQRS"]
INJURY = [b"an", b" inj", b"ury.", b"</s>"]

CASES = {
    "half a character is not shown": Case(
        [FACE.encode()[:1], FACE.encode()[1:3], FACE.encode()[3:]], {}, FACE, "eos", ["", "", FACE, "", ""]
    ),
    "fragments without text, over and over": Case(
        [bytes([byte]) for byte in (FACE + "€").encode()] * 12, {"max_new_tokens": 100}, (FACE + "€") * 12, "eos"
    ),
    "a lone continuation byte is replaced once": Case(
        [b"a", b"\x9f", b" ", "€".encode()], {}, f"a{WRONG} €", "eos", ["a", WRONG, " ", "€", "", ""]
    ),
    "a lead byte that is never completed is replaced once": Case(
        [b"\xf0\x9f", b" ", "€".encode()], {}, f"{WRONG} €", "eos", ["", f"{WRONG} ", "€", "", ""]
    ),
    "an unfinished character at the limit is replaced at the end": Case(
        [b"a", b"\xe2\x82", b"x"], {"max_new_tokens": 2}, f"a{WRONG}", "length", ["a", "", WRONG]
    ),
    "characters in byte tokens, back to back": Case(
        [*(bytes([b]) for b in "你".encode()), "好".encode(), *(bytes([b]) for b in "世界".encode())],
        {},
        "你好世界",
        "eos",
        ["", "", "你", "好", "", "", "世", "", "", "界", "", ""],
    ),
    "spaces at the beginnings of tokens": Case([b" LL", b"Ms", b".", b" It", b" is"], {}, " LLMs. It is", "eos"),
    "a token without text": Case([b"xa", b"", b"b", b"c"], {"stop": ["ab"]}, "x", "stop_string", ["x", "", "", ""]),
    "a stop that shares nothing with the text withholds nothing": Case(
        [b"I ", b"am ", b"fine"], {"stop": ["@@@@@@@@@@"]}, "I am fine", "eos", ["I ", "am ", "fine", "", ""]
    ),
    "a marker is not split where no stop has begun": Case(
        [b"thin", b"</think>", b"so"], {"stop": ["xyz"]}, "thin</think>so", "eos", ["thin", "</think>", "so", "", ""]
    ),
    "a hidden stop token removes no letter": Case(
        INJURY, {"stop_token_ids": [FIRST + 3]}, "an injury.", "stop_token", special=[b"</s>"]
    ),
    "a stop string that equals a hidden token": Case(
        INJURY, {"stop": ["</s>"]}, "an injury.", "stop_string", special=[b"</s>"]
    ),
    "a stop string that equals a hidden token, included": Case(
        INJURY, {"stop": ["</s>"], "include_stop": True}, "an injury.", "stop_string", special=[b"</s>"]
    ),
    "a stop string that equals a shown special token": Case(
        INJURY, {"stop": ["</s>"], "skip_special_tokens": False}, "an injury.", "stop_string", special=[b"</s>"]
    ),
    "what is held is shown where a hidden token is the stop": Case(
        [b"a b", b"<end>"], {"stop": ["bcd", "<end>"]}, "a b", "stop_string", ["a ", "b", ""], [b"<end>"]
    ),
    "a stop of several tokens that begins inside one": Case(
        ALPHABET, {"stop": ["O P Q"]}, " L M N ", "stop_string", [" L", " M", " N", " ", "", "", ""]
    ),
    "text behind the stop in its token": Case([b"one ", b"STOP! two"], {"stop": ["STOP"]}, "one ", "stop_string"),
    "text behind an included stop in its token": Case(
        [b"one ", b"STOP! two"], {"stop": ["STOP"], "include_stop": True}, "one STOP", "stop_string"
    ),
    "a held part is shown at the model's end": Case(
        [b" UNO", b" DUE", b" TRE"],
        {"stop": ["TRE\nAAAAAAAA"]},
        " UNO DUE TRE",
        "eos",
        [" UNO", " DUE", " ", "", "TRE"],
    ),
    "a held part is shown at a stop token": Case(
        [b" UNO", b" TRE", b"."], {"stop": ["TRE!"], "stop_token_ids": [FIRST + 2]}, " UNO TRE", "stop_token"
    )._replace(deltas=[" UNO", " ", "TRE"]),
    "a held part is shown at the limit": Case(
        [b" UNO", b" TRE", b"."], {"stop": ["TRE."], "max_new_tokens": 2}, " UNO TRE", "length", [" UNO", " ", "TRE"]
    ),
    "wanted text before the stop in its token": Case(
        MARS, {"stop": ["\n"]}, "is Mars?", "stop_string", ["is", " Mars", "?", ""]
    ),
    "a held part that fails to complete is shown once": Case(
        [b" Alice", b"!"], {"stop": ["\n", "Alice:"]}, " Alice!", "eos", [" ", "Alice!", "", ""]
    ),
    "stops that begin alike, the short first": Case([b"x", b"ab", b"c"], {"stop": ["ab", "abc"]}, "x", "stop_string"),
    "stops that begin alike, the long first": Case([b"x", b"ab", b"c"], {"stop": ["abc", "ab"]}, "x", "stop_string"),
    "several stops in one token: the one that completes first": Case(
        [b"the end, really END"], {"stop": ["END", "end", "rea"]}, "the ", "stop_string"
    ),
    "several stops at one place: the one that begins first": Case(
        [b"xabc."], {"stop": ["c", "bc", "abc"], "include_stop": True}, "xabc", "stop_string"
    ),
    "a stop's text before the least number of tokens, and again after it": Case(
        [b"why: ", b"END", b" is a word. ", b"answer ", b"END", b" more"],
        {"stop": ["END"], "min_new_tokens": 3},
        "why: END is a word. answer ",
        "stop_string",
    ),
    "a stop that completes on the last allowed token": Case(
        [b"one", b"ST", b"OP"], {"stop": ["STOP"], "max_new_tokens": 3}, "one", "stop_string"
    ),
    "a stop and the model's end": Case([b"ab"], {"stop": ["abc"], "max_new_tokens": 2}, "ab", "eos"),
    "one token allowed": Case([b"one", b"two"], {"max_new_tokens": 1}, "one", "length", ["one", ""]),
    "as many tokens as the context holds, and an end after three": Case(
        [b"a", b"b", b"c"], {"max_new_tokens": "until_context"}, "abc", "eos"
    ),
}
# Where these are split otherwise, it is another case: they speak of a token by its place or its number.
BY_TOKEN = {
    "an unfinished character at the limit is replaced at the end",
    "a held part is shown at a stop token",
    "a held part is shown at the limit",
    "a hidden stop token removes no letter",
    "a stop's text before the least number of tokens, and again after it",
    "a stop that completes on the last allowed token",
    "a stop and the model's end",
    "one token allowed",
}


@pytest.mark.contract("OUT-1", "OUT-2", "OUT-3", "OUT-4", "OUT-7", "FSM-7")
@pytest.mark.parametrize("how", [{}, {"mates": 3}, {"crash_every": 2}, {"crash_every": 3}], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_stream_and_result_are_the_declared_text(store: AnyStore, name: str, how: dict[str, int]) -> None:
    check(store, CASES[name], **how)


@pytest.mark.contract("OUT-1", "OUT-2", "OUT-3")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", [name for name in CASES if name not in BY_TOKEN])
def test_the_text_is_the_same_however_it_is_cut_into_tokens(store: AnyStore, name: str, seed: int) -> None:
    case = split_of(CASES[name], seed)
    # A split may need more tokens than the case allowed for, and none of these is about a limit.
    longer = case._replace(draft={"max_new_tokens": 200, **case.draft})
    check(store, longer, crash_every=seed % 2 * 3)


# ---- the rule itself, over random pieces and stops -------------------------------------------------------------------


def declared(case: Case) -> tuple[str, str, int]:
    """Text, finish and committed tokens by the rules alone: the whole stream is searched again after every token."""
    stops = [stop.encode() for stop in case.draft["stop"]]
    include, most = case.draft["include_stop"], case.draft["max_new_tokens"]
    shown = b""
    for count, token in enumerate(case.tokens, 1):
        if token in case.special:
            if token in stops:
                return shown.decode("utf-8", "replace"), "stop_string", count
        else:
            shown += token
            found = [(shown.find(stop) + len(stop), shown.find(stop)) for stop in stops if stop in shown]
            if found:
                end, start = min(found)
                return shown[: end if include else start].decode("utf-8", "replace"), "stop_string", count
        if count == most:
            return shown.decode("utf-8", "replace"), "length", count
    return shown.decode("utf-8", "replace"), "eos", len(case.tokens) + 1


@pytest.mark.contract("OUT-1", "OUT-2", "OUT-3", "OUT-4", "OUT-7")
@pytest.mark.parametrize("seed", range(150))
def test_any_pieces_and_any_stops_show_what_the_rules_say(store: AnyStore, seed: int) -> None:
    rng = random.Random(seed)
    letters = ["a", "b", "ab", "ba", "é", FACE, "abab", " "]
    special = [b"<s>", b"<t>"]
    fragments = [*(letter.encode() for letter in letters), b"\xf0\x9f", b"\x98\x80", b"\xc3", b"\xa9", b"\xff", b""]
    stops = ["".join(rng.choices(letters, k=rng.randint(1, 4))) for _ in range(rng.randint(0, 4))]
    stops += rng.sample(["<s>", "s>", "<t>"], rng.choice([0, 0, 1]))
    tokens = [
        rng.choice(special) if rng.random() < 0.1 else b"".join(rng.choices(fragments, k=rng.randint(1, 2)))
        for _ in range(rng.randint(1, 25))
    ]
    draft = {"stop": stops, "include_stop": rng.random() < 0.5, "max_new_tokens": rng.randint(1, 30)}
    case = Case(tokens, draft, "", "", special=special)
    text, reason, count = declared(case)
    how = [{}, {"mates": 2}, {"crash_every": rng.randint(2, 4)}][seed % 3]
    items = check(store, case._replace(text=text, finish=reason), **how)
    assert items[-1].usage is not None
    assert items[-1].usage["completion_tokens"] == count


# ---- limits, usage and refusals --------------------------------------------------------------------------------------


@pytest.mark.contract("OUT-7", "FSM-7")
@pytest.mark.parametrize("most", [1, 2, 5, 9, 100])
def test_usage_counts_committed_tokens_and_not_pieces_of_text(store: AnyStore, most: int) -> None:
    """Characters of several tokens, tokens of several characters or of none, and an end that is one too."""
    tokens = [*(bytes([byte]) for byte in FACE.encode()), b"two words", b"", "é".encode()]
    done, published = streamed(store, Case(tokens, {"max_new_tokens": most}, "", ""), mates=2)
    committed = min(most, len(tokens) + 1)
    assert done["usage"]["completion_tokens"] == committed == sum(len(item.tokens) for item in published)
    assert done["usage"]["total_tokens"] == done["usage"]["prompt_tokens"] + committed
    assert published[-1].finish == done["finish_reason"] == ("eos" if most > len(tokens) else "length")


@pytest.mark.contract("FSM-7")
def test_an_unlimited_budget_is_a_word_and_no_number(store: AnyStore) -> None:
    with pytest.raises(SchemaViolation, match="until_context"):
        admit(store, says([b"a"]), max_new_tokens=-1)


@pytest.mark.contract("ENV-6")
@pytest.mark.parametrize("empty", [{"prompt": ""}, {"token_ids": []}, {"messages": []}])
def test_an_empty_prompt_is_refused_and_the_running_job_untouched(store: AnyStore, empty: dict[str, Any]) -> None:
    """An empty prompt is refused at the door and the running job is untouched."""
    of = says([b"Hel", b"lo, ", b"world."])
    running = admit(store, of)
    made = engine(store, of, running)
    turn(made)
    with pytest.raises((NotAdmissible, SchemaViolation)) as refused:
        admit(store, of, **empty)
    assert isinstance(refused.value, Problem)
    finish(made)
    assert result(store, running)["text"] == PLAIN
    assert result(store, running)["usage"]["recomputed_tokens"] == 0
    assert len(store.rows()) == 1


@pytest.mark.contract("FSM-7")
def test_every_reason_that_held_is_recorded_with_the_one_that_counts(store: AnyStore) -> None:
    """The stop completes on the last allowed token, which is a stop token too."""
    draft = {"stop": ["b"], "max_new_tokens": 2, "stop_token_ids": [FIRST + 1, EOS]}
    done, _ = streamed(store, Case([b"a", b"b"], draft, "", ""))
    assert done["finish_reason"] == "stop_string"
    state = state_of(store, done["job"])
    assert state is not None
    assert [reason.value for reason in state.due] == ["stop_string", "stop_token", "length"]
