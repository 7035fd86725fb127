"""Shows a running job: its text on standard output, its progress on standard error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...fsm.reading.emission import Emission
from ..streams.event_text import named
from . import standard, terminal


class Printer:
    """Writes what jobs make visible, and after each one's last item a newline.

    silent   write no text
    jobs     how many they are
    cancel   called when the reader has left, for jobs that must not outlive it; None: they go on without a reader
    """

    def __init__(
        self, silent: bool, tell: terminal.Progress, jobs: int = 1, cancel: Callable[[], object] | None = None
    ) -> None:
        self._jobs = jobs
        self._silent = silent
        self._tell = tell
        self._cancel = cancel
        self._tokens = 0

    def __call__(self, emission: Emission) -> None:
        self._tokens += len(emission.tokens)
        self._tell(f"{self._tokens} tokens")
        text = emission.text if emission.finish is None else f"{emission.text}\n"
        if self._silent:
            # A reader of the result alone is written to at the end, when it is too late to cancel anything.
            if self._cancel is not None and terminal.reader_left():
                self._reader_left()
        elif text and terminal.is_closed():
            self._reader_left()
        elif text:
            try:
                terminal.write(text)
            except BrokenPipeError:
                self._reader_left()

    def _reader_left(self) -> None:
        cancel, self._cancel, self._silent = self._cancel, None, True
        standard.abandon_stdout()
        jobs = (
            ("the job goes on", "the job is cancelled") if self._jobs == 1 else ("the jobs go on", "they are cancelled")
        )
        what = jobs[0] if cancel is None else f"{jobs[1]}, as the request says"
        terminal.say(f"nobody reads standard output any more; {what}", style="yellow")
        if cancel is not None:
            cancel()


def final_line(result: dict[str, Any], seconds: float) -> str:
    """How a job ended, in one line."""
    usage = result["usage"]
    tokens = f"{usage['prompt_tokens']} prompt + {usage['completion_tokens']} new tokens"
    attempts = f"attempt {usage['attempts']}, {usage['recomputed_tokens']} tokens recomputed"
    return f"{ending(result)}: {tokens}; {attempts}; {seconds:.1f} s"


def ending(result: dict[str, Any]) -> str:
    """The finish reason and what stopped it, the fault, or the state of a running job; and if a structure is cut."""
    if "error" in result:
        return f"failed [{result['error']['code']}] {result['error']['message']}"
    cut = result["finish_reason"] is not None and result.get("structure_complete") is False
    stop = result.get("matched_stop")
    by = "" if stop is None or result["finish_reason"] == "eos" else f" {named(stop)}"  # all end tokens are alike
    return f"{result['finish_reason'] or result['state']}{by}{', the structure is not complete' if cut else ''}"
