"""The envelope's policy plane as a plan of the kernels."""

from __future__ import annotations

from ...fsm import envelope
from .plan import Plan, Temperature, TopK, TopP, Transform


def plan_of(policy: envelope.Policy) -> Plan:
    """The same family and transforms, in the same order."""
    return Plan(policy.family, tuple(_transform(transform) for transform in policy.transforms), policy.logprobs_top)


def _transform(transform: envelope.Transform) -> Transform:
    match transform:
        case envelope.Temperature():
            return Temperature(transform.value)
        case envelope.TopK():
            return TopK(transform.k)
        case envelope.TopP():
            return TopP(transform.p)
