"""batch: a file of requests in, a file of answers out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import terminal
from ..edge import FAILED, on_signals
from . import options

if TYPE_CHECKING:
    from ...batch.run import Progress

Source = Annotated[
    Path, typer.Argument(metavar="IN.jsonl", help="Requests, in the form of OpenAI's batch files.", show_default=False)
]
Out = Annotated[
    Path, typer.Argument(metavar="OUT.jsonl", help="Answers, one line for each request, in order.", show_default=False)
]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME|DIR", help="For every line, whatever its body names.", show_default=False),
]


def batch(
    source: Source,
    out: Out,
    model: Model = None,
    lanes: options.Lanes = options.LANES,
    cache_dir: options.CacheDir = None,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    from ...api.log import open as open_log
    from ...batch.run import Batch

    started = time.monotonic()
    with (
        on_signals(),
        open_log(db, lanes=lanes, say=terminal.warn) as log,
        terminal.progress("reading the batch") as tell,
    ):
        run = Batch(log, source, out, model, cache_dir)
        progress, begun = run.progress, None
        for _ in run.run():
            begun = progress.answered if begun is None else begun
            tell(told(progress, begun, time.monotonic() - started))
    if json:
        terminal.write_json({"lines": progress.lines, "refused": progress.refused, "tokens": progress.tokens})
    else:
        terminal.say(told(progress, begun or 0, time.monotonic() - started), style="dim")
    if progress.refused:
        raise typer.Exit(FAILED)


def told(progress: Progress, begun: int, elapsed_s: float) -> str:
    """How far a batch is, how fast, and how long the rest takes at this pace."""
    done, left = progress.answered - begun, progress.lines - progress.answered
    text = f"{progress.answered} of {progress.lines} lines; {progress.tokens / max(elapsed_s, 1e-9):.0f} tokens/s"
    if progress.refused:
        text += f"; {progress.refused} refused"
    if left and done:
        text += f"; {_duration(left * elapsed_s / done)} left"
    return text


def _duration(seconds: float) -> str:
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole} s" if minutes else f"{whole} s"
