"""Segments: the K/V rows of running jobs on disk, so that whoever resumes a job need not compute them again.

Committed rows never change and follow on one another. So a job's rows are kept as a chain of files, each with the rows
since the one before, and those that are not enough for a file yet in a tail, to which each step adds its own: a token
costs the same at any length. What does not join, by the log's own tokens, is not used: a lost, torn or foreign file
costs time and never a wrong row. For the same reason nothing waits for the disk here.

Two threads work on a chain, and each has its own part of it. The crank's says what was handed over, the writer's what
was written. Where the writer finds that the files are gone it says so once and for all in the chain, and does nothing
more for it; the crank then begins another one at row 0.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Final, NamedTuple

from torch import Tensor

from .. import private
from ..caches.segment_files import (
    by_name,
    content_of,
    digest_of,
    file_name,
    folder_of,
    link_of,
    origin,
    read_tail,
    records_of,
    rows_of,
    tail_of,
)
from ..model.port import RowCache
from .job import Job

EVERY: Final = 64
READERS: Final = 2  # digests are computed outside the interpreter's lock
ROWS_MAX: Final = 256  # of a segment; a prompt's rows are several, which are read side by side
FINISHES_MAX: Final = 2  # the second time where the files were gone
WAITING_MAX: Final = 4  # turns in memory; where the disk is slower than this, the next one brings more rows

Write = Callable[[], None]


@dataclass(slots=True, eq=False)
class Chain:
    """What is kept of a job's lane, from row 0 on.

    Of the crank
    prefilled    tokens whose rows one call made; each one after them had its own
    whole, stop  rows that were handed over for segments, and rows in all

    Of the writer
    link, last   after the newest segment, and after the newest row of the tail
    tail         the file of the tail, where there is one
    begun        whether the folder is there
    gone         whether it was there, and somebody has removed it. Set once, and read by the crank
    """

    folder: Path
    prefilled: int
    link: bytes
    last: bytes
    whole: int = 0
    stop: int = 0
    tail: Path | None = None
    begun: bool = False
    gone: bool = False


class RestoredRows(NamedTuple):
    """Rows that are back, and how many of them one call had made (see `Job`)."""

    rows: int
    prefilled: int


class Segments:
    """The segments of all jobs of one worker, in a folder for each under `directory`.

    every    rows of the tail after which they become a segment
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
        self._chains: dict[str, Chain] = {}
        self._writer = ThreadPoolExecutor(1, "segments")
        self._waiting: list[Future[None]] = []
        self._say = say
        self.fault: OSError | None = None

    def follow(self, held: Iterable[tuple[Job, RowCache]]) -> list[tuple[Job, Exception]]:
        """Keep what rows these jobs have had since the last time; those whose rows could not be copied, and why."""
        if self._reading or self.fault is not None:
            return []
        self._waiting = [each for each in self._waiting if not each.done()]
        return self._hand_over(held) if len(self._waiting) < WAITING_MAX else []

    def finish(self, job: Job, cache: RowCache) -> None:
        """Keep all rows of a job that is to go on elsewhere, and wait until they are written."""
        for _ in range(FINISHES_MAX):
            if self._reading or self.fault is not None:
                return
            if self._hand_over([(job, cache)]):
                return  # whoever goes on with the job computes the rows again
            wait(self._waiting)
            if not self._chains[job.name].gone:
                return

    def leave(self, job: Job) -> None:
        """The job is not this worker's any more: leave to others what was kept of it."""
        self._chains.pop(job.name, None)

    def restore(self, job: Job, cache: RowCache, tokens: Sequence[int], most: int) -> RestoredRows | None:
        """Put back the longest run of kept rows of `tokens` into the job's empty lane, `most` at most.

        None where they do not even reach beyond those that one call made: the rest could not follow to the same bits.
        """
        if (lane := job.lane) is None:
            return None
        wait(self._waiting)  # rows of the lane that was lost may still be on their way
        folder, parts, whole, link, prefilled = self._folder(job), list[Tensor](), 0, b"", 0
        with ThreadPoolExecutor(READERS) as readers:
            named = list(by_name(folder, most))
            read = readers.map(rows_of, named, repeat(cache.abi))
            for segment, rows in zip(named, read, strict=True):
                if rows is None:
                    break
                if not parts:
                    prefilled, link = rows.prefilled, self._origin(job, cache, rows.prefilled)
                found = link_of(link, segment.start, tokens[segment.start : segment.stop], rows.digest)
                if found != segment.link:
                    break
                link, whole = found, segment.stop
                parts.append(rows.tensor)
        if not parts:
            return None
        good, tail = {segment.path for segment in named[: len(parts)]}, tail_of(folder, whole)
        after, last = read_tail(tail, link, whole, tokens[whole:most], parts[0][:, :, :, :1])
        stop = whole + len(after)
        if stop < prefilled:
            return None
        cache.restore(lane, [*parts, *after])
        chain = Chain(folder, prefilled, link, last, stop, stop, tail if after else None, begun=True)
        self._chains[job.name] = chain
        writes: list[Write] = [partial(self._prune, folder, good | {tail})]
        if after:  # its rows become a segment: whoever had the job before may still be adding to its file
            rows_after = cache.rows(lane, whole, stop)
            writes.append(partial(self._segment, chain, whole, tokens[whole:stop], rows_after))
        else:
            writes.append(partial(tail.unlink, missing_ok=True))
        if not self._reading:
            self._submit([(chain, writes)])
        return RestoredRows(stop, prefilled)

    def forget(self, job: Job) -> None:
        """The job has ended, or its rows are others: remove what was kept of it."""
        self._chains.pop(job.name, None)
        if not self._reading:
            self._writer.submit(shutil.rmtree, self._folder(job), ignore_errors=True)

    def close(self) -> None:
        """Wait until everything is written. Idempotent."""
        self._writer.shutdown()

    # ---- on the crank's thread -------------------------------------------------------------------------------------

    def _hand_over(self, held: Iterable[tuple[Job, RowCache]]) -> list[tuple[Job, Exception]]:
        turn, faults = list[tuple[Chain, list[Write]]](), list[tuple[Job, Exception]]()
        for job, cache in held:
            try:
                turn.append(self._new(job, cache))
            except Exception as fault:
                self.leave(job)  # its chain may be ahead of what is written
                faults.append((job, fault))
        if turn := [(chain, writes) for chain, writes in turn if writes]:
            self._submit(turn)
        return faults

    def _submit(self, turn: Sequence[tuple[Chain, Sequence[Write]]]) -> None:
        self._waiting.append(self._writer.submit(self._write, turn))

    def _new(self, job: Job, cache: RowCache) -> tuple[Chain, list[Write]]:
        """The job's chain, and what is to be written for the rows that it lacks."""
        chain, lane, writes = self._chains.get(job.name), job.lane, list[Write]()
        if chain is None or chain.gone or chain.prefilled != job.prefilled:
            first = self._origin(job, cache, job.prefilled)
            chain = self._chains[job.name] = Chain(self._folder(job), job.prefilled, first, first)
        if lane is None or lane.length <= chain.stop:
            return chain, writes
        # A segment has only rows that a resume will know the tokens of, and not that of a score row still to be made
        # again: whatever has come since the newest commit that is durable stays in the tail.
        durable = 0 if job.durable.transcript.state is None else job.durable.transcript.state.frontier.processed - 1
        whole = max(durable, chain.prefilled)
        if not chain.whole or whole - chain.whole >= self._every:
            ids = _ids(job, chain.whole, whole)
            for at in range(chain.whole, whole, ROWS_MAX):
                end = min(at + ROWS_MAX, whole)
                rows = cache.rows(lane, at, end)
                writes.append(partial(self._segment, chain, at, ids[at - chain.whole : end - chain.whole], rows))
            chain.whole = chain.stop = whole
        if lane.length > chain.stop:
            rows, ids = cache.rows(lane, chain.stop, lane.length), _ids(job, chain.stop, lane.length)
            writes.append(partial(self._append, chain, tail_of(chain.folder, chain.whole), chain.stop, ids, rows))
            chain.stop = lane.length
        return chain, writes

    # ---- on the writer's thread ------------------------------------------------------------------------------------

    def _write(self, turn: Sequence[tuple[Chain, Sequence[Write]]]) -> None:
        for chain, writes in turn:
            try:
                for write in writes:
                    if not chain.gone:
                        write()
            except FileNotFoundError:
                chain.gone = True
            except OSError as problem:
                if self.fault is None:
                    self.fault = problem
                    if self._say is not None:
                        self._say(problem)

    def _segment(self, chain: Chain, start: int, ids: Sequence[int], rows: Tensor) -> None:
        """Write a segment; the tail before it is no longer needed."""
        if not chain.begun:
            shutil.rmtree(chain.folder, ignore_errors=True)  # of another chain
            chain.folder.mkdir(parents=True, exist_ok=True)
            chain.begun = True
        link = link_of(chain.link, start, ids, digest_of(rows))
        path = chain.folder / file_name(start, start + len(ids), link)
        part = path.with_suffix(f".{os.getpid()}")
        private.make(part)
        part.write_bytes(content_of(rows, chain.prefilled))
        part.replace(path)
        chain.link = chain.last = link
        if chain.tail is not None:
            chain.tail.unlink(missing_ok=True)
            chain.tail = None

    def _append(self, chain: Chain, tail: Path, start: int, ids: Sequence[int], rows: Tensor) -> None:
        """Add rows to the tail. It is opened by its name each time, so that it is missed where it was removed."""
        records, chain.last = records_of(chain.last, start, ids, rows)
        how = os.O_APPEND if tail == chain.tail else os.O_CREAT | os.O_TRUNC
        with open(private.opened(str(tail), os.O_WRONLY | how | os.O_CLOEXEC), "wb") as file:
            file.write(records)
        chain.tail = tail

    def _prune(self, folder: Path, good: AbstractSet[Path]) -> None:
        """Remove what is of no chain, so that it never stands in the way of what is to come."""
        for path in folder.glob("*"):
            if path not in good:
                path.unlink(missing_ok=True)

    # ---- names -----------------------------------------------------------------------------------------------------

    def _folder(self, job: Job) -> Path:
        return folder_of(self._directory, job.state.spec.binding)

    def _origin(self, job: Job, cache: RowCache, prefilled: int) -> bytes:
        return origin(job.state.spec.binding, str(cache.abi), prefilled)


def _ids(job: Job, start: int, stop: int) -> list[int]:
    """The token ids of rows [start, stop); the newest may not be durable yet."""
    prompt, output = job.state.spec.prompt, job.durable.transcript.token_ids
    offset = len(prompt)
    ids = [*prompt[start:stop], *output[max(start - offset, 0) : max(stop - offset, 0)]]
    return ids if len(ids) == stop - start or job.token is None else [*ids, job.token]
