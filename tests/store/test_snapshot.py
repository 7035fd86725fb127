"""Logs shown while they grow: each as it was at one moment."""

from __future__ import annotations

import pytest
from steps import admit, write

from decodelog.store.engine import open_store
from decodelog.store.reading.audit import audit_rows, faults
from decodelog.store.reading.audit_walk import Walk


@pytest.mark.contract("LOG-3")
def test_a_log_that_grows_meanwhile_is_shown_with_the_head_it_had(database_url: str) -> None:
    store, other = open_store(database_url), open_store(database_url)
    writer = write(store, admit(store), 5)
    admit(store, "job-2")
    shown = store.logs()
    log = next(shown)
    rows = iter(log.rows)
    first = next(rows)
    write(other, writer, 3)
    stored = [first, *rows]
    whole = log._replace(rows=stored)
    assert whole.row is not None
    assert [each.job for each in shown] == ["job-2"]
    assert list(faults(whole, Walk())) == []
    assert (stored[-1].last, whole.row.output, whole.row.head) == (16, 5, log.head)
    assert [each.head.sequence for each in store.logs("job-1")] == [25]
    assert audit_rows(store).ok
    store.close()
    other.close()
