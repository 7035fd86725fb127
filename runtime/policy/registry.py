"""A program's own transforms: functions under a name and a version, bound by the digest of their source."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ...fsm.errors import OwnTransformMissing, SchemaViolation
from ...fsm.request.schema import typed
from ...fsm.request.transforms.lists import OwnName

if TYPE_CHECKING:
    from torch import Tensor


class TextSoFar(NamedTuple):
    """What a program's own transform is given beside the scores: the tokens before, [N] int64, not to be written to."""

    prompt: NDArray[np.int64]
    output: NDArray[np.int64]


Function = Callable[["Tensor", TextSoFar], "Tensor"]


class RegisteredTransform(NamedTuple):
    """A function that this process has, and what a request binds it by: name, version and SHA-256 of its source."""

    name: str
    version: int
    sha256: str
    function: Function

    @property
    def sealed(self) -> dict[str, Any]:
        """What a request says of it."""
        return {"name": self.name, "version": self.version, "sha256": self.sha256}


_registered: dict[tuple[str, int], RegisteredTransform] = {}


def register_transform(name: str, version: int, function: Function) -> RegisteredTransform:
    """Make a function known to this process as a transform, under a name and a version.

    function  takes the scores of one row, [V] float32 in nats, fresh, as the transforms before have left them (removed:
              -inf), and a `TextSoFar`; gives the new scores, of the same shape, dtype and device, without NaN or
              +inf. A token that was removed stays removed. It must be deterministic: a function of its arguments alone

    A request names it by `own_transforms`. Only processes that have registered the same source under the same name and
    version run such a request; others leave it to them.
    Errors: SchemaViolation where nobody could tell by the source whether it is the same, or the name has another one.
    """
    if not inspect.isfunction(function) or hasattr(function, "__wrapped__"):
        raise SchemaViolation("function", "its source is not all that it does; give a plain function, made by `def`")
    if function.__name__ == "<lambda>" or function.__defaults__ or function.__kwdefaults__:
        reason = "a lambda's source is its whole line, and a default's value is in none"
        raise SchemaViolation("function", f"{reason}; give a function made by `def`, without defaults")
    if function.__closure__:
        names = ", ".join(function.__code__.co_freevars)
        raise SchemaViolation("function", f"its source does not say what {names} is; make that a part of it")
    try:
        source = inspect.getsource(function)
    except OSError as problem:
        raise SchemaViolation("function", "its source cannot be read; define it in a file") from problem
    new = RegisteredTransform(name, version, sha256(source.encode()).hexdigest(), function)
    try:
        OwnName.model_validate(new.sealed)
    except ValidationError as error:
        raise typed(error, new.sealed) from error
    held = _registered.setdefault((name, version), new)
    if held.sha256 != new.sha256:
        raise SchemaViolation("version", f"{version} of {name} is registered with another source; give it another one")
    return held


def sealed_names(asked: Any) -> Any:
    """`own_transforms` of a request as a draft takes them: names, of which the newest version is meant, or what
    `register_transform` gave. Errors: SchemaViolation where this process has none of that name."""
    if not isinstance(asked, list | tuple) or isinstance(asked, RegisteredTransform):
        return asked  # which the draft refuses
    found = []
    for index, each in enumerate(asked):
        if isinstance(each, str):
            versions = [held for (name, _), held in _registered.items() if name == each]
            if not versions:
                path = f"own_transforms[{index}]"
                raise SchemaViolation(path, f"no transform {each!r} is registered in this process; register it first")
            each = max(versions, key=lambda held: held.version)
        found.append(each.sealed if isinstance(each, RegisteredTransform) else each)
    return found


def registered(name: str, version: int, digest: str) -> RegisteredTransform:
    """The very function that a request binds. Errors: OwnTransformMissing."""
    held = _registered.get((name, version))
    if held is None or held.sha256 != digest:
        found = "none of that name and version" if held is None else f"one with the source {held.sha256}"
        raise OwnTransformMissing(name, version, digest, found)
    return held
