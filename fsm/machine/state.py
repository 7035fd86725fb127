"""The state of one job: everything that the next decision, commit and resume depend on, and nothing that grows."""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import NamedTuple

from ..evidence.receipt import Receipt
from ..output.horizon import Horizon
from ..output.structure import Structure
from ..request.finish import FinishReason, MatchedStop
from .frontier import Frontier
from .spec import Spec
from .states import Status, Suffix

_STATUS = {status: index for index, status in enumerate(Status)}
_SUFFIX = {suffix: index for index, suffix in enumerate(Suffix)}
_REASON = {reason: index for index, reason in enumerate(FinishReason)}
_PLACE = struct.Struct("<BBQQQQ")

NO_RECEIPT = bytes(32)


class Tenure(NamedTuple):
    """Bookkeeping of who works on the job; no decision depends on it, so it is not part of the state's digest.

    attempt     tenures so far; fence  the newest one's
    failures    ALL_OLD calls since the last ALL_NEW
    recomputed  tokens whose rows had to be computed again, over all tenures
    """

    attempt: int = 0
    fence: int = 0
    failures: int = 0
    recomputed: int = 0


class Ending(NamedTuple):
    """How a job ended: a finish reason, or the cause of failure (an error code) with its message."""

    finish: FinishReason | None
    cause: str = ""
    detail: str = ""


class State(NamedTuple):
    """Where a job stands after an event. Its size does not depend on how many tokens came before.

    spec          what the sealed request asks for
    status        one of the six states
    tenure        who works on it
    frontier      L, O, P, |U| and U's tag
    horizon       stop matcher's and decoder's state: which bytes of the text are not released yet
    receipt       issued and not consumed, in DECIDED only
    last_receipt  id of the last consumed receipt (which covers all before it); before the first the digest of what was
                  recorded of the prompt, zeros where nothing was
    scores        SHA-256 of the consumable score row, in PREFILLED and DECIDED, else empty
    delta         text that the last event released
    due           finish reasons that hold after the last commit, most important first
    ending        how it ended, in CLOSED and FAILED
    structure     where the output stands in the structure that was asked for; None where none was
    matched_stop  the stop string, or the token's id, that stopped the output; of several the first by their order
    """

    spec: Spec
    status: Status
    tenure: Tenure
    frontier: Frontier
    horizon: Horizon
    receipt: Receipt | None
    last_receipt: bytes
    scores: bytes
    delta: str
    due: tuple[FinishReason, ...]
    ending: Ending | None
    structure: Structure | None = None
    matched_stop: MatchedStop | None = None

    def digest(self) -> bytes:
        """SHA-256 over the request identity and every field that a later decision or commit can depend on.

        The stop that matched is none of them: it follows from the receipt that this covers.
        """
        spec, status, _, frontier, horizon, receipt, last_receipt, scores, _, due, _, structure, _ = self
        prompt, output, processed, unprocessed, suffix = frontier
        place = _PLACE.pack(_STATUS[status], _SUFFIX[suffix], prompt, output, processed, unprocessed)
        held = receipt.receipt_id if receipt is not None else b""
        reasons = bytes([_REASON[reason] for reason in due]) if due else b""
        sought = b"" if structure is None else structure.digest_bytes()
        parts = spec.binding, place, last_receipt, held, scores, horizon.digest_bytes(), sought, reasons
        return sha256(b"".join(parts)).digest()
