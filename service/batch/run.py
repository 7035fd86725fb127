"""A batch: a file of requests in, a file of answers out, each line written exactly once, whatever is killed.

The lines of the answers are in the order of the requests, so what a killed batch has written says how far it came. Its
last line may be torn: it is cut off and written again. The jobs' idempotency keys follow from the whole input file, so
the same file goes on with the same jobs, and an edited one is another batch.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from ...fsm.errors import (
    LimitExceeded,
    MalformedJson,
    Problem,
    Rejected,
    SchemaViolation,
    UnreadableInput,
    UnwritableOutput,
)
from ..api.job import Job
from ..api.log import AHEAD, Log
from ..files import sync_folder
from .chat import Line, answered, line_of, refused_by, request_of


@dataclass
class Progress:
    """How far a batch is: lines of the file, those answered, those answered with an error, and tokens made by now."""

    lines: int
    answered: int = 0
    refused: int = 0
    tokens: int = 0


@dataclass
class Batch:
    """A batch that can be run.

    source, out   the two files
    model         the model for every line; None: the one that each line names
    """

    log: Log
    source: Path
    out: Path
    model: str | None = None
    cache_dir: Path | None = None
    lines: list[Line] = field(init=False)
    prefix: str = field(init=False)
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        """Read and check the whole file before anything is admitted.

        Errors: UnreadableInput; SchemaViolation and MalformedJson with the line's number in the path.
        """
        try:
            raw = self.source.read_bytes()
        except OSError as error:
            raise UnreadableInput(str(self.source), error.strerror or str(error)) from error
        self.prefix = f"batch/{sha256(raw).hexdigest()[:32]}/"
        self.lines = list(_lines(raw))
        self.progress = Progress(len(self.lines))

    def run(self) -> Iterator[Progress]:
        """Answer every line that is not answered yet, and say after each how far it is.

        Errors: UnwritableOutput, the store's, and what keeps this process from running a job.
        """
        with _appending(self.out) as out:
            progress = self.progress
            progress.answered = done = _answered(out, self.lines, self.out)
            yield progress
            waiting: deque[tuple[Line, Job | Problem]] = deque()
            with self.log.worker(cache_dir=self.cache_dir) as worker:
                for index, line in enumerate(self.lines[done:], done + 1):
                    waiting.append((line, self._submitted(line)))
                    last = index == len(self.lines)
                    while waiting and (last or len(waiting) >= AHEAD * self.log.models.lanes):
                        line, job = waiting.popleft()
                        if isinstance(job, Problem):
                            answer = refused_by(line, job)
                        else:
                            worker.wait(job.name)
                            answer = answered(line, job.peek(), job.row.created_ms)
                        _write(out, answer, self.out)
                        progress.answered += 1
                        progress.refused += answer["response"]["status_code"] != 200
                        progress.tokens = worker.tokens
                        yield progress

    def _submitted(self, line: Line) -> Job | Problem:
        """The job of a line; what is wrong with its request is the line's own answer."""
        try:
            request = request_of(line)
            return self.log.submit(self.model or line.model, key=self.prefix + line.custom_id, **request)
        except Rejected as problem:
            return problem


def _lines(raw: bytes) -> Iterator[Line]:
    seen: set[str] = set()
    for number, text in enumerate(raw.splitlines(), 1):
        if not text.strip():
            continue
        try:
            line = line_of(text)
        except (SchemaViolation, MalformedJson, LimitExceeded) as problem:
            raise SchemaViolation(f"line {number}", str(problem)) from problem
        if line.custom_id in seen:
            raise SchemaViolation(f"line {number}", f"custom_id {line.custom_id!r} is that of an earlier line too")
        seen.add(line.custom_id)
        yield line


@contextmanager
def _appending(path: Path) -> Iterator[BinaryIO]:
    """The file of answers, for this process alone; what is in it stays."""
    import fcntl

    try:
        with path.open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UnwritableOutput(str(path), "another process writes this batch") from error
            sync_folder(path.absolute().parent)
            yield file
            os.fsync(file.fileno())
    except OSError as error:
        raise UnwritableOutput(str(path), error.strerror or str(error)) from error


def _answered(out: BinaryIO, lines: list[Line], path: Path) -> int:
    """How many lines are answered already; a torn last one is cut off. Errors: UnwritableOutput for another's file."""
    out.seek(0)
    count = end = 0
    for text in out:
        if not text.endswith(b"\n"):
            break
        name = _name(text)
        if count >= len(lines) or name != lines[count].custom_id:
            raise UnwritableOutput(str(path), f"its line {count + 1} is no answer to that line of this batch")
        count, end = count + 1, end + len(text)
    out.truncate(end)
    return count


def _name(text: bytes) -> str | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value.get("custom_id") if isinstance(value, Mapping) else None


def _write(out: BinaryIO, answer: dict[str, Any], path: Path) -> None:
    out.write(json.dumps(answer, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass") + b"\n")
    out.flush()
