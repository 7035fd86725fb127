"""diagram: the state machine, drawn from its table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ....fsm.errors import UnwritableOutput
from .. import terminal
from . import options

Svg = Annotated[bool, typer.Option("--svg", help="A picture instead of text.")]
Out = Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write it to a file.", show_default=False)]


def diagram(svg: Svg = False, out: Out = None, json: options.Json = False) -> None:
    from ...inspect.diagram import as_object, as_svg, as_text

    drawn = terminal.json_line(as_object()) if json else as_svg() if svg else as_text()
    if out is None:
        terminal.write(drawn)
        return
    try:
        Path(out).write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise UnwritableOutput(out, error.strerror or str(error)) from error
    terminal.say(f"written to {out}")
