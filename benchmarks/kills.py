"""Kill processes that run jobs of a real model, at random moments, and prove what is left.

    .venv/bin/python benchmarks/kills.py --kills 300 --seed 1        # --quick: a few

Each trial lays out one to three jobs of SmolLM2-135M in a new database (SQLite; a part on a PostgreSQL server of its
own), kills or stops what works on them, with and without kept caches, and has others go on until the jobs have ended:

    worker     SIGKILL as it claims, prefills, decodes or appends: at a failpoint, or at any time after one
    pause      SIGSTOP until another worker has taken its jobs over, then SIGCONT: it may append nothing more
    server     SIGQUIT of PostgreSQL or one of its processes while a worker uses it, and another start
    sealer, submitter, reader     SIGKILL while it seals, submits under a key, or follows a stream

After every kill all logs are audited and held to what was shown. At the end each job is closed; the model is run over
it again by the calls that its log records, and comes to the same bits; and where no lane was made again by calls of
another shape, its events are those of a run that nothing happened to.

One line of JSON is written for each trial that found a fault, and one with the counts at the end; exit code 1 where
there was a fault. A trial's draws follow from the seed and its number (`--first`); what the clock does is its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from random import Random
from statistics import median
from typing import Annotated, Any

import typer

KINDS = {"worker": 10, "pause": 3, "server": 4, "sealer": 3, "submitter": 2, "reader": 2}
"""How often a trial is of a kind: whom its kills are mainly for."""
QUICK = 12
SERVED = 0.2  # of the trials, beside those of the server's own kind
ALONE = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def main(
    kills: Annotated[int, typer.Option(help="go on until there were so many")] = 300,
    seed: Annotated[int, typer.Option(help="what is drawn follows from it")] = 1,
    first: Annotated[int, typer.Option(help="the number of the first trial")] = 1,
    only: Annotated[str | None, typer.Option(help="trials of this kind alone, named as above")] = None,
    quick: Annotated[bool, typer.Option(help=f"{QUICK} kills: whether it runs")] = False,
) -> None:
    """Kill, go on, prove; see the module's docstring."""
    if only not in (None, *KINDS):
        raise typer.BadParameter(f"{only} is none of {', '.join(KINDS)}", param_hint="--only")
    if any(os.environ.get(name) != value for name, value in ALONE.items()):  # before torch begins to have threads
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALONE})
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        told = campaign(Path(name), QUICK if quick else kills, seed, first, only)
    print(json.dumps(told), flush=True)
    raise typer.Exit(bool(told["faulty"]))


def campaign(folder: Path, wanted: int, seed: int, first: int, only: str | None) -> dict[str, Any]:
    """Trials until there were so many kills, and what they came to."""
    import torch
    from mortal import SCENES, Load
    from trials import Trial, undisturbed

    from decodelog.fsm.errors import Problem
    from decodelog.service.lab.torture.databases import OwnServer, PostgresGround, SqliteGround, has_server

    torch.set_num_threads(1)
    begin, counts, trials, jobs = time.monotonic(), Counter[str](), Counter[str](), 0
    faulty, parted, rebuilt = list[int](), 0, list[tuple[str, int]]()
    with ExitStack() as stack:
        load = Load()
        grounds: dict[str, Any] = {"sqlite": stack.enter_context(closing(SqliteGround(folder)))}
        if has_server():
            server = stack.enter_context(closing(OwnServer(folder)))
            grounds["postgres"] = stack.enter_context(closing(PostgresGround(server.url, server)))
        whole = cache(lambda name: undisturbed(load, grounds["sqlite"], folder, SCENES[name]))
        number = first
        asked = list[int]()
        signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
        while counts.total() < wanted and not asked:
            random = Random(f"{seed}/{number}")
            (kind,) = random.choices([*KINDS], [*KINDS.values()])
            kind = only or kind
            served = random.random() < SERVED or kind == "server"
            ground = grounds["postgres" if served and len(grounds) > 1 else "sqlite"]
            trial = Trial(load, ground, folder, random, lambda scene: whole(scene.name))
            try:
                trial.run(kind if ground.name == "postgres" or kind != "server" else "worker")
            except Problem as problem:
                trial.faults.append(f"the trial could not go on: {problem!r}")
            counts += trial.kills
            trials[f"{kind} {ground.name}"] += 1
            jobs += len(trial.scene.drafts)
            parted += trial.parted
            rebuilt += trial.rebuilds
            about = {"seed": seed, "trial": number, "kind": kind, "database": ground.name, "scene": trial.scene.name}
            if trial.faults:
                faulty.append(number)
                print(json.dumps({**about, "faults": trial.faults, "story": trial.story}), flush=True)
            note(f"{counts.total()}/{wanted} {about} {dict(trial.kills)} {trial.rebuilds} {len(trial.faults)} faults")
            number += 1
    again = {form: sorted(tokens for each, tokens in rebuilt if each == form) for form in {each for each, _ in rebuilt}}
    return {
        "kills": counts.total(),
        "by_kind": dict(sorted(counts.items())),
        "trials": dict(sorted(trials.items())),
        "jobs": jobs,
        "faulty": faulty,
        "parted_after_prefill": parted,
        "recomputed_where_kept": {
            form: {"tenures": len(each), "median": median(each), "max": each[-1]} for form, each in again.items()
        },
        "seconds": round(time.monotonic() - begin),
    }


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(main)
