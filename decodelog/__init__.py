"""Durable, replayable language-model generation: a kill loses no token, and a resume repeats none.

The folders beside this one are its subpackages, by links: `decodelog.fsm` is the folder `fsm`, and so on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .fsm import errors

__all__ = ["__version__", "errors"]

__version__ = "0.1.0"

_PUBLIC = {"errors": ".fsm.errors"}


def __getattr__(name: str) -> object:
    """Import a public name where it is first used, so that `import decodelog` by itself costs next to nothing."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = import_module(_PUBLIC[name], __name__)
    return found


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
