"""explain: why one token is what it is."""

from __future__ import annotations

from typing import Annotated

import typer

from ...database import opened
from ...jobs.naming import find_job
from .. import terminal
from ..edge import end_with, told_damage
from . import options

Step = Annotated[
    int | None,
    typer.Option("--step", min=0, metavar="N", help="Output token N, counted from 0 (the newest).", show_default=False),
]


def explain(job: options.JobName, step: Step = None, db: options.Database = None, json: options.Json = False) -> None:
    from ...inspect.explain import decision_of, explained
    from ...inspect.explain_text import told

    with opened(db) as store:
        decision = decision_of(store, find_job(store, job), step)
    facts = explained(decision)
    if json:
        terminal.write_json(facts | told_damage(decision.damage))
    else:
        lines = told(facts)
        width = max(len(about) for about, _ in lines)
        terminal.write("".join(f"{about:<{width}}  {words}\n" for about, words in lines))
    end_with(decision.damage, json)
