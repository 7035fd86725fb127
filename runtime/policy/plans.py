"""The policy of a sealed request as a plan of the kernels."""

from __future__ import annotations

from ...fsm.machine.spec import Spec
from ...fsm.request.transforms import OneTransform
from .edits import MinNewTokens
from .kinds import KERNELS, Kind
from .plan import Plan


def plan_of(spec: Spec) -> Plan:
    """The same family and transforms, in the same order.

    The tokens that end the output are held back before anything else is done, until there are min_new_tokens. A
    grammar's support is a mask of each step.
    """
    policy = spec.envelope.policy
    steps = [kernel_of(transform) for transform in policy.transforms]
    if spec.min_new_tokens and spec.ending_ids:
        steps.insert(0, MinNewTokens(spec.min_new_tokens, tuple(sorted(spec.ending_ids))))
    return Plan(policy.family, tuple(steps), policy.logprobs_top)


def kernel_of(transform: OneTransform) -> Kind:
    """The same transform as the kernels take it."""
    return KERNELS[type(transform)].of(transform)
