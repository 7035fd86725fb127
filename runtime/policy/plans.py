"""The envelope's policy plane as a plan of the kernels."""

from __future__ import annotations

from ...fsm import envelope
from .plan import Plan, Temperature, TopK, TopP, Transform


def plan_of(policy: envelope.Policy) -> Plan:
    """The same family and transforms, in the same order; a grammar's support is a mask of each step."""
    kept = [transform for transform in policy.transforms if not isinstance(transform, envelope.Grammar)]
    return Plan(policy.family, tuple(map(_transform, kept)), policy.logprobs_top)


def _transform(transform: envelope.Temperature | envelope.TopK | envelope.TopP) -> Transform:
    match transform:
        case envelope.Temperature():
            return Temperature(transform.value)
        case envelope.TopK():
            return TopK(transform.k)
        case envelope.TopP():
            return TopP(transform.p)
