"""Where the output stands in the structure that was asked for: by a grammar's parser, or by detectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from .detector import SEEKING, Detection, Detector
from .standing import Standing


class Structure(NamedTuple):
    """Part of the state of a job that asks for structure.

    standing    INCOMPLETE until something says otherwise. Of a grammar it is what the parser said after the last
                token, which the token's receipt binds; of detectors TERMINATED once one has found its structure
    detections  what each detector knows, in the envelope's order
    """

    standing: Standing
    detections: tuple[Detection, ...] = ()

    def digest_bytes(self) -> bytes:
        """All fields as bytes, one way only."""
        packed = [detection.packed() for detection in self.detections]
        return bytes((self.standing, len(packed))) + b"".join(packed)


BEGUN: Final = Structure(Standing.INCOMPLETE)
"""A grammar's structure before the first token."""


def sought(detectors: Sequence[Detector]) -> Structure:
    """The structure before the first token."""
    return Structure(Standing.INCOMPLETE, (SEEKING,) * len(detectors))


def watch(
    before: Structure, detectors: Sequence[Detector], piece: bytes, hidden: bool, armed: bool
) -> tuple[Structure, int]:
    """Let the detectors read one token's bytes; the structure after them, and how many of the bytes are text.

    armed   whether a structure that completes in this token counts; where it does not, the next one is sought
    The structure that completes first counts.
    """
    detections, ends = [], []
    for detector, detection in zip(detectors, before.detections, strict=True):
        after, end = detector.feed(detection, piece, hidden)
        while end is not None and not armed:
            piece_left = piece[end:] if not hidden else b""
            after, more = detector.feed(SEEKING, piece_left)
            end = None if more is None else end + more
        detections.append(after)
        ends += [] if end is None else [end]
    standing = Standing.TERMINATED if ends else Standing.INCOMPLETE
    return Structure(standing, tuple(detections)), min(ends, default=len(piece))
