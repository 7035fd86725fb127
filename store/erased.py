"""What is left of a log whose content is erased: the same chain to the same head, and who worked on the job.

An append with content keeps its place and its digest; its key is empty, and its payload is the digest of what was
there. Tenures and the end stay readable where they are appends of their own. A sealed log keeps its key, and the digest
of its payload. A log with digests of the older form cannot prove a part that is missing: it becomes one such row.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from ..fsm.errors import CorruptRecord, Problem
from ..fsm.events import AttemptStarted, LanesRebuilt, RequestClosed
from ..fsm.ports import EMPTY_HEAD, Head
from .chain import WRONG_TYPE, content, digest, following
from .codec import decode
from .sealed import whole_erased
from .stored import ERASED, Stored

WITHOUT_CONTENT = (AttemptStarted, LanesRebuilt, RequestClosed)


def erased(job: str, rows: Sequence[Stored], head: Head) -> list[Stored]:
    """These rows of one log, in order, without their content; what is erased already stays as it is.

    Errors: CorruptRecord where a row holds values of other types.
    """
    try:
        if _older(rows, head):
            contents = sha256(b"".join([content(row.key, row.payload) for row in rows])).digest()
            return [whole_erased(head, rows[-1].fence, contents)]
        return [_erased(job, row) for row in rows]
    except WRONG_TYPE as problem:
        raise CorruptRecord(job, 1, f"a row holds a value of another type ({problem})") from problem


def _erased(job: str, row: Stored) -> Stored:
    if row.erased or not _has_content(job, row):
        return row
    if row.sealed:
        return row._replace(payload=ERASED + sha256(row.payload).digest())
    return row._replace(key=b"", payload=content(row.key, row.payload))


def _has_content(job: str, row: Stored) -> bool:
    """Whether a row says anything but who worked on the job and that it ended; one that cannot be read may say it."""
    if row.sealed:
        return True
    try:
        return not all(isinstance(event, WITHOUT_CONTENT) for event in decode(row.payload, row.key, job, row.first))
    except Problem:
        return True


def _older(rows: Sequence[Stored], head: Head) -> bool:
    """Whether this is a sound log, up to its head, with digests of the older form in it."""
    chain, older = EMPTY_HEAD.chain, False
    for row in rows:
        found = following(chain, row)
        if found is None:  # damaged: nothing here may make it look sound
            return False
        older = older or not (row.sealed or found == digest(chain, row.first, row.key, row.payload))
        chain = found
    return older and Head(rows[-1].last, chain) == head
