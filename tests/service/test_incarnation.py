"""A worker's name tells whether its process is gone, and never takes another process for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from decodelog.service.jobs.incarnation import dead_workers, new_worker_name

NAME = "from decodelog.service.jobs.incarnation import new_worker_name; print(new_worker_name())"


@pytest.mark.contract("LOG-7")
def test_names_are_never_used_twice_and_this_process_is_alive() -> None:
    names = {new_worker_name() for _ in range(50)}
    assert len(names) == 50
    assert dead_workers(names) == frozenset()


@pytest.mark.contract("LOG-7")
def test_an_ended_process_is_dead_before_anybody_waits_for_it() -> None:
    """A process that has ended is dead also while nobody has waited for it."""
    with subprocess.Popen([sys.executable, "-c", NAME], stdout=subprocess.PIPE, encoding="utf-8") as child:
        assert child.stdout is not None
        name = child.stdout.read().strip()  # it has closed its output, so it is gone or about to go
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert dead_workers([name]) == {name}
    assert dead_workers([name]) == {name}


@pytest.mark.contract("LOG-7")
def test_another_process_under_the_same_number_is_not_the_worker() -> None:
    machine, pid, started, random = new_worker_name().rsplit("/", 3)
    earlier = f"{machine}/{pid}/{int(started) - 1}/{random}"
    assert dead_workers([earlier]) == {earlier}


@pytest.mark.contract("LOG-7")
@pytest.mark.parametrize("name", ["", "worker-1", "elsewhere/boot/pid:[1]/1/1/abcd", "a/b/c/not-a-number/5/abcd"])
def test_of_other_machines_and_other_names_nothing_is_known(name: str) -> None:
    assert dead_workers([name]) == frozenset()
