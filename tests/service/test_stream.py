"""A reader gets all text once and in order, whether the worker, the log, or both deliver it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commandline import decodelog
from hypothesis import given
from hypothesis import strategies as st

from decodelog.fsm.reading.emission import Emission, Token
from decodelog.service.database import opened
from decodelog.service.streams import stream
from decodelog.service.streams.reading import emissions_of
from decodelog.store.memory.log import MemoryStore

TEXTS = ["R", "iv", "", "er", "s", "", " carry", ""]
COUNTS = [1, 2, 1, 0, 3, 1, 1, 0]


def emissions() -> list[Emission]:
    """Items that show text, or tokens without any, or both."""
    made, characters, place = [], 0, 0
    for index, (text, count) in enumerate(zip(TEXTS, COUNTS, strict=True)):
        tokens = tuple(Token(place + n, 0, b"", True, characters, characters, -1.0, -1.0, ()) for n in range(count))
        made.append(Emission(3 * index + 5, text, characters, characters, place, tokens))
        characters, place = characters + len(text), place + count
    return made


WHOLE = emissions()


class FakeFollower:
    """A log that holds the first `durable` emissions."""

    def __init__(self, log: object, job: str) -> None:
        self.durable = self.seen = 0

    def poll(self) -> list[Emission]:
        fresh = WHOLE[self.seen : self.durable]
        self.seen = self.durable
        return fresh


# Each step makes some more emissions durable, by this worker or by another, who tells us nothing, or has us look.
STEPS = st.lists(st.tuples(st.sampled_from(["ours", "theirs", "poll"]), st.integers(1, 3)), max_size=12)


@pytest.mark.contract("OUT-7")
@given(steps=STEPS)
def test_whoever_appends_the_text_arrives_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    arrived: list[Emission] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "Follower", FakeFollower)
        reader = stream.Stream(MemoryStore(), "job", arrived.append)
    follower: Any = reader._follower
    durable = 0
    for who, count in [*steps, ("poll", 1)]:
        if who == "poll":
            reader.catch_up()
            continue
        fresh = WHOLE[durable : durable + count]
        durable += len(fresh)
        follower.durable = durable
        if who == "ours":
            reader.take(fresh)
    assert arrived == WHOLE[:durable]


@pytest.mark.contract("OUT-7", "POL-6")
def test_an_empty_item_of_an_earlier_tenure_is_not_left_out() -> None:
    """An item of an earlier tenure that has neither text nor tokens is not left out."""
    prompt = Token(0, 65, b"A", False, 0, 0, None, None, ())
    whole = [Emission(4, "", 0, 0, 0, (), (prompt,)), Emission(11, "x", 0, 0, 0), Emission(14, "y", 1, 1, 0)]

    class Log(FakeFollower):
        def poll(self) -> list[Emission]:
            fresh = whole[self.seen : self.durable]
            self.seen = self.durable
            return fresh

    arrived: list[Emission] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "Follower", Log)
        reader = stream.Stream(MemoryStore(), "job", arrived.append)
    follower: Any = reader._follower
    follower.durable = 2
    reader.take(whole[1:2])  # what this process has published; the first was another's
    follower.durable = 3
    reader.take(whole[2:])
    assert arrived == whole


@pytest.mark.contract("OUT-7")
def test_a_stream_over_a_real_log_shows_what_the_log_holds(sqlite_url: str, short_model: Path) -> None:
    job = decodelog("run", "--model", short_model, "--prompt", "Go", "--json", db=sqlite_url).json["job"]
    with opened(sqlite_url) as log:
        whole = list(emissions_of(log, job))
        arrived: list[Emission] = []
        reader = stream.Stream(log, job, arrived.append)
        reader.take(whole[:3])
        reader.take(whole[2:5])
        reader.take(whole[20:22])  # what lies between is in the log
        assert arrived == whole
        reader.catch_up()
        assert arrived == whole
