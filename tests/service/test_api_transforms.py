"""Own transforms through the Python API: submitted by name, run, proven with and without the function."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commandline import script

import decodelog
from decodelog.fsm.errors import OwnTransformMissing, SchemaViolation
from decodelog.runtime.policy import registry


def louder(scores: Any, context: Any) -> Any:
    """A q wherever the output is three tokens long, or six, or nine."""
    if len(context.output) and len(context.output) % 3 == 0:
        scores[ord("q")] += 1000
    return scores


@pytest.fixture
def log(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[decodelog.Log]:
    """A log of a process that has registered nothing."""
    monkeypatch.setattr(registry, "_registered", {})
    with decodelog.open(sqlite_url) as opened:
        yield opened


@pytest.mark.contract("ENV-9", "LOG-3")
def test_an_own_transform_is_proven_without_it_and_not_run_again(log: decodelog.Log, tmp_path: Path) -> None:
    model = str(script(tmp_path / "model", script={"text": "abcdefgh"}))
    request: dict[str, Any] = {"prompt": "say", "max_new_tokens": 7, "own_transforms": ["louder"]}
    with pytest.raises(SchemaViolation, match=r"own_transforms\[0\]"):
        log.submit(model, **request)
    registered = decodelog.register_transform("louder", 1, louder)
    assert (registered.name, registered.version) == ("louder", 1)
    job = log.submit(model, **request)
    assert "".join(piece.text for piece in job.run()) == "abcqefq"
    assert "own: is louder, version 1, of the program that made the request" in str(job.explain(step=3))
    report = job.audit(reexecute=True)
    assert (report.ok, report.faults, report.not_run) == (True, [], [])
    fork = job.fork(3, max_new_tokens=5)
    later = log.submit(model, **request, key="later")

    registry._registered.clear()
    report = log.audit(reexecute=True)
    assert report.faults == []
    assert job.name in {each.job for each in report.not_run or ()}
    assert {each.code for each in report.not_run or ()} == {"own_transform_missing"}
    assert log.audit().ok
    for waiting in (fork, later):
        with pytest.raises(OwnTransformMissing, match="louder, version 1"):
            list(waiting.run())
        assert waiting.state == "ADMITTED"

    decodelog.register_transform("louder", 1, louder)
    assert "".join(piece.text for piece in later.run()) == "abcqefq"
    assert "q" in "".join(piece.text for piece in fork.run())


@pytest.mark.contract("POL-2")
def test_jobs_with_xtc_and_dry_run_again_to_the_same_bits(log: decodelog.Log, tmp_path: Path) -> None:
    model = str(script(tmp_path / "model", script={"seed": 11, "spread": 2.0, "period": 4}))
    bent: dict[str, Any] = {"xtc_probability": 0.5, "dry_multiplier": 3.0, "dry_allowed_length": 1, "top_k": 6}
    job = log.submit(model, prompt="say", **bent, temperature=0.9, seed=5, ignore_eos=True, max_new_tokens=24)
    list(job.run())
    report = job.audit(reexecute=True)
    assert (report.ok, report.faults, report.not_run) == (True, [], [])
    assert job.compare().same
