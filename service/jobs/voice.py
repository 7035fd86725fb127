"""What a process says in words while it works, and to whom."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]
"""Told what whoever watches this process should know."""


def unsaid(text: str) -> None:
    """Nobody watches."""
