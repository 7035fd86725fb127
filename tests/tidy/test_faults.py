"""The pages of docs/ name tests that exist, and docs/faults.md at least one for each kind of fault."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
TEXT = (TESTS.parent / "docs/faults.md").read_text("utf-8")
PAGES = sorted(path for path in (TESTS.parent / "docs").rglob("*.md") if path.stem != "README")
NAMED = re.compile(r"`(test_\w+)::(test_\w+)`(?: \"([^\"]+)\")?")
SOURCES = {path.stem: path.read_text("utf-8") for path in TESTS.rglob("test_*.py")}


def rows() -> list[list[str]]:
    """The cells of every row that is neither a heading nor the line below one."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line[:1] == "|"]
    return [row for row in cells if row[0] not in ("fault", "---")]


def test_every_kind_of_fault_has_a_reason_and_a_test() -> None:
    found = rows()
    assert len(found) == len({fault for fault, *_ in found}) > 40
    for fault, reason, tests in found:
        assert fault
        assert reason
        assert NAMED.sub("", tests).replace(",", "").strip() == "", tests


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = NAMED.findall(page.read_text("utf-8"))
    assert named or page.parent.name != "design", "a decision names its tests"
    for module, test, case in named:
        functions = {node.name for node in ast.walk(ast.parse(SOURCES[module])) if isinstance(node, ast.FunctionDef)}
        assert test in functions, f"{module}::{test}"
        assert not case or f'"{case}": Case(' in SOURCES[module], case


def test_it_speaks_of_no_other_project() -> None:
    """Kinds of fault, in words of our own: neither a tracker's number nor a link to one."""
    texts = [TEXT, *SOURCES.values()]
    assert not [found for text in texts for found in re.findall(r"\b[\w.-]+/[\w.-]+#\d+|\w+#\d{3,}|github\.com", text)]
