"""One class defines a transform: what is made of it, and that nothing else lists the transforms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from policy_edges import transform_of

from decodelog.fsm.request.draft import Draft
from decodelog.fsm.request.edges import EDGES
from decodelog.fsm.request.transforms import CUTS, EDITS, QUESTIONS, SEALED_ORDER
from decodelog.fsm.request.transforms.definition import Effect
from decodelog.runtime.policy.kinds import KERNELS, Cut, Edit
from decodelog.runtime.policy.plans import kernel_of
from decodelog.service.batch.chat import SAME
from decodelog.service.cli.draft_flags import transform_flags
from decodelog.service.jobs.fork import FIELDS

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("fsm", "runtime", "service", "store")


@pytest.mark.contract("POL-2")
def test_each_definition_has_one_kernel_and_all_that_is_made_of_it() -> None:
    assert set(KERNELS) == set(SEALED_ORDER)
    assert len(set(KERNELS.values())) == len(KERNELS)
    for kind in (edge for edge in EDGES if edge.sealed is Effect.OFF):
        assert type(kernel_of(transform_of(kind))) is KERNELS[kind.question.transform]
    assert all(issubclass(KERNELS[kind], Cut) for kind in CUTS)
    assert all(issubclass(KERNELS[kind], Edit) for kind in EDITS)
    asked = {mark.keyword for kind in (*CUTS, *EDITS) for mark in kind.asked().values()}
    assert asked == QUESTIONS.keys() <= Draft.model_fields.keys()
    assert asked <= set(FIELDS["policy"])
    assert {flag.name for flag in transform_flags()} == {name for name in asked if QUESTIONS[name].asked.words}
    assert {"temperature", "top_p", "frequency_penalty", "presence_penalty"} == set(SAME) - {"seed"}


@pytest.mark.contract("POL-2")
@pytest.mark.parametrize("tag", ["xtc", "dry"])
def test_a_transform_is_written_of_in_three_places(tag: str) -> None:
    """Its definition, its kernel, and what the kernel remembers or computes with; the limits of its numbers aside."""
    word = re.compile(rf'\b{tag.capitalize()}\b|"{tag}"')
    pages = [path for folder in SHIPPED for path in (ROOT / folder).rglob("*.py")]
    named = {path.relative_to(ROOT).as_posix() for path in pages if word.search(path.read_text("utf-8"))}
    assert 2 <= len(named) <= 3, named
