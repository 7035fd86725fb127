"""From the name or directory that a person gives to a loaded model."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from ...fsm.errors import (
    BrokenArtifact,
    ContradictoryModel,
    ModelNotFetched,
    ModelNotHere,
    Problem,
    UnknownModel,
    UnsupportedModel,
)
from ..extras import extras_named
from .shelf import Shelf, is_model, is_script, shelves

if TYPE_CHECKING:
    from ...fsm.request.registration import Registration, Registry
    from ...runtime.model.port import Model
    from ...runtime.model.registered import RegisteredModel


def home() -> Path:
    """Where fetched models lie: DECODELOG_HOME, else decodelog's folder in the user's cache."""
    return Path(os.environ.get("DECODELOG_HOME") or Path.home() / ".cache" / "decodelog")


def lasting_name(given: str) -> str:
    """A name that means the same model to a worker that runs elsewhere: directories are made absolute."""
    try:
        directory = Path(given).expanduser()
    except RuntimeError:  # in the home of a user that is not there
        return given
    return str(directory.resolve()) if is_model(directory) else given


class Models:
    """Loads each model of this process once, whichever of its threads asks for it, and by which name.

    home     where fetched models lie
    lanes    jobs that one model may hold at a time
    own      models that are loaded already, by the names that jobs have them by
    folders  where models are looked for by their digests: each is a checkpoint, or a folder of checkpoints. Those in
             DECODELOG_MODELS and the fetched ones are looked through as well
    """

    def __init__(
        self, home: Path, lanes: int, own: Mapping[str, Model] | None = None, folders: Sequence[Path] = ()
    ) -> None:
        self.home = home
        self.lanes = lanes
        self._lock = Lock()
        self._turns: dict[str, Lock] = {}
        self._loaded: dict[str, Model] = dict(own or {})
        self._own = frozenset(self._loaded)
        self._found: dict[str, Model] = {}
        self._registered: dict[str, RegisteredModel] = {}
        self._shelf = Shelf([*folders, *shelves(), home / "models"])

    def place(self, artifact: str) -> Path | None:
        """Where the model with that digest lies, as far as its folders are known here. Errors: ExtraMissing."""
        with extras_named():
            return self._shelf.find(artifact)

    def look_in(self, folders: Sequence[Path]) -> None:
        """Look for models in these folders as well, from now on."""
        self._shelf.add(folders)

    def load(self, name: str, artifact: str = "") -> Model:
        """The model of that name or directory; with an artifact's digest the one that has it, wherever it lies.

        A name of one's own is that model, whatever its digest: whether a job may run on it is for its admission to say.
        Errors: UnknownModel, ModelNotFetched, BrokenArtifact, UnsupportedModel, ExtraMissing; ModelNotHere where no
        model here has the digest.
        """
        with self._lock:
            turn = self._turns.setdefault(artifact or name, Lock())
        with turn:  # not the lock itself: what hangs in one model keeps nobody from another
            if (model := self._known(name, artifact)) is None:
                with extras_named():
                    model = self._find(name, artifact)
                with self._lock:
                    model = self._found.setdefault(model.facts.artifact, model)
                    if not artifact:  # else it may lie elsewhere, and another one under the name
                        self._loaded[name] = model
                set_aside()
            return model

    def _known(self, name: str, artifact: str) -> Model | None:
        with self._lock:
            model = self._loaded.get(name)
            if model is None or not (name in self._own or artifact in ("", model.facts.artifact)):
                model = self._found.get(artifact)
            return model

    def lasting_name(self, given: str) -> str:
        """The name that a job has the model by: a name of one's own as it is, else see the function `lasting_name`."""
        return given if given in self._own else lasting_name(given)

    def has_own(self, name: str) -> bool:
        return name in self._own

    def registered(self, registry: Registry, registration: Registration) -> RegisteredModel:
        """A registered model, as what seals requests for it; its tokenizer is read once."""
        from ...runtime.model.registered import RegisteredModel

        with self._lock:
            made = RegisteredModel(registration, partial(registry.text_files, registration))
            return self._registered.setdefault(registration.artifact, made)

    def _find(self, name: str, artifact: str) -> Model:
        """What the name leads to, where that has the digest; else what has it elsewhere."""
        if not artifact:
            return self._read(name)
        try:
            model = self._read(name)
            if model.facts.artifact == artifact:
                return model
            problem: Problem = ModelNotHere(name, artifact, "what lies there has another digest")
        except (UnknownModel, ModelNotFetched) as error:
            problem = ModelNotHere(name, artifact, "nothing of that name is here")
            problem.__cause__ = error
        except (BrokenArtifact, ContradictoryModel, UnsupportedModel) as error:
            problem = error
        directory = self.place(artifact)
        if directory is None:
            raise problem
        return self._read(str(directory))

    def _read(self, name: str) -> Model:
        # torch takes a second to import; commands that only read the log do not pay for it.
        if is_script(name):
            from ...runtime.families.scripted.model import load_scripted

            return load_scripted(Path(name))
        from ...runtime.model.releases import find_model

        directory = find_model(name, self.home)
        from ...runtime.model.native import NativeModel

        return NativeModel(directory, self.lanes)


@cache
def set_aside() -> None:
    """Keep what is loaded by now out of the collector's way, once: nearly all of it stays as long as the process does.

    Else every full collection walks through all of torch, and stops every job for a tenth of a second. What is dropped
    later goes as ever, unless it is a cycle; so what comes after the first model is left to the collector.
    """
    gc.collect()
    gc.freeze()
