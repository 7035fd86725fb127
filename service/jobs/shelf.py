"""Where models lie on this machine, and finding one there by its artifact's digest."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...fsm.errors import Problem

if TYPE_CHECKING:
    from ...fsm.request.artifact import ArtifactFacts

CONFIG_FILE = "config.json"
SCRIPT_FILE = "scripted.json"

Stamp = tuple[tuple[str, int, int], ...]
"""Name, size and modification time of each file: a checkpoint with another one is hashed again."""


def shelves() -> list[Path]:
    """The folders in DECODELOG_MODELS, separated as in PATH."""
    return [Path(each).expanduser() for each in os.environ.get("DECODELOG_MODELS", "").split(os.pathsep) if each]


class Shelf:
    """Folders of models: each is a checkpoint, or a folder of checkpoints. Safe to use from several threads.

    A checkpoint is hashed when it is first met, which reads all of its weights, unless it was fetched. Two threads that
    meet it at once both hash it, and neither waits for the other.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = list(folders)
        self._digests: dict[Path, tuple[Stamp, str]] = {}

    def add(self, folders: Sequence[Path]) -> None:
        """Look in these as well, before the others."""
        self._folders = [*folders, *self._folders]

    def find(self, artifact: str) -> Path | None:
        """The checkpoint that has the digest."""
        return next((each for each in checkpoints(self._folders) if self._digest(each) == artifact), None)

    def _digest(self, directory: Path) -> str:
        """The checkpoint's digest; empty for one that cannot be read as a model."""
        try:
            stamp = _stamp(directory)
            known = self._digests.get(directory)
            if known is None or known[0] != stamp:
                known = self._digests[directory] = stamp, facts_at(directory).artifact
            return known[1]
        except (Problem, OSError):
            return ""


def checkpoints(folders: Sequence[Path]) -> Iterator[Path]:
    """The checkpoints that the folders are or hold."""
    for folder in folders:
        if is_model(folder):
            yield folder
            continue
        try:
            inner = sorted(folder.iterdir())
        except OSError:
            continue  # it is not there, or not for us
        yield from filter(is_model, inner)


def facts_at(directory: Path) -> ArtifactFacts:
    """What the model in a directory is, by its files. Errors: BrokenArtifact and others."""
    if is_script(directory):
        from ...runtime.families.scripted.model import load_scripted

        return load_scripted(directory).facts
    from ...runtime.model.artifacts import load_facts

    return load_facts(directory)


def is_model(directory: Path) -> bool:
    """Whether a model of either kind lies there."""
    try:
        return (directory / CONFIG_FILE).is_file() or is_script(directory)
    except OSError:
        return False


def is_script(name: str | Path) -> bool:
    """Whether a directory of that name holds a scripted model."""
    try:
        return (Path(name) / SCRIPT_FILE).is_file()
    except OSError:
        return False


def _stamp(directory: Path) -> Stamp:
    stats = {path.name: path.stat() for path in directory.iterdir()}
    return tuple(sorted((name, status.st_size, status.st_mtime_ns) for name, status in stats.items()))
