"""What people read of a job's end."""

from __future__ import annotations

import pytest

from decodelog.service.printer import ending


@pytest.mark.contract("OUT-5")
@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"finish_reason": "eos", "state": "CLOSED"}, "eos"),
        ({"finish_reason": None, "state": "PENDING", "structure_complete": False}, "PENDING"),
        ({"finish_reason": "eos", "state": "CLOSED", "structure_complete": True}, "eos"),
        (
            {"finish_reason": "length", "state": "CLOSED", "structure_complete": False},
            "length, the structure is not complete",
        ),
    ],
)
def test_a_structure_that_the_budget_cut_is_said_to_be_incomplete(result, words):
    assert ending(result) == words
