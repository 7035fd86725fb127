"""The crash matrix: its quick form, that no point of it is dead, and that it finds a store that breaks its word."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from commandline import PATIENCE_S, POLL_S, decodelog, ended, environment, process

from decodelog.fsm.failpoints import MOMENTS, ONE_STATEMENT, OPERATIONS, POINTS
from decodelog.fsm.machine.states import Status
from decodelog.service.cli.commands.torture import report
from decodelog.service.lab.torture.campaign import BEATS, INSTANTS, Kill, Rehearsal, Result, Verdict, plan, points_of
from decodelog.service.lab.torture.child import ANYWHERE, Place
from decodelog.service.lab.torture.disruptions import DISRUPTIONS
from decodelog.service.lab.torture.scenes import SCENES
from decodelog.service.lab.torture.verdict import Scan

BROKEN_STORES = Path(__file__).with_name("broken_stores.py")


@pytest.mark.contract("LOG-10", "LOG-9", "RES-4", "FSM-6", "LOG-2", "LOG-4", "LOG-7", "OUT-7")
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_kill_at_any_point_leaves_old_or_new_and_the_same_end(database: str) -> None:
    """A process killed at any point leaves the old state or the new and the job the same end."""
    with process("torture", "--quick", "--db", database, "--json") as running:
        done = ended(running)
    assert done.code == 0, done.stdout + done.stderr
    report = done.json
    assert (report["ok"], report["torture_failures"], report["unreached"]) == (True, 0, {database: []})
    assert [result for result in report["results"] if result["faults"]] == []
    disrupted = {
        name for name, disruption in DISRUPTIONS.items() if database in {*disruption.kinds} & {*disruption.quick}
    } - {*report["left_out"][database]}
    assert {result["point"] for result in report["results"]} == {*points_of(database), *disrupted}
    assert {"database.locked", {"sqlite": "file.limit", "postgres": "server.away"}[database]} <= disrupted
    assert report["torture_points"] == len(report["results"])
    states = {state for result in report["results"] for state in result["state"].split("+")}
    assert states >= {"absent", *Status} - {Status.DECIDED, Status.FAILED}  # those two are met for certain below


@pytest.mark.contract("LOG-10", "FSM-10")
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@pytest.mark.parametrize(
    ("kill", "state"), [("failed:append.committed:6", "FAILED"), ("decided:tenure.loaded:1", "DECIDED")]
)
def test_a_process_is_killed_in_every_state_that_a_job_can_be_left_in(kill: str, state: str, database: str) -> None:
    """Those that a quick campaign may pass over: beside a job that has failed, and with a receipt to be consumed."""
    with process("torture", "--only", kill, "--db", database, "--json") as running:
        done = ended(running)
    assert done.code == 0, done.stdout + done.stderr
    ((result,), failures) = done.json["results"], done.json["torture_failures"]
    assert (failures, result["faults"]) == (0, [])
    assert state in result["state"].split("+")


OTHERS = ("tampered", "harmless", "unseen", "endless", "asked", "hung", "stopped")


@cache
def script(*names: str) -> Any:
    """What the script finds under each name."""
    command = [sys.executable, str(BROKEN_STORES), *names]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.contract("LOG-10", "LOG-1", "LOG-4")
def test_a_store_that_tears_turns_or_lies_about_durability_is_found() -> None:
    """A store that commits half of a turn or says durable too early is found out."""
    faults = script("sound", "halved", "early")
    assert faults["sound"] == []
    assert [fault for fault in faults["halved"] if "and the jobs have [1, 1, 0] of" in fault]
    assert [fault for fault in faults["early"] if "was shown and is not in the log" in fault]


@pytest.mark.contract("LOG-10")
def test_a_changed_log_and_an_outage_without_effect_are_found() -> None:
    """A log that is changed under its workers and harm that meets nobody are found out."""
    found = script(*OTHERS)
    assert [fault for fault in found["tampered"] if "the undisturbed run" in fault or fault.startswith("audit: ")]
    assert "no worker has ended with DatabaseLocked" in found["harmless"]


@pytest.mark.contract("LOG-10")
def test_a_hanging_process_is_ended_and_a_stopped_one_is_not_late() -> None:
    """A process that hangs is ended and says where and one that somebody stops is not late."""
    found = script(*OTHERS)
    assert found["hung"][0].startswith("not over after 3 s; its threads stood at File ")
    assert found["stopped"] == []


@pytest.mark.contract("LOG-10")
def test_an_aborted_siege_leaves_neither_processes_nor_locks() -> None:
    """A siege that breaks off or does not end leaves neither processes nor locks."""
    found = script(*OTHERS)
    assert [fault for fault in found["unseen"] if fault.startswith("the logs could not be looked at")]
    assert "a worker is still at it 0.5 s after the outage was over" in found["endless"]
    assert [fault for fault in found["unseen"] + found["endless"] if " is left" in fault] == []


def test_a_process_asked_to_end_first_registers_what_it_began() -> None:
    """Who is asked to end does so when what it has begun is known and a copy at once."""
    ended_by = f"the copy ended by {signal.SIGTERM.value}"
    assert script(*OTHERS)["asked"] == ["inner end", "outer end", "ended", ended_by]


def processes_of(folder: Path) -> Iterator[str]:
    """The commands of processes that work for a command with this folder for its files."""
    for each in Path("/proc").glob("[0-9]*"):
        try:
            words = (each / "cmdline").read_bytes()
            told = words + (each / "environ").read_bytes()
        except (OSError, ProcessLookupError):
            continue
        if str(folder).encode() in told:
            yield words.decode("utf-8", "replace")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for temporary files that a server's own user may pass, with a name short enough for its socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize(
    ("kill", "database", "begun"),
    [
        ("load:database.locked:1", "sqlite", "holder-marks"),
        ("load:disk.full:1", "sqlite", "disk/ballast"),
        ("load:server.away:1", "postgres", "postgres/postmaster.pid"),
    ],
)
def test_a_command_that_is_asked_to_end_leaves_nothing_behind(
    kill: str, database: str, begun: str, folder: Path
) -> None:
    here = environment(TMPDIR=str(folder))
    with process("torture", "--only", kill, "--db", database, env=here) as running:
        until = time.monotonic() + PATIENCE_S
        while not [*folder.glob(f"decodelog-torture-*/{begun}")] and running.poll() is None:
            assert time.monotonic() < until, "it did not come to that"
            time.sleep(POLL_S)
        busy = [*processes_of(folder)]
        running.send_signal(signal.SIGTERM)
        done = ended(running)
    if "may not mount" in done.stderr:
        pytest.skip("this user may not mount a disk to fill")
    assert done.code == 128 + signal.SIGTERM, done.stdout + done.stderr
    assert busy
    assert [*processes_of(folder)] == []
    assert str(folder) not in Path("/proc/mounts").read_text()
    assert [*folder.glob("decodelog-torture-*")] == []


@pytest.mark.contract("LOG-10")
def test_one_kill_can_be_repeated_by_its_name() -> None:
    only = ("--only", "decided:append.commit:3", "--only", "pending:anywhere:400", "--only", "load:database.read:4")
    with process("torture", *only, "--db", "sqlite", "--json") as running:
        result, anywhere, disruption = ended(running).json["results"]
    assert (anywhere["point"], anywhere["nth"], anywhere["faults"]) == ("anywhere", 400, [])
    assert (disruption["point"], disruption["nth"], disruption["faults"]) == ("database.read", 4, [])
    assert [result[key] for key in ("scene", "point", "nth", "state", "faults")] == [
        "decided", "append.commit", 3, "DECIDED", [],
    ]  # fmt: skip


@pytest.mark.contract("LOG-10")
def test_a_full_plan_has_every_place_and_a_quick_one_every_point_once() -> None:
    nothing = Scan({}, [], {})
    counts = Counter(dict.fromkeys(POINTS, 3))
    rehearsals = {scene: Rehearsal(nothing, nothing, counts, 0.1) for scene in SCENES}
    places = Counter(place.point for _, place in plan(rehearsals, quick=False))
    assert places.pop(ANYWHERE) == len(SCENES) * (INSTANTS - 1)
    assert places == {
        point: len(SCENES) * (BEATS if point.startswith("heartbeat.") else 3) for point in POINTS
    }  # fmt: skip
    quick = plan(rehearsals, quick=True)
    assert [place.point for _, place in quick] == list(POINTS)
    assert {scene for scene, _ in quick} == set(SCENES)
    alone = {SCENES[0]: Rehearsal(nothing, nothing, Counter({"call.before": 1}), 0.1)}
    assert plan(alone, quick=True) == [(SCENES[0], Place("call.before", 1))]


def test_points_and_scenes_are_listed_with_what_they_are() -> None:
    listed = decodelog("torture", "--list", "--json").json
    assert listed["points"] == POINTS
    assert list(listed["scenes"]) == [scene.name for scene in SCENES]
    assert {f"{operation}.{moment}" for operation in OPERATIONS for moment in MOMENTS} <= set(POINTS)
    assert set(POINTS) - set(points_of("postgres")) == ONE_STATEMENT
    assert list(listed["disruptions"]) == list(DISRUPTIONS)
    assert "decided" in decodelog("torture", "--list").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("--only", "decided"),
        ("--only", "decided:nowhere:1"),
        ("--only", "nothing:call.before:1"),
        ("--only", "decided:call.before:0"),
        ("--only", "decided:database.read:1"),
        ("--only", "load:call.before:1"),
        ("--only", "submitted:anywhere:1:junk"),
        ("--only", "submitted:anywhere:1:"),
        ("--only", "submitted:anywhere:1000000"),
        ("--db", "mysql://localhost/x"),
        ("--db", "sqlite", "--only", "load:server.away:1"),
        ("--db", "postgres", "--only", "load:file.limit:1"),
        ("--db", "postgresql://127.0.0.1:1/x", "--only", "load:server.away:1"),
        ("--db", "postgresql://127.0.0.1:1/x", "--only", "load:disk.full:1"),
        ("--db", "postgres", "--only", f"decided:{min(ONE_STATEMENT)}:1"),
        ("--db", "sqlite", "--only", "decided:append.commit:3", "--only", "load:server.away:1"),
        ("--simulate", "0"),
        ("--seed", "0"),
        ("--seed", "7", "--only", "decided:append.commit:3"),
    ],
)
def test_wrong_use_is_refused(arguments: tuple[str, ...]) -> None:
    refused = decodelog("torture", *arguments, "--json")
    assert (refused.code, refused.error["code"]) == (2, "wrong_use")


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (("--simulate", "1", "--only", "decided:append.commit:3"), "--simulate and --only"),
        (("--simulate", "1", "--db", "sqlite", "--quick"), "--simulate and --db and --quick"),
        (("--list", "--simulate", "1"), "--list and --simulate"),
        (("--list", "--seed", "0"), "--list and --seed"),
        (("--list", "--only", "decided", "--db", "sqlite", "--quick"), "--list and --only and --db and --quick"),
        (("--quick", "--only", "decided:append.commit:3"), "--only and --quick"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(arguments: tuple[str, ...], flags: str) -> None:
    refused = decodelog("torture", *arguments, "--json")
    assert (refused.code, refused.error["code"], refused.error["flags"]) == (2, "conflicting_flags", flags)


@pytest.mark.parametrize("url", ["postgresqlfoo", "postgresqlfoo://localhost/x", "postgresql://localhost:port/x"])
def test_a_malformed_server_name_is_refused_before_any_kill(url: str) -> None:
    """What only begins as the name of a server is no database and is refused before any kill."""
    refused = decodelog("torture", "--db", "sqlite", "--db", url, "--json")
    assert (refused.code, refused.error["code"]) == (2, "unsupported_database")


def test_what_went_wrong_can_be_done_again_as_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    url = "postgresql://localhost/a b"
    wrong = Result(Kill("postgres", "decided", Place("call.before", 1)), "DECIDED", ["it is lost"])
    assert report({url: Verdict([wrong], [])}, {}, 1.0, json=False) == 1
    assert "  again: decodelog torture --only decided:call.before:1 --db 'postgresql://localhost/a b'\n" in (
        capsys.readouterr().out
    )
