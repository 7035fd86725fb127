"""The snippets of the guides run, in order, each page in a folder and a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDES = Path(__file__).parents[2] / "docs" / "guide"
SNIPPET = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", sorted(GUIDES.glob("*.md")), ids=lambda page: page.stem)
def test_every_snippet_of_a_guide_runs(page: Path, tmp_path: Path) -> None:
    snippets = SNIPPET.findall(page.read_text("utf-8"))
    program = tmp_path / "snippets.py"
    program.write_text("\n".join(snippets), encoding="utf-8")
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert bool(done.stdout) is bool(snippets)
