"""The transforms of this program that a request names."""

from __future__ import annotations

from typing import Any, Final

OWN: Final = "own_transforms"


def with_own(request: dict[str, Any]) -> dict[str, Any]:
    """The request with its own transforms as they are registered here: by name, version and digest.

    Errors: SchemaViolation where there is none of that name.
    """
    if OWN not in request:
        return request
    from ...runtime.policy.registry import sealed_names

    return request | {OWN: sealed_names(request[OWN])}
