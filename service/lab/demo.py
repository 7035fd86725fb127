"""The demonstration: a generation whose process is killed twice, compared with the same one left alone.

Everything that is claimed at the end is read from the two logs, after the processes that wrote them are gone.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ...fsm.errors import ChildFailed
from ...fsm.machine.events import DecisionMade, Event, OutputCommitted
from ...fsm.ports import EventLog
from ...store.database import schema
from ..database import SQLITE_PREFIX, open_database
from ..inspect.audit import Report, audit
from ..streams.reading import Follower, events_of, transcript_of

PROMPT = "Explain in a few sentences why the sky is blue."
KILL_AFTER = (12, 30)  # committed tokens, where the limit allows
POLL_S = 0.02


class Narrator(Protocol):
    """Shows what happens, in words and as the text that becomes durable."""

    def tell(self, words: str) -> None: ...

    def text(self, text: str, attempt: int) -> None: ...


class DemoResult(NamedTuple):
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
        return same and self.kills == len(KILL_AFTER) and self.audited.ok and not self.committed_twice

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.ok} | self._asdict() | {"audited": self.audited.as_json()}

    def line(self) -> str:
        """The last line of the demonstration."""
        words = {True: "identical", False: "DIFFERENT"}
        tokens, text = words[self.identical_tokens], words[self.identical_text]
        verdict = f"tokens and text {tokens}" if tokens == text else f"tokens {tokens}, text {text}"
        faults = "" if self.audited.ok else f"; {len(self.audited.faults)} faults in the audit"
        request = "" if self.identity is not None else "; the requests differ"
        return (
            f"{verdict} ({self.tokens} tokens, {self.characters} characters) after {self.kills} kills; "
            f"{self.tokens_recomputed} tokens recomputed, {self.committed_twice} committed twice{faults}{request}"
        )


def demonstrate(model: str, max_new_tokens: int, folder: Path, narrator: Narrator) -> DemoResult:
    """Run the demonstration in `folder`. Errors: ChildFailed, and the store's."""
    request = ["run", "--model", model, "--user", PROMPT, "--max-new-tokens", str(max_new_tokens)]
    narrator.tell(f'The question: "{PROMPT}" The best token is taken each time, so there is one right answer.')
    with Stage(folder, "killed", narrator) as killed, Stage(folder, "uninterrupted", narrator) as alone:
        job, kills = killed.run_and_kill(request, kill_points(max_new_tokens))

        narrator.tell("Audit: the log is read again from its first byte, and every step replayed from it.")
        audited = audit(killed.log, [job])
        sound = "no gap, no duplicate; every digest, receipt and state follows from those before it."
        narrator.tell(f"{audited.events} events: {sound if audited.ok else audited.faults}")

        narrator.tell("The same request once more, in another database, and nobody kills it.")
        other = alone.run(request)
        return compare(killed.log, job, alone.log, other, kills, audited)


def kill_points(max_new_tokens: int) -> tuple[int, ...]:
    """Committed tokens after which the process is killed."""
    return min(KILL_AFTER[0], max_new_tokens // 4), min(KILL_AFTER[1], max_new_tokens // 2)


def compare(log: EventLog, job: str, other_log: EventLog, other: str, kills: int, audited: Report) -> DemoResult:
    """Put the two logs beside each other."""
    left, right = transcript_of(log, job).result(), transcript_of(other_log, other).result()
    return DemoResult(
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
    """`repeated` of a job's whole log."""
    return repeated(event for _, event in events_of(log, job))


def repeated(events: Iterable[Event]) -> int:
    """Surplus commits: of an output number or of a receipt that was committed before."""
    outputs: Counter[int] = Counter()
    receipts: Counter[bytes] = Counter()
    receipt = b""
    for event in events:
        if isinstance(event, DecisionMade):
            receipt = event.receipt.receipt_id
        elif isinstance(event, OutputCommitted):
            outputs[event.output] += 1
            receipts[receipt] += 1
    return max(outputs.total() - len(outputs), receipts.total() - len(receipts))


# ---- processes -------------------------------------------------------------------------------------------------


class Stage:
    """One database, and the processes that work on it one after the other."""

    def __init__(self, folder: Path, name: str, narrator: Narrator) -> None:
        self._url = f"{SQLITE_PREFIX}{folder / name}.db"
        self._words = folder / f"{name}.log"  # what the processes say
        self._narrator = narrator
        schema.upgrade(self._url)
        self.log = open_database(self._url)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *problem: object) -> None:
        self.log.close()

    def run(self, request: Sequence[str]) -> str:
        """Run the request to its end; the job's name."""
        with self._process(request) as process:
            job = self._first_job(process)
            self._expect_success(process)
        return job

    def run_and_kill(self, request: Sequence[str], points: Sequence[int]) -> tuple[str, int]:
        """Run the request, killing its process once each of `points` tokens is committed; the job, and the kills."""
        with self._process(request) as process:
            self._narrator.tell(f"Process {process.pid} starts. Its text, as it becomes durable in the log:")
            job = self._first_job(process)
            follower = Follower(self.log, job)
            kills = int(self._follow(follower, process, 1, points[0]))
        for attempt, point in enumerate((*points[1:], None), start=2):
            if follower.ended:
                break
            with self._process(["resume", job]) as process:
                self._narrator.tell(f"Process {process.pid} resumes. It knows nothing but the log.")
                kills += self._follow(follower, process, attempt, point)
        return job, kills

    def _follow(self, follower: Follower, process: subprocess.Popen[bytes], attempt: int, point: int | None) -> bool:
        """Pass the text on; kill the process once `point` tokens are committed. Whether it was killed."""
        while True:
            running = process.poll() is None
            self._show(follower, attempt)
            tokens = len(follower.transcript.token_ids)
            if follower.ended:
                self._expect_success(process)
                self._narrator.tell(f"Process {process.pid} has finished the answer with {tokens} tokens.")
                return False
            if not running:
                self._expect_success(process)
                raise ChildFailed(process.pid, "it left the job unfinished")
            if point is not None and tokens >= point:
                process.kill()
                process.wait()
                self._show(follower, attempt)
                tokens = len(follower.transcript.token_ids)
                self._narrator.tell(f"kill -9 {process.pid} after {tokens} tokens. What it was computing is lost.")
                return True
            time.sleep(POLL_S)

    def _show(self, follower: Follower, attempt: int) -> None:
        for emission in follower.poll():
            self._narrator.text(emission.text, attempt)

    @contextmanager
    def _process(self, arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
        """A decodelog command in a process of its own, which does not outlive the block."""
        command = [sys.executable, "-m", "decodelog", *arguments, "--db", self._url]
        with self._words.open("ab") as words:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=words)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _first_job(self, process: subprocess.Popen[bytes]) -> str:
        """The job that the process submits; the database had none."""
        while not (rows := self.log.rows()):
            if process.poll() is not None:
                raise ChildFailed(process.pid, self._last_words())
            time.sleep(POLL_S)
        return rows[0].job

    def _expect_success(self, process: subprocess.Popen[bytes]) -> None:
        if process.wait():
            raise ChildFailed(process.pid, self._last_words())

    def _last_words(self) -> str:
        lines = self._words.read_text("utf-8", "replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")
