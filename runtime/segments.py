"""Segments: the K/V rows of running jobs on disk, so that whoever resumes a job need not compute them again.

Committed rows never change and follow on one another. So a job's rows are kept as a chain of files, each with the rows
since the one before: a token costs the same at any length, and nothing is written twice. A segment's link is a digest
of the link before it, the tokens that its rows are of, and the rows; the first follows on the job, its request and the
cache's ABI. What does not join, by the log's own tokens, is not used: a lost, torn or foreign file costs time and never
a wrong row. For the same reason nothing waits for the disk here.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor, wait
from hashlib import sha256
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import Final, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, uint8

from ..fsm.errors import CacheInUse
from . import private
from .job import Job
from .session import Session

DTYPES: Final = {"F32": torch.float32, "BF16": torch.bfloat16}
DOMAIN: Final = b"decodelog.segment.v1"
EVERY: Final = 64
READERS: Final = 2  # digests are computed outside the interpreter's lock
ROWS_MAX: Final = 256  # of a segment; a prompt's rows are several, which are read side by side
WAITING_MAX: Final = 4  # segments in memory; where the disk is slower than this, the next one is longer

_NAME = re.compile(r"^(\d{8})-(\d{8})-([0-9a-f]{64})\.safetensors$")
_SPAN = struct.Struct("<QQ")


class Segment(NamedTuple):
    """A file that says it holds rows [start, stop), and the link that it has."""

    start: int
    stop: int
    link: bytes
    path: Path


class Segments:
    """The segments of all jobs of one worker, in a folder for each under `directory`.

    every    tokens after which a job's new rows are written
    reading  nothing is written or removed: somebody else keeps these
    say      hears once, on the writer's thread, that rows cannot be written: jobs go on without
    fault    why they could not, if so
    """

    def __init__(
        self,
        directory: Path,
        every: int = EVERY,
        say: Callable[[OSError], object] | None = None,
        reading: bool = False,
    ) -> None:
        self._directory = directory
        self._reading = reading
        self._every = every
        self._kept: dict[str, int] = {}  # rows that were handed to the writer or read back
        self._links: dict[str, bytes] = {}  # of the newest segment, the writer's
        self._writer = ThreadPoolExecutor(1, "segments")
        self._waiting: list[Future[None]] = []
        self._say = say
        self.fault: OSError | None = None

    def follow(self, job: Job, session: Session, least: int | None = None) -> None:
        """Keep the job's rows since the last segment, where they are at least so many (`every`)."""
        lane = job.lane
        start = self._kept.get(job.name, 0)
        if (
            self._reading
            or lane is None
            or lane.length - start < (self._every if least is None else least)
            or self.fault is not None
        ):
            return
        self._waiting = [each for each in self._waiting if not each.done()]
        if len(self._waiting) >= WAITING_MAX and least is None:
            return
        stop = self._kept[job.name] = lane.length
        facts, ids = (job.name, self._folder(job), self._origin(job, session)), _ids(job, start, stop)
        for at in range(start, stop, ROWS_MAX):
            end = min(at + ROWS_MAX, stop)
            rows = session.rows(lane, at, end)
            self._waiting.append(self._writer.submit(self._write, *facts, at, ids[at - start : end - start], rows))

    def restore(self, job: Job, session: Session, tokens: Sequence[int], most: int) -> int:
        """Put back the longest run of kept rows of `tokens` into the job's empty lane, `most` at most; how many."""
        lane, link, parts, at = job.lane, self._origin(job, session), list[Tensor](), 0
        if lane is None:
            return 0
        wait(self._waiting)  # rows of the lane that was lost may still be on their way
        with ThreadPoolExecutor(READERS) as readers:
            chain = list(self._chain(self._folder(job), most))
            for segment, rows in zip(chain, readers.map(_read, chain), strict=True):
                if rows is None:
                    break
                found = link_of(link, segment.start, tokens[segment.start : segment.stop], rows[1])
                if found != segment.link:
                    break
                link, at = found, segment.stop
                parts.append(rows[0])
        session.restore(lane, parts)
        self._kept[job.name], self._links[job.name] = at, link
        if not self._reading:
            self._writer.submit(self._prune, self._folder(job), {segment.path for segment in chain[: len(parts)]})
        return at

    def forget(self, job: Job) -> None:
        """The job has ended, or its rows are others: remove what was kept of it."""
        self._kept.pop(job.name, None)
        if self._reading:
            return
        self._writer.submit(self._remove, job.name, self._folder(job))

    def close(self) -> None:
        """Wait until everything is written. Idempotent."""
        self._writer.shutdown()

    # ---- on the writer's thread ------------------------------------------------------------------------------------

    def _write(self, name: str, folder: Path, origin: bytes, start: int, ids: Sequence[int], rows: Tensor) -> None:
        link = link_of(self._links.get(name, origin), start, ids, digest_of(rows))
        path = folder / file_name(start, start + len(ids), link)
        part = path.with_suffix(f".{os.getpid()}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            private.make(part)
            save_file({"rows": rows}, part)
            part.replace(path)
        except FileNotFoundError:
            # Somebody has removed the folder meanwhile, and what was in it: the next segment begins again at row 0.
            self._kept.pop(name, None)
            self._links.pop(name, None)
        except (OSError, SafetensorError) as problem:
            if self.fault is None:
                self.fault = problem if isinstance(problem, OSError) else OSError(str(problem))
                if self._say is not None:
                    self._say(self.fault)
        else:
            self._links[name] = link

    def _prune(self, folder: Path, good: AbstractSet[Path]) -> None:
        """Remove what is of no chain, so that it never stands in the way of what is to come."""
        for path in folder.glob("*"):
            if path not in good:
                path.unlink(missing_ok=True)

    def _remove(self, name: str, folder: Path) -> None:
        self._links.pop(name, None)
        shutil.rmtree(folder, ignore_errors=True)

    # ---- names -----------------------------------------------------------------------------------------------------

    def _folder(self, job: Job) -> Path:
        return folder_of(self._directory, job.state.spec.binding)

    def _origin(self, job: Job, session: Session) -> bytes:
        return origin(job.state.spec.binding, str(session.arena.abi))

    def _chain(self, folder: Path, most: int) -> Iterator[Segment]:
        """The files that follow on one another by their names, from row 0; of several beginnings the longest file."""
        named = [match for path in folder.glob("*.safetensors") if (match := _NAME.match(path.name))]
        segments = [Segment(int(m[1]), int(m[2]), bytes.fromhex(m[3]), folder / m[0]) for m in named]
        at = 0
        while following := [each for each in segments if each.start == at and at < each.stop <= most]:
            longest = max(following)
            yield longest
            at = longest.stop


def origin(binding: bytes, abi: str) -> bytes:
    """The link before a job's first segment."""
    return sha256(DOMAIN + binding + abi.encode()).digest()


def folder_of(directory: Path, binding: bytes) -> Path:
    """Where the segments of one job lie."""
    return directory / binding.hex()


def file_name(start: int, stop: int, link: bytes) -> str:
    return f"{start:08d}-{stop:08d}-{link.hex()}.safetensors"


def discard(directory: Path, binding: bytes) -> None:
    """Remove what was kept of a job that nobody runs. Errors: CacheInUse, where some of it stays."""
    folder, reason = folder_of(directory, binding), "something else is written there"
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:  # the folder, or a file of it that another process has just removed
        shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or str(error)
    if folder.exists():
        raise CacheInUse(str(folder), reason)


def _ids(job: Job, start: int, stop: int) -> list[int]:
    """The token ids of rows [start, stop); the newest may not be durable yet."""
    prompt, output = job.state.spec.prompt, job.transcript.token_ids
    offset = len(prompt)
    ids = [*prompt[start:stop], *output[max(start - offset, 0) : max(stop - offset, 0)]]
    return ids if len(ids) == stop - start or job.token is None else [*ids, job.token]


def link_of(before: bytes, start: int, ids: Sequence[int], rows: bytes) -> bytes:
    """The link of a segment: `ids` are the tokens of its rows, `rows` is the digest of these."""
    return sha256(b"".join((before, _SPAN.pack(start, len(ids)), struct.pack(f"<{len(ids)}I", *ids), rows))).digest()


def digest_of(rows: Tensor) -> bytes:
    return sha256(rows.view(uint8).numpy().data).digest()


def _read(segment: Segment) -> tuple[Tensor, bytes] | None:
    """A segment's rows, as they lie in the file, and their digest; None where the file is gone or is none."""
    try:
        with safe_open(segment.path, "pt") as header:
            found = header.get_slice("rows")
            shape, dtype = found.get_shape(), DTYPES[found.get_dtype()]
        with segment.path.open("rb") as file:
            mapped = mmap(file.fileno(), 0, access=ACCESS_COPY)  # for as long as the tensor lives
        # The only tensor begins behind the header, whose size the file begins with.
        rows = torch.frombuffer(mapped, dtype=dtype, offset=8 + int.from_bytes(mapped[:8], "little")).view(shape)
        return rows, digest_of(rows)
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError):
        return None
