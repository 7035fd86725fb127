"""What people read of a job's end."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import pytest

from decodelog.service.cli import terminal
from decodelog.service.cli.printer import ending


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
def test_a_structure_that_the_budget_cut_is_said_to_be_incomplete(result: dict[str, Any], words: str) -> None:
    assert ending(result) == words


@pytest.mark.contract("OUT-8")
@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_reader_that_has_left_is_noticed_without_a_write(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "pipe":
        theirs, ours = os.pipe()
    else:
        theirs, ours = (each.detach() for each in socket.socketpair())
    with os.fdopen(ours, "w", closefd=False) as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert not terminal.reader_left()
        os.close(theirs)
        assert terminal.reader_left()
    os.close(ours)
