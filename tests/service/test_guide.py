"""The guides run: each page's snippets in a process of its own, and its console commands in this one, in order."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import decodelog
from documented import blocks

GUIDES = sorted((Path(__file__).parents[2] / "docs" / "guide").glob("*.md"))
WITH_SNIPPETS = [page for page in GUIDES if blocks(page, "python")]
WITH_COMMANDS = [page for page in GUIDES if blocks(page, "console")]


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=lambda page: page.stem)
def test_every_snippet_of_a_guide_runs(page: Path, tmp_path: Path) -> None:
    program = tmp_path / "snippets.py"
    program.write_text("\n".join(blocks(page, "python")), encoding="utf-8")
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_every_console_command_of_a_guide_succeeds(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    on_a_server = page.stem == "postgresql"
    url = request.getfixturevalue("empty_postgres_url") if on_a_server else "sqlite:///decodelog.db"
    monkeypatch.setenv("DECODELOG_DB", url)
    monkeypatch.chdir(tmp_path)
    for line in "".join(blocks(page, "console")).splitlines():
        given = re.fullmatch(r"\$ decodelog (.+)", line)
        assert given, f"a console block has commands alone: {line}"
        done = decodelog(*shlex.split(given[1]))
        assert done.code == 0, (line, done)
        assert done.stdout, line
