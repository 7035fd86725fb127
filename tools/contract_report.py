"""Print each clause of docs/reference/contract.md with the tests that name it, then the clauses that none names.

With --write, put that list at the end of the page. Marks are read from the source text, so nothing is imported and no
test has to be runnable.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference/contract.md"
MARK = "<!-- `make docs` writes what follows, from the marks of the tests -->\n"
CLAUSE = re.compile(r"^- \*\*([A-Z]+-\d+)\*\* (.+)$", re.MULTILINE)

Marks = dict[str, list[str]]


def clauses(text: str) -> dict[str, str]:
    """Clause number -> its line, in the document's order."""
    return dict(CLAUSE.findall(text))


def named_clauses(*nodes: ast.AST) -> list[str]:
    """Every clause named by a `pytest.mark.contract(...)` in the nodes; what is no literal comes back as its source."""
    calls = [call for node in nodes for call in ast.walk(node) if isinstance(call, ast.Call)]
    given = [argument for call in calls if ast.unparse(call.func).endswith("mark.contract") for argument in call.args]
    return [str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node) for node in given]


def marked(body: list[ast.stmt], place: str, inherited: list[str]) -> Iterator[tuple[str, str]]:
    """(clause, test) in the body of a module or class, whose own marks hold for each test in it."""
    inherited = inherited + named_clauses(*(statement for statement in body if _targets(statement, "pytestmark")))
    for statement in body:
        match statement:
            case ast.ClassDef(name=name, decorator_list=decorators):
                own = named_clauses(*decorators)
                inner = list(marked(statement.body, f"{place}::{name}", inherited + own))
                # A state machine has rules instead of tests: its class stands for them.
                yield from inner or ((clause, f"{place}::{name}") for clause in own)
            case (
                ast.FunctionDef(name=name, decorator_list=decorators)
                | ast.AsyncFunctionDef(name=name, decorator_list=decorators)
            ) if name.startswith("test"):
                yield from ((clause, f"{place}::{name}") for clause in inherited + named_clauses(*decorators))
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.startswith("Test"):
                yield from ((clause, f"{place}::{name}") for clause in inherited + named_clauses(value))


def _targets(statement: ast.stmt, name: str) -> bool:
    return isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name


def collect(root: Path) -> Marks:
    """Clause -> the tests that name it, over every Python file under tests/."""
    found: Marks = {}
    for path in sorted((root / "tests").rglob("*.py")):
        for clause, test in marked(ast.parse(path.read_text("utf-8")).body, path.relative_to(root).as_posix(), []):
            if test not in found.setdefault(clause, []):
                found[clause].append(test)
    return found


def report(known: dict[str, str], marks: Marks) -> str:
    """The whole listing, ending with the one-line summary."""
    lines: list[str] = []
    for clause, says in known.items():
        lines += [f"{clause}  {says}", *(f"    {test}" for test in marks.get(clause, ())), ""]
    unproven = [clause for clause in known if clause not in marks]
    unknown = [f"{clause} in {test}" for clause, tests in marks.items() if clause not in known for test in tests]
    lines += [f"unproven: {' '.join(unproven) or 'none'}", *(f"unknown clause: {where}" for where in unknown)]
    tests = {test for clause in known for test in marks.get(clause, ())}
    lines.append(f"{len(known) - len(unproven)} of {len(known)} clauses are named by {len(tests)} tests")
    return "\n".join(lines)


def page(now: str, marks: Marks) -> str:
    """The whole page, of which everything after the mark is written anew."""
    promised = now.partition(MARK)[0]
    lines = ["## The tests of each clause"]
    for clause in clauses(promised):
        modules: dict[str, list[str]] = {}
        for module, _, name in (test.partition("::") for test in marks.get(clause, ())):
            modules.setdefault(module, []).append(f"`{name}`")
        proofs = [f"- {module}: {', '.join(names)}" for module, names in modules.items()]
        lines += ["", f"### {clause}", "", *(proofs or ["No test names it yet."])]
    return f"{promised}{MARK}\n" + "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Print the report; with --strict, 1 where a test names a clause that the contract lacks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--strict", action="store_true", help="fail where a test names an unknown clause")
    parser.add_argument("--write", action="store_true", help="write the page instead of printing")
    given = parser.parse_args(arguments)
    text, marks = PAGE.read_text("utf-8"), collect(ROOT)
    known = clauses(text)
    if given.write:
        PAGE.write_text(page(text, marks), encoding="utf-8")
    else:
        print(report(known, marks))
    return int(given.strict and any(clause not in known for clause in marks))


if __name__ == "__main__":
    sys.exit(main())
