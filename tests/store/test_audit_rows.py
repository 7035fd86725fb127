"""The audit of rows over many jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from decodelog.fsm.ports import EMPTY_HEAD
from decodelog.store.log.chain import StoredLog
from decodelog.store.reading.audit import audit_rows

JOBS = 500


class Counted(str):
    """A name that counts how often it is compared with another one."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


class Many:
    """Jobs whose rows say that they are damaged."""

    def logs(self, job: str | None = None) -> Iterator[StoredLog]:
        return (StoredLog(Counted(f"job-{number}"), EMPTY_HEAD, 0, (), "damaged") for number in range(JOBS))


@pytest.mark.contract("LOG-3")
def test_no_name_is_compared_with_all_those_before_it() -> None:
    found = audit_rows(Many())
    assert (found.jobs, len(found.faults)) == (JOBS, JOBS)
    assert Counted.compared < 10 * JOBS
