"""What is left of a log whose content is erased: the same chain to the same head, and who worked on the job.

An append with content keeps its place and its digest; its key is empty, and its payload is the digest of what was
there. Tenures and the end stay readable where they are appends of their own. A sealed log keeps its key, and the digest
of its payload. A damaged row, with values of wrong types too, loses its content all the same: its payload becomes a
digest that does not match its own, so that an audit names it as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Literal

from ...fsm.errors import Problem
from ...fsm.machine.events import AttemptStarted, LanesRebuilt, RequestClosed
from .chain import DIGEST_BYTES, WRONG_TYPE, content
from .codec import decode
from .stored import ERASED, Stored

WITHOUT_CONTENT = (AttemptStarted, LanesRebuilt, RequestClosed)


def erased(job: str, rows: Sequence[Stored]) -> list[Stored]:
    """These rows of one log, in order, without their content; what is erased already stays as it is."""
    return [_erased(job, row) for row in rows]


def _erased(job: str, row: Stored) -> Stored:
    match _form(row):
        case None:
            damaged = repr((row.key, row.payload)).encode(errors="surrogatepass")
            return row._replace(key=b"", payload=sha256(damaged).digest())
        case "sealed":
            return row._replace(payload=ERASED + sha256(row.payload).digest())
        case "append" if _has_content(job, row):
            return row._replace(key=b"", payload=content(row.key, row.payload))
    return row


def _form(row: Stored) -> Literal["erased", "sealed", "append"] | None:
    """What the row's key and payload look like; None where no release writes such."""
    if not (isinstance(row.key, bytes) and isinstance(row.payload, bytes)):
        return None
    if not row.key:
        return "erased" if len(row.payload) == DIGEST_BYTES else None
    if len(row.key) != DIGEST_BYTES:
        return None
    if row.erased:
        return "erased" if len(row.payload) == len(ERASED) + DIGEST_BYTES else None
    return "sealed" if row.sealed else "append"


def _has_content(job: str, row: Stored) -> bool:
    """Whether a row says anything but who worked on the job and that it ended; one that cannot be read may say it."""
    try:
        return not all(isinstance(event, WITHOUT_CONTENT) for event in decode(row.payload, row.key, job, row.first))
    except (Problem, *WRONG_TYPE):
        return True
