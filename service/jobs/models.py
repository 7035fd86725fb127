"""From the name or directory that a person gives to a loaded model."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..extras import extras_named

if TYPE_CHECKING:
    from ...runtime.model.port import Model

CONFIG_FILE = "config.json"
SCRIPT_FILE = "scripted.json"


def home() -> Path:
    """Where fetched models lie: DECODELOG_HOME, else decodelog's folder in the user's cache."""
    return Path(os.environ.get("DECODELOG_HOME") or Path.home() / ".cache" / "decodelog")


def lasting_name(given: str) -> str:
    """A name that means the same model to a worker that runs elsewhere: directories are made absolute."""
    try:
        directory = Path(given).expanduser()
        is_model = (directory / CONFIG_FILE).is_file() or (directory / SCRIPT_FILE).is_file()
    except (OSError, RuntimeError):  # no path at all: too long, or in the home of a user that is not there
        return given
    return str(directory.resolve()) if is_model else given


class Models:
    """Loads each model of this process once.

    home    where fetched models lie
    lanes   jobs that one model may hold at a time
    own     models that are loaded already, by the names that jobs have them by
    """

    def __init__(self, home: Path, lanes: int, own: Mapping[str, Model] | None = None) -> None:
        self._home = home
        self.lanes = lanes
        self._loaded: dict[str, Model] = dict(own or {})
        self._own = frozenset(self._loaded)

    def load(self, name: str) -> Model:
        """The model of that name or directory.

        Errors: UnknownModel, ModelNotFetched, BrokenArtifact, UnsupportedModel, ExtraMissing.
        """
        if name not in self._loaded:
            with extras_named():
                self._loaded[name] = self._read(name)
            set_aside()
        return self._loaded[name]

    def lasting_name(self, given: str) -> str:
        """The name that a job has the model by: a name of one's own as it is, else see the function `lasting_name`."""
        return given if given in self._own else lasting_name(given)

    def _read(self, name: str) -> Model:
        # torch takes a second to import; commands that only read the log do not pay for it.
        if is_script(name):
            from ...runtime.families.scripted.model import load_scripted

            return load_scripted(Path(name))
        from ...runtime.model.artifacts import find_model
        from ...runtime.model.native import NativeModel

        return NativeModel(find_model(name, self._home), self.lanes)


@cache
def set_aside() -> None:
    """Keep what is loaded by now out of the collector's way, once: nearly all of it stays as long as the process does.

    Else every full collection walks through all of torch, and stops every job for a tenth of a second. What is dropped
    later goes as ever, unless it is a cycle; so what comes after the first model is left to the collector.
    """
    gc.collect()
    gc.freeze()


def is_script(name: str) -> bool:
    """Whether a directory of that name holds a scripted model."""
    try:
        return (Path(name) / SCRIPT_FILE).is_file()
    except OSError:
        return False
