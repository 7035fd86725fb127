"""Scripted models for the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import TEXT, script


@pytest.fixture
def short_model(tmp_path: Path) -> Path:
    """Says its text once and ends."""
    return script(tmp_path / "short", script={"text": TEXT})


@pytest.fixture
def long_model(tmp_path: Path) -> Path:
    """Says its text for ever."""
    return script(tmp_path / "long", script={"text": TEXT, "then": "repeat"})
