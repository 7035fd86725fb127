"""Where a stop falls inside a token: the three alignments, in streams and results, alone, in a batch, after crashes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from cranks import model, run
from databases import AnyStore
from test_text_faults import FACE, FIRST, Case, check, declared, says, split_of, store

from decodelog.fsm.reading.emission import Emission
from decodelog.runtime.families.scripted.script import EOS

__all__ = ["store"]

pytestmark = pytest.mark.contract("OUT-4")

HOWS: list[dict[str, int]] = [{}, {"mates": 3}, {"crash_every": 2}, {"crash_every": 3}]
TOKENS = [b"say ", b"hello<", b"ST", b"OP>", b"never"]
WITHIN = [b"say ", b"hello<", b"ST", b"OP> and more", b"never"]

# What is asked for -> the text; how many tokens it has; and how much of each is text.
DECLARED: dict[tuple[str, bool], tuple[str, list[int]]] = {
    ("text", False): ("say hello", [4, 5]),
    ("text", True): ("say hello<STOP>", [4, 6, 2, 3]),
    ("token", False): ("say ", [4]),
    ("token", True): ("say hello<STOP> and more", [4, 6, 2, 12]),
    ("span", False): ("say hello", [4, 5, 0, 0]),
    ("span", True): ("say hello<STOP>", [4, 6, 2, 3]),
}


def tokens_of(items: list[Emission]) -> list[int]:
    return [token.token for item in items for token in item.tokens]


@pytest.mark.contract("OUT-2", "OUT-7")
@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize(("alignment", "include_stop"), DECLARED)
def test_text_ids_and_offsets_end_where_the_alignment_says(
    store: AnyStore, alignment: str, include_stop: bool, how: dict[str, int]
) -> None:
    text, visible = DECLARED[alignment, include_stop]
    draft = {"stop": ["<STOP>"], "alignment": alignment, "include_stop": include_stop}
    items = check(store, Case(WITHIN, draft, text, "stop_string"), **how)
    done = items[-1]
    listed = tokens_of(items)
    assert listed == [FIRST + place for place in range(len(visible))]
    assert done.usage is not None
    assert done.usage["completion_tokens"] == 4
    tokens = [token for item in items for token in item.tokens]
    assert [token.byte_offset for token in tokens] == [0, 4, 10, 12][: len(visible)]
    size = len(text)
    assert [max(0, min(token.end, size) - token.byte_offset) for token in tokens] == visible
    if alignment == "span":
        assert done.visible is not None
        assert done.trimmed is not None
        assert (done.visible.bytes, done.visible.characters) == ((0, size), (0, size))
        assert (done.trimmed.bytes, done.trimmed.characters) == ((size, 24), (size, 24))
    else:
        assert done.visible is done.trimmed is None


@pytest.mark.contract("OUT-2", "OUT-7")
@pytest.mark.parametrize("alignment", ["text", "token", "span"])
def test_no_token_is_shown_before_it_is_known_to_stay(store: AnyStore, alignment: str) -> None:
    """Each token comes with the text that makes it certain, and no text of the next one comes before that."""
    draft = {"stop": ["<STOP>"], "alignment": alignment}
    items = check(store, Case([*TOKENS[:3], b"ART", b"!"], draft, "say hello<START!", "eos"))
    shown = [(item.text, tokens_of([item])) for item in items]
    first, held, ends = FIRST, [FIRST + 1, FIRST + 2, FIRST + 3], (FIRST + 4, EOS)
    if alignment == "token":
        assert shown == [("say ", [first]), ("hello<START", held), ("!", [ends[0]]), ("", [ends[1]]), ("", [])]
    else:
        assert shown[:3] == [("say ", [first]), ("hello", held[:1]), ("<START", held[1:])]


@pytest.mark.contract("OUT-1", "OUT-2", "OUT-3", "OUT-7")
@pytest.mark.parametrize("seed", range(120))
def test_any_pieces_any_stops_any_alignment(store: AnyStore, seed: int) -> None:
    """Text and tokens are those that a search over the whole output gives."""
    rng = random.Random(1000 + seed)
    letters = ["a", "b", "ab", "ba", "é", FACE, "abab"]
    special = [b"<s>", b"<t>"]
    fragments = [*(letter.encode() for letter in letters), b"\xf0\x9f", b"\x98\x80", b"\xc3", b"\xa9", b"\xff", b""]
    stops = ["".join(rng.choices(letters, k=rng.randint(1, 4))) for _ in range(rng.randint(0, 3))]
    stops += rng.sample(["<s>", "s>"], rng.choice([0, 0, 1]))
    tokens = [
        rng.choice(special) if rng.random() < 0.1 else b"".join(rng.choices(fragments, k=rng.randint(1, 3)))
        for _ in range(rng.randint(1, 20))
    ]
    alignment, include = rng.choice(["text", "token", "span"]), rng.random() < 0.5
    draft = {"stop": stops, "include_stop": include, "max_new_tokens": rng.randint(1, 30), "alignment": alignment}
    case = Case(tokens, draft, "", "", special=special)
    _, reason, count = declared(case)
    text, places = kept(case, count, reason)
    items = check(store, case._replace(text=text, finish=reason), **HOWS[seed % len(HOWS)])
    assert [token.place for item in items for token in item.tokens] == places


def kept(case: Case, count: int, reason: str) -> tuple[str, list[int]]:
    """The text, and the places of the tokens that it has, by a search over all bytes of the committed tokens."""
    stops, include = [stop.encode() for stop in case.draft["stop"]], case.draft["include_stop"]
    pieces = [*case.tokens, b"<|eos|>"][:count]
    data, ranges = b"", []
    for piece in pieces:
        begin = len(data)
        data += b"" if piece in case.special or piece == b"<|eos|>" else piece
        ranges.append((begin, len(data)))
    cut = start = len(data)
    if reason == "stop_string" and pieces[-1] not in case.special:
        ends = [(data.find(stop) + len(stop), data.find(stop)) for stop in stops if stop in data]
        end, start = min(ends)
        cut = end if include else start
    if case.draft["alignment"] == "token":
        cut = len(data) if include else max((end for _, end in ranges if end <= start), default=0)
        known = [end <= cut for _, end in ranges]
    else:
        known = [begin < cut or begin == end == cut for begin, end in ranges]
    if case.draft["alignment"] == "span":
        known = [True] * len(ranges)
    places = list(range(known.index(False) if False in known else len(known)))
    return data[:cut].decode("utf-8", "replace"), places


@pytest.mark.contract("OUT-1")
@pytest.mark.parametrize("seed", range(8))
def test_the_tokens_of_token_alignment_decode_to_the_text(store: AnyStore, seed: int) -> None:
    case = split_of(Case([b"one ", FACE.encode(), b" two <ST", b"OP> three"], {"stop": ["<STOP>"]}, "", ""), seed)
    of = says(case.tokens)
    for include in (False, True):
        done = run(store, of, stop=["<STOP>"], alignment="token", include_stop=include, max_new_tokens=100)
        assert b"".join(of.text.pieces[token] for token in done["token_ids"]).decode("utf-8", "replace") == done["text"]
        assert ("<STOP>" in done["text"]) is include


# ---- structure that ends within a token ------------------------------------------------------------------------------


@pytest.mark.contract("OUT-6")
@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize(
    ("alignment", "text", "visible", "trimmed"),
    [("text", 'is {"a": 1}', 2, None), ("token", 'is {"a": 1}\n and', 7, None), ("span", 'is {"a": 1}', 2, (11, 16))],
)
def test_a_structure_that_ends_within_a_token(
    store: AnyStore, alignment: str, text: str, visible: int, trimmed: int | None, how: dict[str, int]
) -> None:
    """It is no stop: nothing of it is left out; where text ends at a token's end, the rest of its token is text."""
    tokens = [b"is ", b'{"a"', b": ", b"1}\n and", b" more"]
    case = Case(tokens, {"stop_on_json": True, "alignment": alignment}, text, "structured_complete")
    items = check(store, case, **how)
    assert len(tokens_of(items)) == 4
    last = [token for item in items for token in item.tokens][-1]
    assert (last.byte_offset, last.character_offset, min(last.end, len(text)) - last.byte_offset) == (9, 9, visible)
    found: Any = items[-1].trimmed
    assert (found.bytes if found else None) == trimmed


