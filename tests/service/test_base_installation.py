"""What the base installation does without the packages of any extra, and what it says where it needs one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from commandline import decodelog

import decodelog as package
from decodelog.service.extras import EXTRA_OF

# Imports fail as they do where the packages are not installed.
BLOCKED = f"""
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(EXTRA_OF)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""
WITHOUT_EXTRAS = f"{BLOCKED}\nfrom decodelog.__main__ import main\nmain()"

READER = """
import decodelog
with decodelog.open(sys.argv[1]) as log:
    job = log.job("@last")
    assert job.audit().ok and job.result().text == "".join(piece.text for piece in job.stream())
    print(job.explain(0), log.export(sys.argv[2]), decodelog.verify(sys.argv[2]).ok)
    try:
        list(log.submit(sys.argv[3], prompt="a").run())
    except decodelog.errors.ExtraMissing as missing:
        print(missing.extra)
"""


def bare(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_EXTRAS, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def job(sqlite_url: str, short_model: Path) -> str:
    ended = decodelog("run", "--model", short_model, "--prompt", "a", "--json", db=sqlite_url)
    assert ended.code == 0
    name: str = ended.json["job"]
    return name


@pytest.mark.parametrize(
    "command",
    [
        ("jobs",),
        ("show", "{job}"),
        ("tail", "{job}", "--no-follow"),
        ("events", "{job}"),
        ("explain", "{job}"),
        ("audit", "--all"),
        ("compare", "{job}", "{job}"),
        ("export", "{job}", "--out", "{folder}/job.dlog"),
        ("seal", "{job}"),
        ("erase", "{job}", "--yes"),
        ("db", "check"),
    ],
    ids=lambda command: command[0],
)
def test_what_reads_and_keeps_logs_needs_no_extra(
    sqlite_url: str, job: str, tmp_path: Path, command: Sequence[str]
) -> None:
    done = bare(*(word.format(job=job, folder=tmp_path) for word in command), "--db", sqlite_url)
    assert (done.returncode, done.stderr.count("error")) == (0, 0), done.stderr


def test_an_exported_file_is_verified_without_an_extra(sqlite_url: str, job: str, tmp_path: Path) -> None:
    file = tmp_path / "job.dlog"
    assert decodelog("export", job, "--out", file, db=sqlite_url).code == 0
    assert bare("verify", file).returncode == 0


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("run", "--model", "{model}", "--prompt", "a"), "torch"),
        (("worker", "--drain"), "torch"),
        (("compare", "{job}", "--reexecute"), "torch"),
        (("export", "{job}", "--out", "{folder}/job.dlog", "--key", "{folder}/key.pem"), "sign"),
    ],
    ids=lambda given: given[0] if isinstance(given, tuple) else given,
)
def test_what_needs_an_extra_names_it(
    sqlite_url: str, job: str, short_model: Path, tmp_path: Path, command: Sequence[str], extra: str
) -> None:
    (tmp_path / "key.pem").touch(mode=0o600)
    assert decodelog("submit", "--model", short_model, "--prompt", "b", db=sqlite_url).code == 0
    given = [word.format(job=job, folder=tmp_path, model=short_model) for word in command]
    done = bare(*given, "--db", sqlite_url)
    assert done.returncode == 2
    assert "error[extra_missing]" in done.stderr
    assert f"pip install 'decodelog[{extra}]'" in done.stderr


def test_a_program_reads_and_proves_jobs_without_an_extra(
    sqlite_url: str, job: str, short_model: Path, tmp_path: Path
) -> None:
    given = [sqlite_url, tmp_path / "logs.dlog", short_model]
    done = subprocess.run(
        [sys.executable, "-c", f"{BLOCKED}{READER}", *map(str, given)], capture_output=True, text=True
    )
    assert done.stdout.endswith("True\ntorch\n"), done.stderr


def test_the_package_says_its_version_and_its_public_names() -> None:
    assert decodelog("--version").stdout == f"decodelog {package.__version__}\n"
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_importing_the_package_loads_nothing_of_it() -> None:
    program = "import sys, decodelog; print(sorted(name for name in sys.modules if name.startswith('decodelog')))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "['decodelog']\n"
