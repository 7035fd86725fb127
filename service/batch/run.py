"""A batch: a file of requests in, a file of answers out, each line written exactly once, whatever is killed.

The answers are in the order of the requests, so the file that a killed batch leaves shows how far it came. Its
last line may be torn: it is cut off and written again. The jobs' idempotency keys follow from the whole input file, so
the same file goes on with the same jobs, and an edited one is another batch.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from ...fsm.errors import (
    ContentErased,
    EmptyPrompt,
    GrammarRefused,
    LimitExceeded,
    MalformedJson,
    NoChatTemplate,
    NotAdmissible,
    Problem,
    PromptTooLong,
    SchemaViolation,
    TemplateFailed,
    TextNotEncodable,
    TokenOutOfRange,
    UnreadableInput,
    UnwritableOutput,
)
from ..api.job import Job
from ..api.log import Log
from ..api.worker import Working
from ..files import sync_folder
from .chat import Line, answered, line_of, refused_by, request_of

ANSWER = "batch_req_"

OF_THE_REQUEST = (
    *(SchemaViolation, LimitExceeded, NotAdmissible, GrammarRefused, PromptTooLong, EmptyPrompt, TokenOutOfRange),
    *(NoChatTemplate, TemplateFailed, TextNotEncodable),
)
"""What is wrong with one request: its line says so. Whatever else is raised ends the batch, to be run again."""


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
    digest: str = field(init=False)
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        """Read and check the whole file before anything is admitted.

        Errors: UnreadableInput; SchemaViolation and MalformedJson with the line's number in the path.
        """
        try:
            raw = self.source.read_bytes()
        except OSError as error:
            raise UnreadableInput(str(self.source), error.strerror or str(error)) from error
        if self.out.exists() and self.source.samefile(self.out):
            raise UnwritableOutput(str(self.out), "it is the file of the requests")
        name = "" if self.model is None else self.log.models.lasting_name(self.model)
        self.digest = sha256(sha256(raw).digest() + name.encode()).hexdigest()[:32]
        self.lines = list(_lines(raw))
        self.progress = Progress(len(self.lines))

    def run(self) -> Iterator[Progress]:
        """Answer every line that is not answered yet, and say after each how far it is.

        Errors: UnwritableOutput, the store's, and what keeps this process from running a job.
        """
        progress = self.progress
        with _opened(self.out) as out:
            progress.answered, progress.refused = self._answered(out)
            yield progress
            if not (left := self.lines[progress.answered :]):
                return
            with Working(self.log, self.cache_dir, asked=True) as worker:
                for line, job in worker.in_order((line, self._submitted(line)) for line in left):
                    answer = refused_by(line, job) if isinstance(job, Problem) else _answer(line, job)
                    self._write(out, {"id": self._id(line)} | answer)
                    progress.answered += 1
                    progress.refused += answer["response"]["status_code"] != 200
                    progress.tokens = worker.tokens
                    yield progress
            with self._writing():
                os.fsync(out.fileno())

    def _submitted(self, line: Line) -> Job | Problem:
        """The job of a line; an error in its request becomes the line's answer."""
        try:
            request = request_of(line)
            return self.log.submit(self.model or line.model, key=f"batch/{self.digest}/{line.custom_id}", **request)
        except OF_THE_REQUEST as problem:
            return problem

    def _id(self, line: Line) -> str:
        """The id by which an answer belongs to this batch and to no other."""
        return f"{ANSWER}{self.digest}_{line.custom_id}"

    def _write(self, out: BinaryIO, answer: dict[str, Any]) -> None:
        with self._writing():
            out.write(json.dumps(answer, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass") + b"\n")
            out.flush()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnwritableOutput(str(self.out), error.strerror or str(error)) from error

    def _answered(self, out: BinaryIO) -> tuple[int, int]:
        """How many lines are answered already, and how many of them with an error. A torn last one is cut off.

        Errors: UnwritableOutput for a file that is not this batch's, which stays as it is.
        """
        out.seek(0)
        begins = json.dumps({"id": f"{ANSWER}{self.digest}_"})[:-2].encode()
        count = refused = end = 0
        for text in out:
            if not text.endswith(b"\n"):
                if not (text.startswith(begins) or begins.startswith(text)):
                    raise UnwritableOutput(str(self.out), "it ends with what no batch has written")
                break
            answer = _value(text)
            if count >= len(self.lines) or answer.get("id") != self._id(self.lines[count]):
                raise UnwritableOutput(str(self.out), f"its line {count + 1} is no answer to that line of this batch")
            count, end = count + 1, end + len(text)
            refused += answer.get("response", {}).get("status_code") != 200
        out.truncate(end)
        return count, refused


def _answer(line: Line, job: Job) -> dict[str, Any]:
    try:
        return answered(line, job.peek(), job.row.created_ms)
    except ContentErased as erased:
        return refused_by(line, erased)


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
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The file of answers, for this process alone, with all that is in it. Errors: UnwritableOutput."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("a+b"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sync_folder(path.absolute().parent)
        except BlockingIOError as error:
            raise UnwritableOutput(str(path), "another process writes this batch") from error
        except OSError as error:
            raise UnwritableOutput(str(path), error.strerror or str(error)) from error
        yield file


def _value(text: bytes) -> dict[str, Any]:
    """The object in a line; an empty one where there is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
