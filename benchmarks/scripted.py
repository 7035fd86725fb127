"""The scripted model of the control-plane measurements: 258 tokens, random rows that are looked up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.families.scripted.script import Script, ScriptedConfig


@cache
def scripted_model() -> ScriptedModel:
    return ScriptedModel(ScriptedConfig(script=Script(seed=1)))


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread: rows of 258 scores are too small to share out, and waiting threads would only spin."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
