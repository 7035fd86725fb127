"""Workers beside a program, each in a thread of its own that ends with the program, with its log, or when told to.

The threads are daemons: a program that ends with one still at work is not kept from ending. It is stopped after its
turn then, and its jobs are released.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Collection
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...runtime.loop.worker import Worker

_running: dict[Future[None], tuple[Worker, Any]] = {}
_lock = threading.Lock()


def begin(
    worker: Worker, store: object, jobs: Collection[str] | None = None, drain: bool = False, asked: bool = False
) -> Future[None]:
    """Run a worker over `store` in a thread; its future has what ended it. See `Worker.run`."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            worker.run(jobs, drain, asked)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        finally:
            with _lock:
                _running.pop(done, None)

    with _lock:
        _running[done] = worker, store
    threading.Thread(target=run, name=f"decodelog {worker.name}", daemon=True).start()
    return done


def end_all(store: object = None) -> None:
    """Stop the workers over `store`, or all, each after its turn, and wait for them."""
    with _lock:
        found = [(done, worker) for done, (worker, of) in _running.items() if store is None or of is store]
    for _, worker in found:
        worker.stop()
    wait([done for done, _ in found])


atexit.register(end_all)
