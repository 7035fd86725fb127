"""Erasing with a kept cache: nothing of a live job goes, and the cache goes before the content."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from commandline import decodelog
from databases import database_store

from decodelog.fsm.errors import JobNotEnded
from decodelog.runtime.caches.segment_files import folder_of
from decodelog.service.jobs.cancel import cancel
from decodelog.service.jobs.incarnation import new_worker_name
from decodelog.service.retention.caches import binding
from decodelog.service.retention.erase import check_ended, erase
from decodelog.store.engine import DatabaseStore

pytestmark = pytest.mark.contract("LOG-9")


@pytest.fixture
def log(sqlite_url: str) -> Iterator[DatabaseStore]:
    with closing(database_store(sqlite_url)) as store:
        yield store


@pytest.fixture
def job(sqlite_url: str, long_model: Path) -> str:
    """The name of a job that would never end by itself."""
    request = ("submit", "--model", long_model, "--prompt", "Go", "--max-new-tokens", "until_context")
    return decodelog(*request, db=sqlite_url).stdout.strip()


def cached(log: DatabaseStore, job: str, snapshots: Path) -> Path:
    """A file in the folder where the job's rows are kept."""
    folder = folder_of(snapshots, binding(log.row(job)))
    folder.mkdir(parents=True)
    (folder / "rows").write_bytes(b"rows")
    return folder / "rows"


def test_a_live_job_loses_neither_its_cache_nor_its_content(log: DatabaseStore, job: str, tmp_path: Path) -> None:
    """The cache would go first: it is asked before that whether the job has ended."""
    file, head = cached(log, job, tmp_path), log.row(job).head
    for snapshots in (tmp_path, None):
        with pytest.raises(JobNotEnded) as caught:
            erase(log, job, snapshots)
        assert caught.value.job == job
    assert file.read_bytes() == b"rows"
    assert (log.row(job).head, log.row(job).erased_ms) == (head, None)
    with pytest.raises(JobNotEnded):
        check_ended([log.row(job)])


def test_an_ended_job_loses_both_and_a_second_time_nothing(log: DatabaseStore, job: str, tmp_path: Path) -> None:
    file = cached(log, job, tmp_path)
    cancel(log, job, new_worker_name())
    check_ended([log.row(job)])
    assert erase(log, job, tmp_path) == (job, True)
    assert not file.exists()
    assert log.row(job).erased_ms is not None
    assert erase(log, job, tmp_path) == (job, False)
