"""Where the model of a restored job lies: a file may say which model it is, by hash, and not where to look for it.

What a file names is taken where it is a model that can be fetched, or a folder with just the files that the request is
bound to, which belongs to this user or to root, and which not everybody may write to. Else the job is brought back
under the hash of its checkpoint: a worker finds its model by the artifact's digest, or somebody says where it lies.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from ...fsm.errors import NotAdmissible, Problem
from ...fsm.request.envelope import Envelope
from .models import home, lasting_name
from .shelf import facts_at, is_script

if TYPE_CHECKING:
    from ...fsm.request.artifact import ArtifactFacts

HASHES = ("checkpoint_sha256", "config_sha256", "tokenizer_sha256", "template_sha256")


class Places:
    """Finds the models of restored jobs. Each folder is hashed once.

    given   where the caller says that the model lies: a fetched model's name, or a directory
    """

    def __init__(self, given: str | None = None) -> None:
        self._given = None if given is None else lasting_name(given)
        self._found: dict[str, ArtifactFacts] = {}

    def place(self, named: str, envelope: Envelope) -> str:
        """The name under which the model of `envelope`, which the file calls `named`, is to be looked for.

        Errors, where the caller has said where it lies: NotAdmissible for another model, and those of loading one.
        """
        if self._given is not None:
            if (other := _difference(envelope, self._facts(self._given))) is not None:
                raise NotAdmissible(f"artifact.{other}", f"{self._given} is another model than the file's job ran on")
            return self._given
        from ...runtime.model.releases import RELEASES

        if named in RELEASES:
            return named
        try:
            if os.path.isabs(named) and _is_ours(Path(named)) and _difference(envelope, self._facts(named)) is None:
                return named
        except (Problem, OSError, ValueError):
            pass  # it is not here, or no model any more
        return f"checkpoint-{envelope.artifact.checkpoint_sha256[:16]}"

    def _facts(self, name: str) -> ArtifactFacts:
        if name not in self._found:
            from ...runtime.model.releases import find_model

            self._found[name] = facts_at(Path(name) if is_script(name) else find_model(name, home()))
        return self._found[name]


def _difference(envelope: Envelope, facts: ArtifactFacts) -> str | None:
    """The first hash in which a model is not the one that a request is bound to."""
    for name in HASHES:
        plane = envelope.artifact if hasattr(envelope.artifact, name) else envelope.text_interface
        if getattr(plane, name) != getattr(facts, name):
            return name
    return None


def _is_ours(directory: Path) -> bool:
    """Whether what lies there belongs to this user or to root, and not everybody may write there."""
    return all(_only_ours(path.stat()) for path in (directory, *directory.iterdir()))


def _only_ours(status: os.stat_result) -> bool:
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & stat.S_IWOTH
