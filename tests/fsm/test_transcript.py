"""What callers read: a stream that any sequence number splits exactly, and a result that agrees with it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import EOS, Live, call, crank, decision, selection

from decodelog.fsm.machine.transition import CloseRequest, CommitOutput, FailRequest, IssueDecision, RebuildLanes
from decodelog.fsm.reading.emission import Emission, Token
from decodelog.fsm.reading.transcript import Transcript
from decodelog.fsm.request.finish import FinishReason

pytestmark = pytest.mark.contract("OUT-7")

# Half characters, ill-formed bytes, beginnings of the stop "ab\n", and nothing at all.
PIECES = [b"a", b"ab", b"b", b"\n", b"\xe2\x82", b"\xac", b"\xf0\x9f", b"\x98\x80", b"\xff", "né".encode(), b""]
scripts = st.lists(st.tuples(st.sampled_from(PIECES), st.booleans()), min_size=1, max_size=12)


def run(script: list[tuple[bytes, bool]], include_stop: bool = False) -> Live:
    """Run the script to the end of its last token; hidden tokens are special ones."""
    live = Live.admit(max_new=len(script), stop=["ab\n"], include_stop=include_stop, context=60)
    crank(live, lambda step: decision(50 + step, *script[step]))
    return live


@given(scripts, st.booleans())
def test_reading_from_any_sequence_number_gives_exactly_the_rest(
    script: list[tuple[bytes, bool]], include_stop: bool
) -> None:
    live = run(script, include_stop)
    whole, reader = live.transcript, Transcript()
    for start, event in enumerate(live.events, 1):
        rest = [emission for emission in whole.emissions if emission.sequence >= start]
        assert [*reader.emissions, *rest] == whole.emissions
        assert reader.text + "".join(emission.text for emission in rest) == whole.text
        reader.take(event)
    assert reader == whole
    assert all(one.sequence < other.sequence for one, other in pairwise(whole.emissions))


@given(scripts, st.booleans())
def test_offsets_say_where_each_delta_lies_in_the_whole_text(
    script: list[tuple[bytes, bool]], include_stop: bool
) -> None:
    live = run(script, include_stop)
    transcript = live.transcript
    data = b"".join(piece for piece, hidden in script[: live.state.frontier.output] if not hidden)
    for emission in transcript.emissions:
        end = emission.characters + len(emission.text)
        assert transcript.text[emission.characters : end] == emission.text
        assert data[: emission.bytes].decode("utf-8", "replace") == transcript.text[: emission.characters]
    assert transcript.emissions[0].characters == transcript.emissions[0].bytes == 0
    assert sum(len(emission.text) for emission in transcript.emissions) == len(transcript.text)


@given(scripts)
def test_tokens_come_in_order_and_the_last_item_says_how_it_ended(
    script: list[tuple[bytes, bool]],
) -> None:
    """Tokens come in order with their log probabilities and the last item says how it ended."""
    transcript = run(script).transcript
    *items, last = transcript.emissions
    tokens = [token for item in transcript.emissions for token in item.tokens]
    assert [token.token for token in tokens] == [50 + place for place in range(len(tokens))]
    assert [token.place for token in tokens] == list(range(len(tokens)))
    assert {(token.logprob_raw, token.logprob) for token in tokens} <= {(-0.5, -0.25)}
    assert all(item.text or item.tokens for item in items)
    assert {(item.finish, item.usage) for item in items} <= {(None, None)}
    assert last.finish in ("length", "stop_string")
    assert last.usage == transcript.result()["usage"]
    if last.finish == "length":
        assert last.usage is not None
        assert len(tokens) == len(transcript.token_ids) == last.usage["completion_tokens"]


@pytest.mark.contract("OUT-2", "OUT-7")
def test_held_text_is_given_at_an_end_that_is_not_its_stop() -> None:
    live = run([(b"xa", False), (b"b", False)])
    assert [(item.text, item.characters, item.bytes) for item in live.transcript.emissions] == [
        ("x", 0, 0),
        ("ab", 1, 1),
    ]
    live = Live.admit(stop=["ab\n"])
    live.turn(50, b"xa")
    live.do(CloseRequest(FinishReason.CANCELLED))
    assert live.transcript.text == "xa"
    assert live.transcript.emissions[-1].finish == "cancelled"


def test_the_state_that_a_caller_has_already_folded_is_taken_as_it_is() -> None:
    live = run([(b"xa", False), (b"b\n", False)])
    folding = Transcript()
    for event in live.events:
        folding.take(event)
    taking = live.transcript
    assert taking == folding
    assert taking.state is live.state is not folding.state


def test_a_transcript_that_begins_at_a_recorded_decision_shows_its_token() -> None:
    live = Live.admit()
    live.do(call(live.state), decision(60, b"x"))
    resumed = Transcript(state=live.state, sequence=len(live.events))
    live.do(CommitOutput())
    resumed.take(live.events[-1])
    assert resumed.emissions == [Emission(4, "x", 0, 0, 0, (Token(0, 60, b"x", False, 0, 0, -0.5, -0.25, ()),))]
    assert resumed.token_ids == [60]


# ---- what the lanes hold ---------------------------------------------------------------------------------------


@pytest.mark.contract("FSM-3")
def test_a_rebuild_processes_exactly_the_processed_tokens() -> None:
    """The tokens that a rebuild processes are exactly the processed ones."""
    assert Transcript().processed_tokens == []
    live = Live.admit(prompt=[1, 40, 41])
    assert live.transcript.processed_tokens == []
    live.do(call(live.state))
    assert live.transcript.processed_tokens == [1, 40, 41]
    live.turn(50)
    assert live.transcript.processed_tokens == [1, 40, 41]
    live.turn(51)
    assert live.transcript.processed_tokens == [1, 40, 41, 50]
    live.do(call(live.state), decision(52))
    assert live.transcript.processed_tokens == [1, 40, 41, 50, 51]
    assert len(live.transcript.processed_tokens) == live.state.frontier.processed


@pytest.mark.contract("RES-4")
def test_a_rebuild_says_how_many_tokens_the_lanes_have_from_one_call() -> None:
    live = Live.admit()
    live.turn(50)
    live.turn(51)
    assert live.transcript.rebuilt == 0
    for attempt, (form, tokens, rebuilt) in enumerate(
        [("tensors", 1, 3), ("reexecute", 4, 3), ("prefill", 4, 4), ("tensors", 2, 4), ("reexecute", 4, 4)], 2
    ):
        live.attempt(attempt)
        live.do(RebuildLanes(form, tokens, rebuilt))
        assert live.transcript.rebuilt == rebuilt
    live.turn(52)
    live.attempt(9)
    live.do(RebuildLanes("prefill", 5, 5))
    assert live.transcript.rebuilt == 5


def test_a_hand_over_happens_once_and_reading_on_begins_there() -> None:
    """What is handed over is handed over once and reading on begins there."""
    live, reader = Live.admit(stop=["ab\n"]), Transcript()
    seen: list[Emission] = []
    for step, piece in enumerate((b"x", b"a", b"c", b"\xe2\x82", b"\xac")):
        live.turn(50 + step, piece)
        for event, state in list(zip(live.events, live.states, strict=True))[reader.sequence :]:
            reader.take(event, state)
        handed = list(reader.hand_over())
        seen += handed
        assert reader.emissions == []
        assert reader.moments == []
        assert reader.text == ""
        assert reader.token_ids == live.transcript.token_ids
        assert live.transcript.emissions == seen
    assert "".join(emission.text for emission in seen) == "xac€"
    for emission in [*seen, seen[0]]:
        assert live.transcript.emissions_after(emission.sequence) == [
            other for other in seen if other.sequence > emission.sequence
        ]
    assert live.transcript.emissions_after(0) == seen


# ---- the result ------------------------------------------------------------------------------------------------


def test_the_result_agrees_with_the_stream_and_counts_committed_tokens() -> None:
    live = Live.admit(max_new=8, stop=["END"])
    live.attempt()
    live.turn(50, "né".encode())
    live.attempt(2)
    live.do(RebuildLanes("prefill", 3, 3))
    live.turn(51, b"xEND")
    transcript = live.transcript
    result = transcript.result()
    assert result == {
        "job": "job-1",
        "identity": live.state.spec.identity.hex(),
        "state": "CLOSED",
        "finish_reason": "stop_string",
        "matched_stop": "END",
        "text": "néx",
        "token_ids": [50, 51],
        "tokens": [
            {**told(0, 50, "né", "6ec3a9"), "byte_offset": 0, "character_offset": 0, "visible_bytes": 3},
            {**told(1, 51, "xEND", "78454e44"), "byte_offset": 3, "character_offset": 2, "visible_bytes": 1},
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "recomputed_tokens": 3,
            "attempts": 2,
        },
        "eos_ids": sorted(live.state.spec.eos_ids),
    }
    assert json.loads(json.dumps(result)) == result
    assert result["text"] == "".join(emission.text for emission in transcript.emissions)
    assert result["usage"] == transcript.emissions[-1].usage


def told(index: int, token: int, text: str, data: str) -> dict[str, Any]:
    facts = {"index": index, "token": token, "text": text, "bytes": data, "hidden": False}
    return facts | {"logprob_raw": -0.5, "logprob": -0.25, "alternatives": []}


@pytest.mark.contract("FSM-10", "OUT-7")
def test_the_result_of_a_failed_job_keeps_its_tokens_and_names_the_cause() -> None:
    live = Live.admit()
    live.turn(50, b"x")
    live.do(FailRequest("non_finite_scores", "a NaN"))
    result = live.transcript.result()
    assert (result["state"], result["finish_reason"], result["text"]) == ("FAILED", None, "x")
    assert result["error"] == {"code": "non_finite_scores", "message": "a NaN"}
    assert live.transcript.emissions[-1].finish == "failed"


def test_the_result_of_a_running_job_has_no_finish_reason() -> None:
    live = Live.admit()
    live.turn(50, b"x")
    result = live.transcript.result()
    assert (result["state"], result["finish_reason"], result["text"], "error" in result) == (
        "PENDING",
        None,
        "x",
        False,
    )
    assert Transcript().result() == {}


@pytest.mark.contract("OUT-3", "OUT-7")
def test_a_hidden_token_is_counted_and_shows_nothing() -> None:
    live = Live.admit()
    live.turn(50, b"injury.")
    live.turn(EOS, b"<|end|>", hidden=True)
    assert live.transcript.text == "injury."
    assert live.transcript.token_ids == [50, EOS]
    shown = Live.admit(skip_special=False)
    shown.turn(EOS, b"<|end|>", hidden=True)
    assert shown.transcript.text == "<|end|>"


def test_log_probabilities_are_those_of_the_receipt() -> None:
    live = Live.admit()
    live.do(
        call(live.state),
        IssueDecision(selection(50, logprob_raw=-3.25, logprob=-0.125), b"x"),
        CommitOutput(),
    )
    ((token,),) = [item.tokens for item in live.transcript.emissions]
    assert (token.logprob_raw, token.logprob) == (-3.25, -0.125)