@pytest.mark.contract("OUT-6", "OUT-5")
@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize(
    ("alignment", "include_stop", "text", "count", "whole"),
    [
        ("text", False, 'is {"a": 1', 3, False),
        ("text", True, 'is {"a": 1}', 3, True),
        ("token", False, 'is {"a": ', 2, False),
        ("token", True, 'is {"a": 1}\n and', 3, True),
        ("span", False, 'is {"a": 1', 3, False),
        ("span", True, 'is {"a": 1}', 3, True),
    ],
)
def test_a_stop_that_completes_where_a_structure_ends(
    store: AnyStore, alignment: str, include_stop: bool, text: str, count: int, whole: bool, how: dict[str, int]
) -> None:
    """The structure is whole where its last byte is text; by tokens, the text ends with the stop's token."""
    draft = {"stop": ["}"], "stop_on_json": True, "alignment": alignment, "include_stop": include_stop}
    items = check(store, Case([b"is ", b'{"a": ', b"1}\n and", b" more"], draft, text, "stop_string"), **how)
    assert len(tokens_of(items)) == count
    done = run(store, says([b"is ", b'{"a": ', b"1}\n and"]), **draft)
    assert (done["text"], done["structure_complete"]) == (text, whole)


@pytest.mark.contract("OUT-5", "OUT-3")
def test_a_hidden_stop_cuts_nothing_off_a_structure(store: AnyStore) -> None:
    """The model's end token, hidden, is the stop string itself, and comes where the grammar's text is whole."""
    done = run(store, says([b"[1]"]), regex=r"\[1\]x?", stop=["<|eos|>"])
    assert (done["text"], done["finish_reason"], done["structure_complete"]) == ("[1]", "stop_string", True)


