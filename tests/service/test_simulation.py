"""The simulation: four thousand schedules of faults, the same ones every time, and that it finds what is broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from queue import Empty
from random import Random

import pytest
from broken_worlds import BROKEN
from commandline import decodelog

from decodelog.service.lab.simulation.faults import KINDS
from decodelog.service.lab.simulation.run import schedule, simulate
from decodelog.service.lab.simulation.scheduler import Process, Scheduler, Stuck, VirtualHost

SCHEDULES, PARTS = 4_000, 20  # `make bench` runs ten thousand
FOUND_WITHIN = 250  # of any world in which something is broken


@pytest.mark.contract(
    "LOG-7", "LOG-8", "LOG-1", "LOG-4", "FSM-6", "FSM-9", "FSM-10", "OUT-7", "OUT-8", "ENV-8", "CALL-9", "POL-5"
)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_of_faults_changes_what_a_job_comes_to(part: int) -> None:
    count = SCHEDULES // PARTS
    report = simulate(count, part * count)
    assert report.schedules == count
    assert not report.failures, "\n".join(f"{each.again}\n  {each.found}" for each in report.failures)
    assert set(report.happened) == set(KINDS)


@pytest.mark.contract("LOG-7", "LOG-8", "LOG-1", "OUT-7")
@pytest.mark.parametrize("broken", BROKEN)
def test_a_world_in_which_something_is_broken_is_found_out(broken: str) -> None:
    with BROKEN[broken]() as make:
        found = next(found for seed in range(FOUND_WITHIN) if (found := schedule(seed, make).found))
    assert "TypeError" not in found[0]


def test_a_seed_is_one_schedule_byte_for_byte_in_any_process() -> None:
    here = [simulate(20, 400).digest for _ in range(2)]
    command = ["torture", "--simulate", "20", "--seed", "400", "--json"]
    told = subprocess.run(
        [sys.executable, "-m", "decodelog", *command],
        env=os.environ | {"PYTHONHASHSEED": "77"}, capture_output=True, encoding="utf-8", timeout=600,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    there = json.loads(told.stdout)
    assert [*here, there["digest"]] == [here[0]] * 3
    assert (there["ok"], there["simulated_schedules"], there["failures"]) == (True, 20, [])
    assert simulate(20, 401).digest != here[0]


def test_the_command_says_its_seed_what_struck_and_how_to_do_it_again() -> None:
    done = decodelog("torture", "--simulate", "3", "--seed", "9")
    assert done.code == 0
    assert "seed=9 simulated_schedules=3 simulated_failures=0" in done.stdout
    assert all(
        about in " ".join(done.stdout.split()) for about in ("a process dies where it stands", "a heartbeat fails")
    )
    assert schedule(9).again == "decodelog torture --simulate 1 --seed 9"


def scheduler(switch: float = 0.5) -> Scheduler:
    return Scheduler(Random(1), switch, turns_max=1000)


def test_time_passes_only_where_everybody_waits() -> None:
    made, process, seen = scheduler(), Process("p"), []
    host = VirtualHost(made, process)

    def sleeper() -> None:
        host.sleep(5)
        seen.append(("slept", host.monotonic_s()))

    def worker() -> None:
        for _ in range(10):
            made.point(process, "busy")
        seen.append(("worked", host.monotonic_s()))

    made.start(process, "sleeper", sleeper)
    made.start(process, "worker", worker)
    made.run_until(lambda: len(seen) == 2)
    assert seen == [("worked", 0.0), ("slept", 5.0)]


def test_what_threads_wait_for_works_as_theirs_does() -> None:
    made, process = scheduler(), Process("p")
    seen: list[object] = []
    host = VirtualHost(made, process)
    flag, queue, lock = host.flag(), host.queue(), host.lock()

    def first() -> None:
        assert not flag.wait(0.5)
        with lock:
            queue.put("a")
            host.sleep(1)
            seen.append("first has the lock")
        queue.put("b")
        flag.set()

    def second() -> None:
        with pytest.raises(Empty):
            queue.get_nowait()
        seen.append(queue.get())
        with lock:
            seen.append("second has the lock")
        seen.append(queue.get())
        assert flag.wait()
        other.join()
        seen.append(host.monotonic_s())

    other = host.start(first, "first")
    host.start(second, "second")
    made.run_until(lambda: len(seen) == 5)
    assert seen == ["a", "first has the lock", "second has the lock", "b", 1.5]
    assert process.failure is None


def test_a_dead_process_unwinds_and_reaches_nobody() -> None:
    made, process, seen = scheduler(switch=0), Process("p"), []
    host = VirtualHost(made, process)

    def victim() -> None:
        try:
            host.sleep(1)
            made.kill(process)
        finally:
            made.point(process, "last words")
            seen.append("said")

    task, waiting = made.start(process, "victim", victim), made.start(process, "other", lambda: host.sleep(100))
    made.run_until(lambda: task.done)
    assert (seen, waiting.done, process.failure, made.now_ms) == ([], True, None, 1000)


def test_a_world_that_waits_for_itself_or_goes_on_for_ever_is_stuck() -> None:
    made, process = scheduler(), Process("p")
    host = VirtualHost(made, process)
    flag = host.flag()

    def wait() -> None:
        flag.wait()

    def run() -> None:
        for _ in range(10_000):
            host.sleep(1)

    made.start(process, "waiter", wait)
    with pytest.raises(Stuck, match="waits for somebody"):
        made.run_until(lambda: False)
    made.start(process, "runner", run)
    with pytest.raises(Stuck, match="too many turns"):
        made.run_until(lambda: False)
