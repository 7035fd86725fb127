"""The Python API in an event loop: the same names, awaited; readers without threads, cancelled at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from commandline import PATIENCE_S, TEXT

import decodelog

pytestmark = pytest.mark.contract("API-3")

Program = Callable[[decodelog.AsyncLog], Coroutine[Any, Any, None]]


def run(url: str, program: Program) -> None:
    async def whole() -> None:
        async with await decodelog.aopen(url) as log:
            await asyncio.wait_for(program(log), PATIENCE_S)

    asyncio.run(whole())
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("decodelog")]
    assert left == []


def test_a_job_is_submitted_run_read_and_proven(sqlite_url: str, short_model: Path) -> None:
    async def program(log: decodelog.AsyncLog) -> None:
        job = await log.submit(str(short_model), prompt="say")
        assert "".join([piece.text async for piece in job.run()]) == TEXT
        result = await job.result(timeout=0)
        assert (result.text, result.finish_reason) == (TEXT, "eos")
        assert [piece async for piece in job.stream()] == list(job.job.stream())
        assert (await job.audit(reexecute=True)).ok
        assert (await job.compare()).same
        assert (await log.job("@last")).name == job.name
        assert (await job.state(), (await job.peek()).text) == ("CLOSED", TEXT)
        fork = await job.fork(3, max_new_tokens=1)
        ended = await fork.cancel()
        assert ended is not None
        assert ended.effective

    run(sqlite_url, program)


def test_many_readers_cost_no_thread_each_and_see_the_same(sqlite_url: str, short_model: Path) -> None:
    readers, before = 200, threading.active_count()

    async def program(log: decodelog.AsyncLog) -> None:
        job = await log.submit(str(short_model), prompt="say")

        async def read() -> str:
            return "".join([piece.text async for piece in job.stream()])

        reading = [asyncio.ensure_future(read()) for _ in range(readers)]
        await log.changed()
        most = threading.active_count()
        async for _ in job.run():
            most = max(most, threading.active_count())
        assert await asyncio.gather(*reading) == [TEXT] * readers
        assert most - before < 60  # the loop's pool, the readers' bell and the worker

    run(sqlite_url, program)


def test_a_reader_is_cancelled_at_once(sqlite_url: str, long_model: Path) -> None:
    async def program(log: decodelog.AsyncLog) -> None:
        job = await log.submit(str(long_model), prompt="a")  # which nobody runs

        async def read() -> None:
            async for _ in job.stream():
                pass

        waiting = [asyncio.ensure_future(read()), asyncio.ensure_future(job.result())]
        await log.changed()
        for task in waiting:
            task.cancel()
        done, pending = await asyncio.wait(waiting)
        assert (len(done), pending) == (2, set())
        assert all(task.cancelled() for task in done)
        with pytest.raises(TimeoutError):
            await job.result(timeout=0.01)

    run(sqlite_url, program)


def test_a_task_that_is_cancelled_gives_its_job_back(sqlite_url: str, long_model: Path) -> None:
    async def program(log: decodelog.AsyncLog) -> None:
        job = await log.submit(str(long_model), prompt="a", max_new_tokens=2000)
        begun = asyncio.Event()

        async def go() -> None:
            async for _ in job.run():
                begun.set()

        task = asyncio.ensure_future(go())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await job.row()).owner is None
        text = "".join([piece.text async for piece in job.run()])
        assert text.encode() == (TEXT.encode() * 30)[: len(text.encode())]

    run(sqlite_url, program)


def test_what_ends_a_run_is_raised_in_the_task(sqlite_url: str, short_model: Path) -> None:
    async def program(log: decodelog.AsyncLog) -> None:
        job = await log.submit(str(short_model), prompt="a")
        (short_model / "scripted.json").unlink()
        log.log.models._loaded.clear()
        log.log.models._found.clear()
        with pytest.raises(decodelog.errors.ModelNotHere):
            async for _ in job.run():
                pass

    run(sqlite_url, program)


def test_readers_of_a_log_that_is_closed_are_told(sqlite_url: str, long_model: Path) -> None:
    async def program(log: decodelog.AsyncLog) -> None:
        job = await log.submit(str(long_model), prompt="a")
        waiting = asyncio.ensure_future(job.result())
        await log.changed()
        await log.close()
        with pytest.raises(RuntimeError, match="closed"):
            await waiting

    run(sqlite_url, program)
