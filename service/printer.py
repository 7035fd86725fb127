"""The reader at the other end of a running job: its text on standard output, how far it is on standard error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..fsm.emission import Emission
from . import terminal


class Printer:
    """Writes what a job makes visible, and after its last item a newline. A reader that leaves is no reason to stop.

    silent   write no text
    cancel   what to do for a job that is not to outlive its reader; None: it goes on
    """

    def __init__(self, silent: bool, tell: terminal.Progress, cancel: Callable[[], object] | None = None) -> None:
        self._silent = silent
        self._tell = tell
        self._cancel = cancel
        self._tokens = 0

    def __call__(self, emission: Emission) -> None:
        self._tokens += len(emission.tokens)
        self._tell(f"{self._tokens} tokens")
        text = emission.text if emission.finish is None else f"{emission.text}\n"
        if self._silent:
            # Who asked for the result alone is written to at the end, when it is too late to cancel anything.
            if self._cancel is not None and terminal.reader_left():
                self._reader_left()
        elif text:
            try:
                terminal.write(text)
            except BrokenPipeError:
                self._reader_left()

    def _reader_left(self) -> None:
        cancel, self._cancel, self._silent = self._cancel, None, True
        terminal.abandon_stdout()
        what = "goes on" if cancel is None else "is cancelled, as its request says"
        terminal.say(f"nobody reads standard output any more; the job {what}", style="yellow")
        if cancel is not None:
            cancel()


def final_line(result: dict[str, Any], seconds: float) -> str:
    """How a job ended, in one line."""
    usage = result["usage"]
    tokens = f"{usage['prompt_tokens']} prompt + {usage['completion_tokens']} new tokens"
    attempts = f"attempt {usage['attempts']}, {usage['recomputed_tokens']} tokens recomputed"
    return f"{ending(result)}: {tokens}; {attempts}; {seconds:.1f} s"


def ending(result: dict[str, Any]) -> str:
    """The finish reason, or the fault, or the state of a job that goes on; and whether a structure was cut short."""
    if "error" in result:
        return f"failed [{result['error']['code']}] {result['error']['message']}"
    cut = result["finish_reason"] is not None and result.get("structure_complete") is False
    return f"{result['finish_reason'] or result['state']}{', the structure is not complete' if cut else ''}"
