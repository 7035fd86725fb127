"""The demonstration: a generation whose process is killed twice, compared with the same one left alone.

Everything that is claimed at the end is read from the two logs, after the processes that wrote them are gone.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..fsm.errors import ChildFailed
from ..fsm.events import DecisionMade, OutputCommitted
from ..fsm.ports import EventLog
from ..store import schema
from .audit import Report, audit
from .database import SQLITE_PREFIX, open_database
from .reading import Follower, events_of, transcript_of

PROMPT = "Explain in a few sentences why the sky is blue."
KILL_AFTER = (12, 30)  # committed tokens, where the limit allows
POLL_S = 0.1


class Narrator(Protocol):
    """Hears what happens, in words and as the text that becomes durable."""

    def tell(self, words: str) -> None: ...

    def text(self, text: str, attempt: int) -> None: ...


class Outcome(NamedTuple):
    """What the two logs say. `identity` is None where the two requests were not the same."""

    job: str
    identity: str | None
    kills: int
    tokens: int
    characters: int
    identical_tokens: bool
    identical_text: bool
    tokens_recomputed: int
    committed_twice: int
    audited: Report

    @property
    def ok(self) -> bool:
        same = self.identity is not None and self.identical_tokens and self.identical_text
        return same and self.audited.ok and not self.committed_twice

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.ok} | self._asdict() | {"audited": self.audited.as_json()}

    def line(self) -> str:
        """The last line of the demonstration."""
        verdict = {(True, True): "IDENTICAL", (True, False): "TEXT DIFFERS", (False, True): "TOKENS DIFFER"}
        word = verdict.get((self.identical_tokens, self.identical_text), "TOKENS AND TEXT DIFFER")
        faults = "" if self.audited.ok else f" {len(self.audited.faults)} faults in the audit;"
        request = "" if self.identity is not None else " the requests differ;"
        return (
            f"{word}: {self.tokens} tokens, {self.characters} characters, killed {self.kills} times;{faults}{request} "
            f"{self.tokens_recomputed} tokens recomputed, {self.committed_twice} committed twice"
        )


def demonstrate(model: str, max_new_tokens: int, folder: Path, narrator: Narrator) -> Outcome:
    """Run the demonstration in `folder`. Errors: ChildFailed, and the store's."""
    killed, whole = (f"{SQLITE_PREFIX}{folder / name}.db" for name in ("killed", "uninterrupted"))
    for url in (killed, whole):
        schema.upgrade(url)
    request = ["run", "--model", model, "--user", PROMPT, "--max-new-tokens", str(max_new_tokens)]
    log = open_database(killed)
    narrator.tell(f'The question: "{PROMPT}" Greedy decoding, so there is one right answer.')
    job, kills = _run_and_kill(log, killed, request, kill_points(max_new_tokens), folder, narrator)

    narrator.tell("Audit: reading the log again from its first byte, and replaying every step from it.")
    audited = audit(log, [job])
    narrator.tell(
        f"{audited.events} events: "
        + ("every digest, receipt and state follows from those before it." if audited.ok else str(audited.faults))
    )
    narrator.tell("The same request once more, uninterrupted, in another database.")
    other_log = open_database(whole)
    with child([*request, "--db", whole], folder) as process:
        other = _first_job(other_log, process, folder)
        _wait(process, folder)
    return compare(log, job, other_log, other, kills, audited)


def kill_points(max_new_tokens: int) -> tuple[int, ...]:
    """Committed tokens after which the process is killed."""
    return min(KILL_AFTER[0], max_new_tokens // 4), min(KILL_AFTER[1], max_new_tokens // 2)


def compare(log: EventLog, job: str, other_log: EventLog, other: str, kills: int, audited: Report) -> Outcome:
    """Put the two logs beside each other."""
    left, right = transcript_of(log, job).result(), transcript_of(other_log, other).result()
    return Outcome(
        job=job,
        identity=left["identity"] if left["identity"] == right["identity"] else None,
        kills=kills,
        tokens=len(left["token_ids"]),
        characters=len(left["text"]),
        identical_tokens=left["token_ids"] == right["token_ids"],
        identical_text=left["text"] == right["text"],
        tokens_recomputed=left["usage"]["recomputed_tokens"],
        committed_twice=committed_twice(log, job),
        audited=audited,
    )


def committed_twice(log: EventLog, job: str) -> int:
    """Commits too many: of an output number that was committed before, or of a receipt that was."""
    outputs: Counter[int] = Counter()
    receipts: Counter[bytes] = Counter()
    receipt = b""
    for _, event in events_of(log, job):
        if isinstance(event, DecisionMade):
            receipt = event.receipt.receipt_id
        elif isinstance(event, OutputCommitted):
            outputs[event.output] += 1
            receipts[receipt] += 1
    return max(outputs.total() - len(outputs), receipts.total() - len(receipts))


# ---- processes -------------------------------------------------------------------------------------------------


def _run_and_kill(
    log: EventLog, url: str, request: Sequence[str], points: Sequence[int], folder: Path, narrator: Narrator
) -> tuple[str, int]:
    """The job's name, and how often its process was killed before the job had ended."""
    with child([*request, "--db", url], folder) as process:
        narrator.tell(f"Process {process.pid} starts. Its text, as it becomes durable in the log:")
        job = _first_job(log, process, folder)
        follower = Follower(log, job)
        kills = int(_follow(follower, process, points[0], folder, narrator, 1))
    for attempt, point in enumerate((*points[1:], None), start=2):
        if follower.ended:
            break
        with child(["resume", job, "--db", url], folder) as process:
            narrator.tell(f"Process {process.pid} resumes: it knows nothing but the log.")
            kills += _follow(follower, process, point, folder, narrator, attempt)
    narrator.tell(f"Process {process.pid} has finished the answer.")
    return job, kills


def _follow(
    follower: Follower, process: subprocess.Popen[bytes], point: int | None, folder: Path, narrator: Narrator, attempt: int
) -> bool:
    """Pass the text on; kill the process once `point` tokens are committed. Whether it was killed."""
    while not _show(follower, narrator, attempt).ended:
        if point is not None and len(follower.transcript.token_ids) >= point:
            process.kill()
            process.wait()
            _show(follower, narrator, attempt)
            count = len(follower.transcript.token_ids)
            narrator.tell(f"kill -9 {process.pid}, after {count} tokens. Whatever it was computing is lost.")
            return True
        if process.poll() is not None and not _show(follower, narrator, attempt).ended:
            raise ChildFailed(process.pid, _last_words(folder))
        time.sleep(POLL_S)
    _wait(process, folder)
    return False


def _show(follower: Follower, narrator: Narrator, attempt: int) -> Follower:
    for emission in follower.poll():
        narrator.text(emission.text, attempt)
    return follower


@contextmanager
def child(arguments: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A decodelog command in a process of its own, which does not outlive the block. What it says goes to a file."""
    command = [sys.executable, "-m", "decodelog.service.cli", *arguments]
    with (folder / "processes.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _first_job(log: EventLog, process: subprocess.Popen[bytes], folder: Path) -> str:
    """The job that the process submits; the database had none."""
    while not (rows := log.rows()):
        if process.poll() is not None:
            raise ChildFailed(process.pid, _last_words(folder))
        time.sleep(POLL_S)
    return rows[0].job


def _wait(process: subprocess.Popen[bytes], folder: Path) -> None:
    if process.wait():
        raise ChildFailed(process.pid, _last_words(folder))


def _last_words(folder: Path) -> str:
    lines = (folder / "processes.log").read_text("utf-8", "replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it said nothing")
