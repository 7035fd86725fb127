"""Anchors: heads of logs, kept in a file outside the database, which later logs must contain.

A chain proves that a log is consistent, not that it is the log that was there: an older copy, a missing log, and a log
that was rewritten with all its digests are consistent too. Heads that are kept where the database's owner cannot write
reveal each of these.

The file has one line for each head, JSON, the newest last; a line that was written is never changed. One line more is
written where a log that an audit has found sound has another head than the job's last line.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...fsm.errors import BrokenAnchors, UnwritableOutput
from ...fsm.limits import SAFE_INTEGER_MAX
from ...fsm.reading.audit import Fault
from ...store.reading.audit import Reached
from ..files import open_regular, sync_folder

FIRST: Final = {"anchors": "decodelog.anchors.v1"}
KIND: Final = "anchor"
CHAIN: Final = re.compile(r"[0-9a-f]{64}")


class Anchor(NamedTuple):
    """Where a job's log ended when it was last found sound, the digest there, and how the job had ended, if it had."""

    job: str
    sequence: int
    chain: str
    finish: str | None


class Anchors:
    """The lines of one file: the newest of each job, and the ones to be added."""

    def __init__(self, text: bytes, path: Path) -> None:
        """Errors: BrokenAnchors."""
        self._newest: dict[str, Anchor] = {}
        self._heads: Mapping[str, Reached] = {}
        if text and not text.endswith(b"\n"):
            raise BrokenAnchors(str(path), "its last line does not end")
        for number, line in enumerate(text.splitlines(), 1):
            value = _value(line)
            if number == 1:
                if value != FIRST:
                    raise BrokenAnchors(str(path), "it does not begin as a file of anchors does")
                continue
            anchor = _anchor(value)
            if anchor is None:
                raise BrokenAnchors(str(path), f"its line {number} is no anchor")
            self._newest[anchor.job] = anchor

    def asked(self) -> dict[str, int]:
        """By job, the event at which its digest is known."""
        return {anchor.job: anchor.sequence for anchor in self._newest.values()}

    def faults(self, heads: Mapping[str, Reached], jobs: Sequence[str] | None) -> Iterator[Fault]:
        """Where the logs of these jobs, or of all, contradict their anchors."""
        self._heads = heads
        for job, anchor in self._newest.items():
            if jobs is None or job in jobs:
                detail = _difference(anchor, heads.get(job))
                if detail:
                    yield Fault(job, anchor.sequence, KIND, detail)

    def added(self, damaged: set[str]) -> list[Anchor]:
        """What to add after an audit that has found these jobs damaged, and whose logs `faults` was told."""
        sound = [
            Anchor(job, reached.head.sequence, reached.head.chain.hex(), reached.finish)
            for job, reached in self._heads.items()
            if job not in damaged
        ]
        return [anchor for anchor in sound if self._newest.get(anchor.job) != anchor]


def _difference(anchor: Anchor, reached: Reached | None) -> str:
    """Why a log cannot be the one that was anchored; empty where it can."""
    place, chain = anchor.sequence, bytes.fromhex(anchor.chain)
    if reached is None:
        return f"it was anchored at event {place}, and is not there"
    if not isinstance(reached.head.sequence, int):
        return ""  # which the audit names as damage of the listing
    if reached.head.sequence < place:
        return f"it was anchored at event {place}, and its log ends at event {reached.head.sequence}"
    if not reached.asked:
        return (
            f"it was anchored at event {place}, and its log has no digest there any more: seal what is anchored ended"
        )
    if chain not in reached.asked:
        return f"it was anchored at event {place} with another digest"
    if reached.head.sequence == place and reached.finish != anchor.finish:
        return f"it was anchored at event {place} with finish {anchor.finish}, and its row says {reached.finish}"
    if anchor.finish is not None and reached.head.sequence > place:
        return f"it was anchored at event {place} as ended, and its log goes on"
    return ""


@contextmanager
def anchored(path: Path) -> Iterator[Anchors]:
    """The anchors of a file, none where there is no file. One audit at a time: another one waits for this.

    Errors: BrokenAnchors, UnwritableOutput.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UnwritableOutput(str(path), error.strerror or str(error)) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # the file itself is another one after each write
        yield Anchors(_read(path), path)
    finally:
        os.close(folder)


def keep(path: Path, added: Sequence[Anchor]) -> None:
    """Add lines to a file, all or none, within `anchored`; only its owner may read it. Errors: UnwritableOutput."""
    before = _read(path)
    if before and not added:
        return
    lines = [] if before else [FIRST]
    lines += [each._asdict() for each in added]
    text = before + b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    new = path.parent / f".anchors-{secrets.token_hex(4)}.new"
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise UnwritableOutput(str(path), error.strerror or str(error)) from error
    finally:
        with suppress(OSError):
            new.unlink()


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:  # anything else would be replaced by a file, or never end
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise BrokenAnchors(str(path), error.strerror or str(error)) from error


def _value(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _anchor(value: Any) -> Anchor | None:
    if not isinstance(value, dict) or tuple(value) != Anchor._fields:
        return None
    job, sequence, chain, finish = value.values()
    sound = isinstance(job, str) and type(sequence) is int and 0 <= sequence <= SAFE_INTEGER_MAX
    sound = sound and isinstance(chain, str) and CHAIN.fullmatch(chain) is not None
    return Anchor(job, sequence, chain, finish) if sound and isinstance(finish, str | None) else None
