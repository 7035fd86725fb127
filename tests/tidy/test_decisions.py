"""docs/reference/decisions.md says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import code_tables
import decisions
import pytest

from decodelog.fsm.request.transforms import SEALED_ORDER

TESTS = Path(__file__).parent.parent
LISTED = """
first  one line
second, third     words that
                  go on
A sentence ends the list.
    deeper   another one
not a row
"""


def test_the_page_is_what_the_code_generates() -> None:
    assert decisions.PAGE.read_text("utf-8") == decisions.page(), "run `make docs`"


def test_each_table_is_rectangular_and_without_empty_cells() -> None:
    """Each table has as many cells in every row and none empty but by intention."""
    for block in re.findall(r"(?:^\|.*\n)+", decisions.page(), flags=re.MULTILINE):
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
        assert len({len(row) for row in rows}) == 1, block
        assert all(cell.strip() for row in rows[2:] for cell in row[1:]), block


@pytest.mark.parametrize("section", decisions.SECTIONS.values(), ids=lambda section: section.__name__)
def test_no_section_is_without_a_row(section) -> None:  # type: ignore[no-untyped-def]
    assert sum(block.count("\n|") > 1 for block in section()) >= 1


def test_names_and_words_are_read_from_a_docstring() -> None:
    class Documented:
        __doc__ = LISTED

    assert code_tables.described(Documented) == {
        "first": "one line",
        "second, third": "words that go on",
        "deeper": "another one",
    }


def test_a_processor_that_a_transform_names_is_compared_with_it() -> None:
    compared = "".join(path.read_text("utf-8") for path in (TESTS / "runtime").glob("test_policy*.py"))
    named = re.findall(r"`(\w+Logits(?:Processor|Warper))`", decisions.page())
    assert len(named) == sum(kind.processor is not None for kind in SEALED_ORDER) + 1
    assert [name for name in named if f"{name}(" not in compared] == []
