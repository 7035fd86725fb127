"""The scripted model of the control-plane measurements."""

from __future__ import annotations

from functools import cache

from decodelog.runtime.model import Model


@cache
def scripted_model() -> Model:
    import sys

    sys.path.insert(0, "/tmp/bench")
    import stub

    return stub.Model()
