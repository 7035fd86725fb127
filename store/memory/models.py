"""Registered models in memory."""

from __future__ import annotations

from threading import RLock

from ...fsm.errors import AmbiguousModel
from ...fsm.ports import Clock, ModelRef
from ...fsm.request.registration import DIGEST_BEGINNING, Registered, Registration, TextFiles, text_files_of


class MemoryModels:
    """`Registry` over dictionaries."""

    def __init__(self, clock: Clock, lock: RLock) -> None:
        self._clock, self._lock = clock, lock
        self._models: dict[str, tuple[Registration, int]] = {}
        self._names: dict[str, str] = {}
        self._files: dict[str, bytes] = {}
        self._missing: dict[ModelRef, str] = {}

    def register(self, model: Registration, files: TextFiles, name: str | None = None) -> str | None:
        with self._lock:
            self._files |= files.hashed()
            _, since = self._models.get(model.artifact, (model, self._clock()))
            self._models[model.artifact] = model, since
            if name is None:
                return None
            before, self._names[name] = self._names.get(name), model.artifact
            return before if before != model.artifact else None

    def note_missing(self, model: ModelRef, worker: str | None) -> None:
        with self._lock:
            self._missing.pop(model, None)
            if worker is not None:
                self._missing[model] = worker

    def missing(self) -> dict[ModelRef, str]:
        with self._lock:
            return dict(self._missing)

    def registered(self, wanted: str) -> Registered | None:
        with self._lock:
            digest = self._names.get(wanted, wanted if DIGEST_BEGINNING.fullmatch(wanted) else "-")
            found = [each for each in self.registrations() if each.registration.artifact.startswith(digest)]
        if len(found) > 1:
            raise AmbiguousModel(wanted, [each.registration.artifact for each in found])
        return found[0] if found else None

    def registrations(self) -> list[Registered]:
        with self._lock:
            return [
                Registered(model, tuple(sorted(name for name, of in self._names.items() if of == artifact)), since)
                for artifact, (model, since) in self._models.items()
            ]

    def text_files(self, model: Registration) -> TextFiles:
        with self._lock:
            return text_files_of(model, self._files)
