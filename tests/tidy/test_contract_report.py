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


def test_marks_are_found_on_modules_classes_functions_parameters_and_machines() -> None:
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
