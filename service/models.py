"""From the name or directory that a person gives to a loaded model."""

from __future__ import annotations

from pathlib import Path

from ..runtime.artifacts import find_model
from ..runtime.model import Model

SCRIPT_FILE = "scripted.json"


class Models:
    """Loads each model of this process once.

    home    where fetched models lie
    lanes   jobs that one model may hold at a time
    """

    def __init__(self, home: Path, lanes: int) -> None:
        self._home = home
        self._lanes = lanes
        self._loaded: dict[str, LoadedModel] = {}

    def load(self, name: str) -> LoadedModel:
        """The model of that name or directory. Errors: UnknownModel, ModelNotFetched, BrokenArtifact, UnsupportedModel."""
        if name not in self._loaded:
            self._loaded[name] = self._read(name)
        return self._loaded[name]

    def _read(self, name: str) -> LoadedModel:
        # torch takes a second to import; commands that only read the log do not pay for it.
        if (Path(name) / SCRIPT_FILE).is_file():
            from ..runtime.models.scripted import load_scripted

            return load_scripted(Path(name))
        from ..runtime.native import NativeModel

        return NativeModel.load(find_model(name, self._home), self._lanes)
