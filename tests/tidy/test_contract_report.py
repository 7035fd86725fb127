"""The report finds a mark wherever pytest honours one, and says which clauses no test names."""

from __future__ import annotations

import ast

import contract_report

SOURCE = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.contract("LOG-1")]

def helper(): ...

@pytest.mark.contract("LOG-2", "LOG-3")
def test_plain(): ...

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.contract("LOG-4"))])
async def test_parameters(x): ...

@pytest.mark.contract("LOG-5")
class TestGroup:
    pytestmark = pytest.mark.contract("LOG-6")
    def test_inside(self): ...

@pytest.mark.contract("LOG-7")
class Machine: ...

TestMachine = pytest.mark.contract(CLAUSE)(Machine.TestCase)
"""


def test_marks_are_found_wherever_pytest_honours_them() -> None:
    """Marks are found on modules classes functions parameters and machines."""
    found: dict[str, set[str]] = {}
    for clause, test in contract_report.marked(ast.parse(SOURCE).body, "t.py", []):
        found.setdefault(test, set()).add(clause)
    assert found == {
        "t.py::test_plain": {"LOG-1", "LOG-2", "LOG-3"},
        "t.py::test_parameters": {"LOG-1", "LOG-4"},
        "t.py::TestGroup::test_inside": {"LOG-1", "LOG-5", "LOG-6"},
        "t.py::Machine": {"LOG-7"},
        "t.py::TestMachine": {"LOG-1", "CLAUSE"},
    }


def test_the_page_is_what_the_marks_say() -> None:
    now = contract_report.PAGE.read_text("utf-8")
    assert contract_report.page(now, contract_report.collect(contract_report.ROOT)) == now, "run `make docs`"


def test_the_page_lists_under_each_clause_the_tests_that_name_it() -> None:
    promised = f"- **A-1** One.\n- **A-2** Two.\n\n{contract_report.MARK}"
    page = contract_report.page(promised + "what was there before", {"A-2": ["t.py::test_a", "t.py::test_b"]})
    assert (
        page
        == f"""{promised}
## The tests of each clause

### A-1

No test names it yet.

### A-2

- t.py: `test_a`, `test_b`
"""
    )


def test_the_report_lists_proven_unproven_and_unknown_clauses() -> None:
    report = contract_report.report({"A-1": "One.", "A-2": "Two."}, {"A-1": ["t.py::test_a"], "Z-9": ["t.py::test_z"]})
    assert report.splitlines() == [
        "A-1  One.",
        "    t.py::test_a",
        "",
        "A-2  Two.",
        "",
        "unproven: A-2",
        "unknown clause: Z-9 in t.py::test_z",
        "1 of 2 clauses are named by 1 tests",
    ]
