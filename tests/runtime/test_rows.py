"""No request's bits depend on its place in a call: by construction, and by a probe that replaces what fails it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import row_places
import torch
from row_places import SHAPES, Finding, alike, decoded, shape
from torch import Tensor

from decodelog.fsm.errors import SessionOfAnotherThread, UnequalRows
from decodelog.runtime.families.decoder import model as decoders
from decodelog.runtime.families.decoder import probe
from decodelog.runtime.families.decoder.facts import runtime_facts
from decodelog.runtime.families.decoder.model import seeded_decoder
from decodelog.runtime.families.session import Decode, Prefill, Session

KERNELS = {
    "those of processors without AVX-512": {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "those of processors without AVX": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ATEN_CPU_CAPABILITY": "default"},
    "those of any processor": {"MKL_CBWR": "COMPATIBLE"},
}
"""Environments that have MKL and torch take other kernels, where the processor has them. Some treat rows unequally."""


def found(widths: str, *shapes: str, kernels: dict[str, str] | None = None) -> list[Finding]:
    """What a process of its own finds. Its threads sleep where they wait: test processes run side by side."""
    environment = {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(Path(row_places.__file__).parent)} | (kernels or {})
    command = [sys.executable, row_places.__file__, widths, *shapes]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    findings = [Finding(*each) for each in json.loads(done.stdout)]
    assert len(findings) == len(shapes) * 2 * len(row_places.WIDTHS[widths])
    return findings


@pytest.mark.timeout(600)
@pytest.mark.contract("POL-7", "CALL-6")
@pytest.mark.parametrize("name", SHAPES)
def test_a_request_has_the_same_bits_in_every_place_at_every_width(name: str) -> None:
    assert [finding for finding in found("every", name) if not finding.alike] == []


@pytest.mark.timeout(600)
@pytest.mark.contract("POL-7", "CALL-6")
@pytest.mark.parametrize("name", KERNELS)
def test_other_kernels_keep_the_bits_too(name: str) -> None:
    """Most of these treat the rows of some widths unequally; those widths are computed as others."""
    findings = found("some", *SHAPES, kernels=KERNELS[name])
    assert [finding for finding in findings if not finding.alike] == []


# ---- a kernel that treats rows unequally -----------------------------------------------------------------------------


def unequal(monkeypatch: pytest.MonkeyPatch, spoils: Any) -> None:
    """Let the products of calls of some numbers of rows round their last row otherwise."""
    project = decoders._project

    def rounding(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
        project(x, weight, bias, out)
        if spoils(len(x)):
            out[-1] = torch.nextafter(out[-1], torch.full_like(out[-1], torch.inf))

    monkeypatch.setattr(decoders, "_project", rounding)


@pytest.mark.contract("POL-7")
@pytest.mark.parametrize(
    ("spoilt", "width", "rows"),
    [
        (set(), 3, 3),
        ({3}, 3, 4),
        ({3, 4, 5}, 3, 6),
        (set(range(3, 40)), 3, 2),
        (set(range(2, 80)), 40, 1),
        (set(range(33, 80)), 40, 32),
    ],
)
def test_a_width_that_fails_the_probe_is_computed_as_one_that_passes(
    monkeypatch: pytest.MonkeyPatch, spoilt: set[int], width: int, rows: int
) -> None:
    unequal(monkeypatch, lambda count: count in spoilt)
    assert alike(seeded_decoder(shape("tiny"), 3), width) == (rows, True)


@pytest.mark.contract("POL-7")
def test_without_the_probe_such_a_kernel_would_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    unequal(monkeypatch, lambda count: count == 3)
    decoder = seeded_decoder(shape("tiny"), 3)
    decoder.probed = {(3, torch.get_num_threads()): True}
    assert alike(decoder, 3) == (3, False)


@pytest.mark.contract("POL-7")
def test_a_stack_on_which_slots_differ_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = decoders._attend_rows

    def by_slot(work: Any, windows: Any) -> Tensor:
        mixed = attend(work, windows)
        if windows[0].keys.storage_offset():
            mixed[0] = torch.nextafter(mixed[0], torch.full_like(mixed[0], torch.inf))
        return mixed

    monkeypatch.setattr(decoders, "_attend_rows", by_slot)
    decoder = seeded_decoder(shape("tiny"), 3)
    with pytest.raises(UnequalRows, match="batch width of 4"):
        Session(decoder, decoder.new_arena(4, 8), width=4)


@pytest.mark.contract("POL-7", "CALL-10")
def test_the_outcome_is_recorded_and_found_once_for_each_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    unequal(monkeypatch, lambda count: count == 2)
    decoder, probed = seeded_decoder(shape("tiny"), 3), list[object]()
    inner = probe._probe

    def noted(shallow: Any, rows: Any) -> Any:
        probed.append(rows)
        return inner(shallow, rows)

    monkeypatch.setattr(probe, "_probe", noted)
    for _ in range(2):
        with Session(decoder, decoder.new_arena(3, 8), width=2) as session:
            assert dict(session.recorded)["call_rows"] == "3"
    assert probed == [2, 3]
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with Session(decoder, decoder.new_arena(3, 8), width=2) as session:
            assert session.call_rows == 3
    finally:
        torch.set_num_threads(threads)
    assert probed == [2, 3, 2, 3]


@pytest.mark.contract("CALL-3")
def test_a_probe_leaves_the_model_as_it_was() -> None:
    decoder = seeded_decoder(shape("tiny"), 3)
    before = decoder.binding(), runtime_facts(decoder), [parameter.clone() for parameter in decoder.parameters()]
    with Session(decoder, decoder.new_arena(3, 8), width=3):
        pass
    assert (decoder.binding(), runtime_facts(decoder)) == before[:2]
    assert all(map(torch.equal, decoder.parameters(), before[2]))


# ---- one thread a session --------------------------------------------------------------------------------------------


def in_thread(name: str, work: Any) -> list[Any]:
    """What `work` returned or raised in a thread of that name."""
    ends: list[Any] = []

    def run() -> None:
        try:
            ends.append(work())
        except Exception as error:
            ends.append(error)

    thread = Thread(target=run, name=name)
    thread.start()
    thread.join()
    return ends


@pytest.mark.contract("CALL-3", "API-3")
def test_a_session_refuses_a_second_thread_by_name_and_goes_on() -> None:
    decoder = seeded_decoder(shape("tiny"), 3)
    with Session(decoder, decoder.new_arena(3, 8)) as session:
        lane = session.open("mine", 8)
        ticket = session.prepare([Prefill(lane, [1, 2])])
        misuses = {
            "open": lambda: session.open("other", 8),
            "prepare": lambda: session.prepare([Prefill(lane, [1])]),
            "select": lambda: session.select(ticket),
            "discard": lambda: session.discard(ticket),
            "reset": session.reset,
            "release": lambda: session.release(lane),
            "rows": lambda: session.rows(lane, 0, 1),
            "restore": lambda: session.restore(lane, []),
        }
        for name, misuse in misuses.items():
            (refused,) = in_thread(name, misuse)
            assert isinstance(refused, SessionOfAnotherThread), name
            assert (refused.owner, refused.caller) == ("MainThread", name)
        assert len(session.select(ticket)) == 1  # nothing has changed
        assert len(session.select(session.prepare([Decode(lane, 3)]))) == 1


@pytest.mark.contract("API-3", "POL-7")
def test_sessions_of_two_threads_share_the_weights_and_compute_the_same() -> None:
    decoder = seeded_decoder(shape("real"), 3)

    def work() -> Tensor:
        with Session(decoder, decoder.new_arena(3, 33), width=2) as session:
            return torch.stack([torch.stack([*decoded(session, [0, 1]).values()]) for _ in range(20)])

    alone, ends = work(), list[Any]()
    threads = [Thread(target=lambda: ends.append(work())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [torch.equal(end, alone) for end in ends] == [True, True]