@pytest.mark.contract("OUT-7")
def test_the_output_s_range_begins_behind_an_echo(store: AnyStore) -> None:
    done = run(store, says([b"abc", b"de"]), prompt="no: ", echo_prompt=True, stop=["d"], alignment="span")
    assert done["text"] == "no: abc"
    assert done["visible"] == {"bytes": (4, 7), "characters": (4, 7)}
    assert done["trimmed"] == {"bytes": (7, 9), "characters": (7, 9)}


# ---- known faults of log-probabilities -------------------------------------------------------------------------------


@pytest.mark.contract("POL-6", "OUT-1", "OUT-7")
@pytest.mark.parametrize("crash_every", [0, 2])
def test_entries_of_a_cut_character_join_to_the_output_bytes(store: AnyStore, crash_every: int) -> None:
    """Curly quotes of three byte tokens each: no text of an entry is part of another's, no alternative is joined."""
    quoted = "“so”".encode()
    case = Case([bytes([byte]) for byte in quoted], {"logprobs": 2}, "“so”", "eos")
    items = check(store, case, crash_every=crash_every)
    tokens = [token for item in items for token in item.tokens]
    assert b"".join(token.piece for token in tokens if not token.hidden) == quoted
    assert [token.byte_offset for token in tokens] == [*range(len(quoted)), len(quoted)]
    assert [token.character_offset for token in tokens] == [0, 0, 0, 1, 2, 3, 3, 3, 4]
    assert all(len(token.alternatives) == 2 and token.alternatives[0].piece == token.piece for token in tokens)
    assert [len(item.tokens) for item in items if item.text] == [3, 1, 1, 3]  # a character comes with all its tokens


@pytest.mark.contract("POL-6", "OUT-2", "OUT-7")
@pytest.mark.parametrize("include_stop", [False, True])
@pytest.mark.parametrize("how", HOWS, ids=str)
def test_a_stops_tokens_have_entries_only_where_its_text_is_shown(
    store: AnyStore, include_stop: bool, how: dict[str, int]
) -> None:
    """The tokens of a stop have entries where and only where its text is shown."""
    draft = {"stop": ["I"], "logprobs": 1, "include_stop": include_stop, "alignment": "text"}
    text = "well, I" if include_stop else "well, "
    items = check(store, Case([b"well,", b" ", b"I", b" am"], draft, text, "stop_string"), **how)
    tokens = [token for item in items for token in item.tokens]
    assert b"".join(token.piece for token in tokens).decode() == text
    assert items[-1].usage is not None
    assert items[-1].usage["completion_tokens"] == 3  # the model made it, whether or not it is shown


@pytest.mark.contract("POL-6")
def test_every_listed_token_has_its_own_log_probabilities(store: AnyStore) -> None:
    """Every listed token has its own log probabilities before and after the policy."""
    done = run(store, model(seed=3, period=7), temperature=0.7, top_k=5, seed=1, logprobs=4, max_new_tokens=12)
    assert [token["token"] for token in done["tokens"]] == done["token_ids"]
    for token in done["tokens"]:
        assert token["logprob_raw"] < 0
        listed = {each["token"]: each for each in token["alternatives"]}
        assert sorted(listed, key=lambda one: -listed[one]["logprob_raw"]) == list(listed)
        if token["token"] in listed:
            chosen = listed[token["token"]]
            assert (chosen["logprob_raw"], chosen["logprob"]) == (token["logprob_raw"], token["logprob"])
