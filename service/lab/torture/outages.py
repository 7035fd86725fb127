"""Outages of a database while workers use it: the server goes away, its disk fills up, others hold its locks.

Each is a generator; it yields how many seconds are to pass before it goes on.
"""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from ....fsm.failpoints import Reached
from ...database import SQLITE_PREFIX
from .campaign import Campaign
from .child import Mark, Running
from .databases import Ground, OwnServer, PostgresGround, SqliteGround
from .siege import AWAY, BUSY_MS, LATE_S, PATIENCE_MS, Siege
from .signals import held_back

DISK_BYTES = {"sqlite": 16 << 20, "postgres": 160 << 20}
BLOCK_BYTES = 4096
LEFT_BLOCKS = 2  # at most, of a disk that is to be full after a few appends
HELD = "held"


class NotPermitted(Exception):
    """This user may not cause a disruption."""


def longer_s() -> float:
    """Longer than a worker waits for its database."""
    return (PATIENCE_MS + 2 * BUSY_MS) / 1000 + 0.2


# ---- the server goes away -------------------------------------------------------------------------------------


def server_away(siege: Siege) -> Iterator[float]:
    """Stop the server, crash it, and kill one of its processes, for shorter and for longer than a worker waits."""
    ground = siege.campaign.ground
    if not isinstance(ground, PostgresGround) or ground.server is None:
        raise TypeError("only a server of this command's own is stopped")
    ways = (signal.SIGINT, signal.SIGQUIT)  # `pg_ctl stop -m fast`, and as in a crash
    turned = round(siege.draw())
    for how, away_s in ((ways[turned], longer_s()), (None, 0.0), (ways[1 - turned], 0.3 * siege.draw())):
        yield 0.05 + 0.1 * siege.draw()
        siege.look()
        if how is None:
            if kill_one(ground.backends()):  # the server then ends all others, this one's too, and recovers
                late = time.monotonic() + LATE_S
                while ground.connected() and time.monotonic() < late:
                    yield 0.01
        else:
            ground.server.stop(how)
            yield away_s
            ground.server.start()
        yield from until_back(ground)
        siege.look()


def kill_one(backends: Iterable[int]) -> bool:
    """Kill the first of these processes that is still there; whether one was. Each may end at any moment by itself."""
    for backend in backends:
        with suppress(ProcessLookupError):
            os.kill(backend, signal.SIGKILL)
            return True
    return False


def until_back(ground: PostgresGround) -> Iterator[float]:
    """Wait until the server takes connections again."""
    for _ in range(200):
        try:
            return ground.reconnect()
        except psycopg.OperationalError:
            yield 0.05
    ground.reconnect()


# ---- no room --------------------------------------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A disk of so many bytes in memory, for as long as the block lasts. Errors: NotPermitted."""
    disk = folder / "disk"
    disk.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "decodelog-torture", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotPermitted from error
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@contextmanager
def ground_on_small_disk(campaign: Campaign) -> Iterator[Ground]:
    """A database of the campaign's kind on a disk that is about to be full; a server has its own."""
    with ExitStack() as stack:
        ground: Ground
        with held_back():
            disk = stack.enter_context(small_disk(campaign.folder, DISK_BYTES[campaign.ground.name]))
            if campaign.ground.name == SqliteGround.name:
                ground = stack.enter_context(closing(SqliteGround(disk)))
            else:
                server = stack.enter_context(closing(OwnServer(disk)))
                ground = stack.enter_context(closing(PostgresGround(server.url, server)))
        yield ground


def disk_full(siege: Siege) -> Iterator[float]:
    """Fill the disk that the database is on, for longer than a worker waits, and for shorter."""
    ground, ballast = siege.campaign.ground, siege.campaign.folder / "disk" / "ballast"
    for full_s in (longer_s(), 0.2 * siege.draw()):
        yield 0.05 + 0.1 * siege.draw()
        siege.look()
        fill(ballast, round(LEFT_BLOCKS * siege.draw()))
        yield full_s
        if full_s >= longer_s():
            yield from until_met(siege)
        ballast.unlink()
        if isinstance(ground, PostgresGround) and ground.server is not None:
            ground.server.start()  # where it could not go on itself
            yield from until_back(ground)
        siege.look()


def until_met(siege: Siege) -> Iterator[float]:
    """Wait until the outage has ended a worker, for slow machines; else until no worker is left."""
    late = time.monotonic() + LATE_S
    while not (siege.over or any(siege.ended[error] for error in AWAY)) and time.monotonic() < late:
        yield 0.05


