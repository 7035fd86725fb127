"""Completion tests of an output that no grammar holds: a first JSON value, or a first tool call.

A detector reads the same bytes as a stop string's matcher, once. What stands before the structure is prose and is
skipped; a false start is prose too, and the search goes on at the byte that broke it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from .json_value import START, Scan, scan
from .standing import Standing
from .stop_matcher import StopMatcher, compile_stops

_OPENER: Final = re.compile(rb"[\[{]")
_BLANKS: Final = re.compile(rb"[ \t\n\r]*")
_FIELDS: Final = Struct(">II?")


class Detection(NamedTuple):
    """What one detector knows between two tokens; every field is a plain value.

    node     the node of the opening marker's matcher, while that is sought
    scan     the value at hand; None while its beginning is sought
    closing  bytes of the closing marker that were read after the value; None before its end
    """

    node: int = 0
    scan: Scan | None = None
    closing: int | None = None

    def packed(self) -> bytes:
        """All fields as bytes, one way only."""
        node, value, closing = self
        closing_plus_one = 0 if closing is None else closing + 1
        return _FIELDS.pack(node, closing_plus_one, value is not None) + (b"" if value is None else value.packed())


SEEKING: Final = Detection()
"""Nothing was found yet."""


@dataclass(frozen=True, slots=True)
class JsonDetector:
    """Looks for the first JSON object or array: from the first `{` or `[` that begins one to its closing byte."""

    def feed(self, before: Detection, piece: bytes, hidden: bool = False) -> tuple[Detection, int | None]:
        """Read one token's bytes; the detection after them, and how many of them belong to a whole structure, if any.

        hidden  the token is special and not shown: it is no part of the text
        """
        if hidden:
            return before, None
        value, at = before.scan, 0
        while True:
            if value is None:
                opener = _OPENER.search(piece, at)
                if opener is None:
                    return SEEKING, None
                value, at = START, opener.start()
            found = scan(value, piece[at:])
            at += found.end
            if found.standing is Standing.INCOMPLETE:
                return Detection(scan=found.scan), None
            if found.standing is Standing.COMPLETE:
                return Detection(scan=found.scan), at
            value = None


@dataclass(frozen=True, slots=True)
class ToolCallDetector:
    """Looks for a text between two markers that is one JSON object or array, with blanks around it at most.

    opening  matcher of the opening marker
    closing  the closing marker, which does not begin with a blank; empty: the value's last byte ends the call
    A marker may also be a special token that is not shown.
    """

    opening: StopMatcher
    closing: bytes

    @classmethod
    def of(cls, begin: str, end: str) -> ToolCallDetector:
        return cls(compile_stops((begin.encode(),)), end.encode())

    def feed(self, before: Detection, piece: bytes, hidden: bool = False) -> tuple[Detection, int | None]:
        """As `JsonDetector.feed`; where a hidden closing marker ends the call, no byte of it is shown: 0."""
        if hidden:
            return self._marked(before, piece)
        node, value, closing = before
        at = 0
        while at < len(piece):
            if value is None:
                node, match = self.opening.feed(node, piece[at:], at)
                if match is None:
                    return Detection(node), None
                node, value, closing, at = 0, START, None, match.end
            elif closing is None:
                value, closing, at = self._value(value, piece, at)
            else:
                closing, at = self._closing(closing, piece, at)
                if closing < 0:
                    # What was read of the closing marker may be the beginning of an opening one.
                    node, value, closing = self.opening.skip(0, self.closing[: -closing - 1]), None, None
            if value is not None and closing is not None and closing == len(self.closing):
                return Detection(0, value, closing), at
        return Detection(node, value, closing), None

    def _marked(self, before: Detection, piece: bytes) -> tuple[Detection, int | None]:
        if before.scan is None and self.opening.whole(piece) is not None:
            return Detection(scan=START), None
        if before.closing == 0 and piece == self.closing:
            return Detection(0, before.scan, len(piece)), 0
        return before, None

    def _value(self, value: Scan, piece: bytes, at: int) -> tuple[Scan | None, int | None, int]:
        if value == START:
            at = _blanks_end(piece, at)
            if at < len(piece) and not _OPENER.match(piece, at):
                return None, None, at
        found = scan(value, piece[at:])
        at += found.end
        if found.standing is Standing.INVALID:
            return None, None, at
        return found.scan, 0 if found.standing is Standing.COMPLETE else None, at

    def _closing(self, read: int, piece: bytes, at: int) -> tuple[int, int]:
        """Bytes of the closing marker that were read by now; -1 - them where the next byte is not the marker's."""
        if read == 0:
            at = _blanks_end(piece, at)
        while at < len(piece) and read < len(self.closing):
            if piece[at] != self.closing[read]:
                return -1 - read, at
            read, at = read + 1, at + 1
        return read, at


Detector = JsonDetector | ToolCallDetector


def _blanks_end(piece: bytes, at: int) -> int:
    blanks = _BLANKS.match(piece, at)
    return at if blanks is None else blanks.end()
