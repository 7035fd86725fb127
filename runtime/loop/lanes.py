"""A job's lanes as parts of a file: its K/V rows, linked to the job, its request, its tokens and the cache's ABI.

The parts are segments (see `segments`) that lie in one file instead of a folder of many.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from ...fsm.errors import BrokenSnapshot, CallFailed
from ...fsm.machine.spec import Spec
from ...fsm.machine.transition import RebuildLanes
from .. import private
from ..caches.segment_files import content_of, digest_of, file_name, folder_of, link_of, origin, prefilled_of
from ..families.session import Decode
from ..model.port import ModelSession, RowCache
from .batcher import Batcher
from .job import Job
from .segments import ROWS_MAX


class Part(NamedTuple):
    """Rows [start, stop) of every lane, as a safetensors file with the one tensor `rows`, and their link."""

    start: int
    stop: int
    link: bytes
    content: bytes


class Lanes(NamedTuple):
    """A job's lanes, all at one frontier.

    abi          of the cache, in words
    rows         processed tokens that the lanes hold
    recomputed   tokens whose rows had to be computed for this
    parts        one at a time
    """

    abi: str
    rows: int
    recomputed: int
    parts: Iterator[Part]


@contextmanager
def lanes_of(job: Job, batcher: Batcher, repaired: bool) -> Iterator[Lanes | None]:
    """The job's lanes, at its processed frontier, for as long as the block lasts; None where the model has no K/V rows.

    batcher    has the job's lane, or brings it back; with a spare row where repaired
    repaired   let a call append the unprocessed suffix, whose scores are discarded; the log does not hear of it
    Errors: what a call can fail with, as `CallFailed`.
    """
    session = batcher.session(job)
    if session.cache is None:
        yield None
        return
    try:
        yield _lanes(job, batcher, session, session.cache, repaired)
    finally:
        if job.lane is not None:
            session.release(job.lane)
            job.lane = None


def _lanes(job: Job, batcher: Batcher, session: ModelSession, cache: RowCache, repaired: bool) -> Lanes:
    frontier, recomputed = job.state.frontier, 0
    if job.lane is None and frontier.processed:
        called = batcher.call_alone(job)
        if not isinstance(report := called.report[0], RebuildLanes):
            raise CallFailed(f"the lanes of job {job.name} could not be rebuilt ({report})")
        recomputed = report.tokens
    ids = [*job.state.spec.prompt, *job.durable.transcript.token_ids]
    if repaired and frontier.unprocessed and job.lane is not None:
        session.select(session.prepare([Decode(job.lane, token) for token in ids[frontier.processed :]]))
    rows = 0 if job.lane is None else job.lane.length
    return Lanes(str(cache.abi), rows, recomputed, _parts(job, cache, ids[:rows]))


def _parts(job: Job, cache: RowCache, ids: Sequence[int]) -> Iterator[Part]:
    link = origin(job.state.spec.binding, str(cache.abi), job.prefilled)
    # The last row is a part of its own: where its score row is still to be consumed, its call is made again.
    last = max(len(ids) - 1, 0)
    for start in (*range(0, last, ROWS_MAX), *range(last, len(ids))):
        stop = min(start + ROWS_MAX, last) if start < last else len(ids)
        if job.lane is None:
            return
        rows = cache.rows(job.lane, start, stop)
        link = link_of(link, start, ids[start:stop], digest_of(rows))
        yield Part(start, stop, link, content_of(rows, job.prefilled))


def checked(spec: Spec, abi: str, ids: Sequence[int], parts: Iterable[Part]) -> Iterator[Part]:
    """The parts, each proven to hold rows of just these tokens of this job. Errors: BrokenSnapshot."""
    link, at = b"", 0
    for part in parts:
        rows = _rows(part)
        if rows is not None and not at:
            link = origin(spec.binding, abi, prefilled_of(part.content))
        if part.start != at or not at < part.stop <= len(ids) or rows is None or rows.shape[3] != part.stop - at:
            raise BrokenSnapshot(spec.job, f"its rows from {at} on are not there")
        link = link_of(link, at, ids[at : part.stop], digest_of(rows))
        if link != part.link:
            raise BrokenSnapshot(spec.job, f"its rows {at} to {part.stop} are not those of the job's tokens")
        at = part.stop
        yield part
    if at != len(ids):
        raise BrokenSnapshot(spec.job, f"it has {at} rows of each lane, and says {len(ids)}")


def _rows(part: Part) -> Tensor | None:
    try:
        rows = load(part.content)["rows"]
        prefilled_of(part.content)
    except (SafetensorError, KeyError, ValueError):
        return None
    return rows if rows.dim() == 5 else None


def put(directory: Path, spec: Spec, parts: Iterable[Part]) -> None:
    """Lay parts down where a worker with this folder of caches looks for them. Errors: OSError."""
    folder = folder_of(directory, spec.binding)
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        path = folder / file_name(part.start, part.stop, part.link)
        new = folder / f".{secrets.token_hex(4)}.{os.getpid()}"
        try:
            private.make(new)
            new.write_bytes(part.content)
            new.replace(path)
        finally:
            with suppress(OSError):
                new.unlink()
