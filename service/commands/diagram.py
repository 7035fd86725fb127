"""diagram: the state machine, drawn from its table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...fsm.errors import UnwritableOutput
from .. import terminal
from . import options

Svg = Annotated[bool, typer.Option("--svg", help="A picture instead of text.")]
Out = Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write it to a file.", show_default=False)]


def diagram(svg: Svg = False, out: Out = None, json: options.Json = False) -> None:
    """Print the machine of a job: its states, what moves it, and where to."""
    from ...fsm.states import Status
    from ...fsm.table import INITIAL, ROWS
    from ..diagram import MEANINGS, as_svg, as_text

    if json:
        states = [{"state": each, "meaning": MEANINGS[each], "terminal": each.terminal} for each in Status]
        rows = [{"trigger": trigger, "source": source, "target": target} for trigger, source, target in ROWS]
        terminal.write_json({"initial": INITIAL, "states": states, "transitions": rows})
        return
    drawn = as_svg() if svg else as_text()
    if out is None:
        terminal.write(drawn)
        return
    try:
        Path(out).write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise UnwritableOutput(out, error.strerror or str(error)) from error
    terminal.say(f"written to {out}")