def fill(ballast: Path, left: int) -> None:
    """Take all of a disk but so many blocks."""
    with ballast.open("wb") as file:
        taken = False
        while not taken:
            free = os.statvfs(file.fileno())
            wanted = free.f_bavail * free.f_frsize - left * BLOCK_BYTES
            with suppress(OSError):  # somebody else has taken of it meanwhile
                os.posix_fallocate(file.fileno(), 0, max(wanted, 1))
                taken = True


def file_limit(siege: Siege) -> Iterator[float]:
    """Have workers begin that may not make a file larger than it is, and that go on when they may."""
    ground = siege.campaign.ground
    size = Path(ground.url.removeprefix(SQLITE_PREFIX)).stat().st_size + int(100_000 * siege.draw())
    siege.hampered = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    siege.restart()
    yield longer_s()
    siege.hampered = lambda: None
    siege.look()


# ---- others hold it -------------------------------------------------------------------------------------------


def locked(siege: Siege) -> Iterator[float]:
    """Another process holds the write lock: for less than a statement waits, and for longer than a worker does."""
    for held_s in (BUSY_MS / 2000, longer_s(), BUSY_MS / 1000 + PATIENCE_MS / 2000):
        yield 0.05 + 0.1 * siege.draw()
        siege.look()
        holder = holding(siege, lock(siege.campaign, "BEGIN IMMEDIATE"), "holder-")
        yield held_s
        siege.look()
        holder.end()  # and what it held is free


def read_long(siege: Siege) -> Iterator[float]:
    """Another process reads on and on while the log grows; what it reads stays, and what it keeps is given back.

    It reads for LATE_S seconds at most, should the workers not end.
    """
    reader = holding(siege, lock(siege.campaign, "BEGIN"), "reader-")
    ground = siege.campaign.ground
    late = time.monotonic() + LATE_S
    while not siege.over and time.monotonic() < late:
        yield 0.05
        siege.look()
        if isinstance(ground, SqliteGround) and not checkpoint(ground):
            siege.faults.append("the log was given back while somebody read it")
    os.kill(reader.pid, signal.SIGTERM)
    if not (ended := reader.wait()).well:
        siege.faults.append(f"the reader ended with {ended.code or -ended.signal}: {ended.last}")
    if isinstance(ground, SqliteGround) and checkpoint(ground):
        siege.faults.append("the log cannot be given back after its reader has left")


def checkpoint(ground: SqliteGround) -> bool:
    """Move SQLite's write-ahead log into the file and empty it; whether somebody is in the way."""
    with closing(sqlite3.connect(ground.url.removeprefix(SQLITE_PREFIX), timeout=0.0)) as connection:
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return bool(busy)


COUNT = "SELECT count(*), sum(sequence) FROM jobs"


def lock(campaign: Campaign, begin: str) -> Callable[[Reached, Mark], None]:
    """A process that begins a transaction and holds it until SIGTERM; what it has read must be the same then."""
    url, sqlite = campaign.ground.url, isinstance(campaign.ground, SqliteGround)

    def body(at: Reached, mark: Mark) -> None:
        over: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: over.append(number))
        connection: Any
        if sqlite:
            connection = sqlite3.connect(url.removeprefix(SQLITE_PREFIX), isolation_level=None, timeout=30.0)
            connection.execute(begin)
        else:
            connection = psycopg.connect(url.replace("+psycopg", ""))
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            if begin != "BEGIN":
                connection.execute("LOCK TABLE jobs IN EXCLUSIVE MODE")
        seen = connection.execute(COUNT).fetchall()
        mark(HELD, 1)
        while not over:
            time.sleep(0.01)
        if (now := connection.execute(COUNT).fetchall()) != seen:
            raise RuntimeError(f"a transaction has read {seen}, and then {now}")
        connection.close()

    return body


def holding(siege: Siege, body: Callable[[Reached, Mark], None], name: str) -> Running:
    """Start a process beside the workers, and wait until it has what it holds, LATE_S seconds at most."""
    running = siege.beside(body, name)
    late = time.monotonic() + LATE_S
    while HELD not in running.told and not running.ended():
        if time.monotonic() > late:
            siege.faults.append(f"{name}{running.pid} has not come to hold anything in {LATE_S} s")
            break
        time.sleep(0.002)
    return running
