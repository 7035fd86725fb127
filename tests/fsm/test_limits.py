"""Each bound is one number in one file, and the numbers agree with each other."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from decodelog.fsm import limits
from decodelog.fsm.errors import BrokenLimits, Defect

BOUNDS = {name: value for name, value in vars(limits).items() if re.fullmatch(r"[A-Z_]+_MAX", name) and name[0] != "_"}


@pytest.mark.contract("ENV-1")
def test_every_relation_between_limits_holds() -> None:
    assert [reason for holds, reason in limits.RELATIONS if not holds] == []


@pytest.mark.contract("ENV-1")
def test_a_relation_that_does_not_hold_is_a_typed_defect_at_import() -> None:
    with pytest.raises(BrokenLimits, match="fits not") as caught:
        limits.check_relations((*limits.RELATIONS, (False, "it fits not")))
    assert isinstance(caught.value, Defect)
    assert pickle.loads(pickle.dumps(caught.value)).facts() == caught.value.facts()


@pytest.mark.contract("ENV-1")
@pytest.mark.parametrize("name", BOUNDS)
def test_every_bound_is_positive_and_has_its_reason_beside_it(name: str) -> None:
    assert BOUNDS[name] > 0
    lines = Path(limits.__file__).read_text("utf-8").splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith(f"{name}: Final"))
    assert lines[at - 1].startswith("# ")
    assert lines[at - 1].endswith((".", ":"))
