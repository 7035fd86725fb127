"""What properties of jobs are tried with: requests, and decisions with pieces of text."""

from __future__ import annotations

from hypothesis import strategies as st
from jobs import EOS, drawn, selection

from decodelog.fsm.machine.transition import IssueDecision
from decodelog.fsm.request.finish import FinishReason

PIECES = ["a", "b", "ab", "ba", "aab", "€", "\N{GRINNING FACE}", "\n", ""]
pieces = st.one_of(st.sampled_from(PIECES).map(str.encode), st.sampled_from([b"\xe2\x82", b"\xac", b"\xff"]))
STOPS = [["ab"], ["bab", "ba"], ["aa\n", "€a", "b\N{GRINNING FACE}"], []]
ENDS = (EOS, 3, 4)
choices = st.builds(
    lambda token, shape, piece, hidden: IssueDecision(
        (selection(token), drawn(token), drawn(token, 0.0))[shape], piece, hidden
    ),
    st.integers(EOS, 30),
    st.integers(0, 2),
    pieces,
    st.sampled_from([False, False, True]),
)
requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 9), min_size=1, max_size=3),
        "max_new": st.integers(4, 12),
        "min_new": st.integers(0, 4),
        "context": st.sampled_from([60, 60, 8]),
        "retry_budget": st.sampled_from([5, 5, 1, 0]),
        "eos": st.sets(st.sampled_from(ENDS)).map(sorted),
        "stop": st.sampled_from(STOPS),
        "stop_ids": st.sets(st.sampled_from(ENDS)).map(sorted),
        "include_stop": st.booleans(),
        "alignment": st.sampled_from(["text", "token", "span"]),
        "final_cache": st.sampled_from(["pending", "repaired"]),
        "skip_special": st.booleans(),
        "order": st.permutations([reason.value for reason in FinishReason]),
    }
)
