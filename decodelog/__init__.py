"""Durable, replayable language-model generation: a kill loses no token, and a resume repeats none.

    with decodelog.open("sqlite:///jobs.db") as log:
        job = log.submit("smollm2-135m-instruct", user="Why is the sky blue?", key="answer-17")
        for piece in job.run():  # kill it, run the program again: it goes on
            print(piece.text, end="", flush=True)

The folders beside this one are its subpackages, by links: `decodelog.fsm` is the folder `fsm`, and so on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .fsm import errors
    from .fsm.reading.emission import Emission, Token
    from .fsm.request.admission import RuntimeFacts
    from .fsm.request.artifact import ArtifactFacts
    from .runtime.caches.arena import Lane
    from .runtime.families.session import Decode, Prefill
    from .runtime.model.conformance import check_model
    from .runtime.model.port import Model, ModelSession, RowCache, Text
    from .runtime.policy.registry import RegisteredTransform, TextSoFar, register_transform
    from .service.api.aio import AsyncJob, AsyncLog, aopen
    from .service.api.job import Job
    from .service.api.log import Log, open
    from .service.api.values import Explanation, Result
    from .service.inspect.audit import Report, verify

__all__ = [
    "ArtifactFacts",
    "AsyncJob",
    "AsyncLog",
    "Decode",
    "Emission",
    "Explanation",
    "Job",
    "Lane",
    "Log",
    "Model",
    "ModelSession",
    "Prefill",
    "RegisteredTransform",
    "Report",
    "Result",
    "RowCache",
    "RuntimeFacts",
    "Text",
    "TextSoFar",
    "Token",
    "__version__",
    "aopen",
    "check_model",
    "errors",
    "open",
    "register_transform",
    "verify",
]

__version__ = "0.1.0"

_IN = {
    "ArtifactFacts": ".fsm.request.artifact",
    "AsyncJob": ".service.api.aio",
    "AsyncLog": ".service.api.aio",
    "Decode": ".runtime.families.session",
    "Emission": ".fsm.reading.emission",
    "Explanation": ".service.api.values",
    "Job": ".service.api.job",
    "Lane": ".runtime.caches.arena",
    "Log": ".service.api.log",
    "Model": ".runtime.model.port",
    "ModelSession": ".runtime.model.port",
    "Prefill": ".runtime.families.session",
    "RegisteredTransform": ".runtime.policy.registry",
    "Report": ".service.inspect.audit",
    "Result": ".service.api.values",
    "RowCache": ".runtime.model.port",
    "RuntimeFacts": ".fsm.request.admission",
    "Text": ".runtime.model.port",
    "TextSoFar": ".runtime.policy.registry",
    "Token": ".fsm.reading.emission",
    "aopen": ".service.api.aio",
    "check_model": ".runtime.model.conformance",
    "open": ".service.api.log",
    "register_transform": ".runtime.policy.registry",
    "verify": ".service.inspect.audit",
}


def __getattr__(name: str) -> object:
    """Import a public name where it is first used, so that `import decodelog` by itself costs next to nothing."""
    if name == "errors":
        found: object = import_module(".fsm.errors", __name__)
    elif name in _IN:
        found = getattr(import_module(_IN[name], __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
