"""events, tail: reading a job's log, from any place, while it runs and after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ...database import opened
from ...jobs.naming import find_job
from .. import terminal
from . import options

if TYPE_CHECKING:
    from ....fsm.ports import Bell, Store

Follow = Annotated[bool, typer.Option("--follow", help="Wait for more until the job has ended.")]
FollowTail = Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for more until the job has ended.")]


def events(
    job: options.JobName,
    start: options.From = 1,
    follow: Follow = False,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    from ...streams.event_text import event_json, event_line
    from ...streams.reading import events_of

    with opened(db) as store, listening(store, follow) as bell:
        for numbered in events_of(store, find_job(store, job), start, bell):
            if json:
                terminal.write_json(event_json(numbered))
            else:
                terminal.write(f"{event_line(numbered)}\n")


def tail(
    job: options.JobName,
    start: options.From = 1,
    follow: FollowTail = True,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    from ....fsm.reading.emission import plain
    from ...streams.reading import emissions_of

    with opened(db) as store, listening(store, follow) as bell:
        for emission in emissions_of(store, find_job(store, job), start, bell):
            if json:
                terminal.write_json(plain(emission))
            else:
                terminal.write(emission.text if emission.finish is None else f"{emission.text}\n")


@contextmanager
def listening(store: Store, follow: bool) -> Iterator[Bell | None]:
    """The bell to wait on, where the command follows the log."""
    if not follow:
        yield None
        return
    with closing(store.bell()) as bell:
        yield bell
