"""The policy of a sealed request as a plan of the kernels."""

from __future__ import annotations

from ...fsm.machine.spec import Spec
from ...fsm.request import transforms
from . import kinds
from .plan import Plan


def plan_of(spec: Spec) -> Plan:
    """The same family and transforms, in the same order.

    The tokens that end the output are held back before anything else is done, until there are min_new_tokens. A
    grammar's support is a mask of each step.
    """
    policy = spec.envelope.policy
    steps = [kernel_of(transform) for transform in policy.transforms]
    if spec.min_new_tokens and spec.ending_ids:
        steps.insert(0, kinds.MinNewTokens(spec.min_new_tokens, tuple(sorted(spec.ending_ids))))
    return Plan(policy.family, tuple(steps), policy.logprobs_top)


def kernel_of(transform: transforms.Transform) -> kinds.Transform:
    """The same transform as the kernels take it."""
    match transform:
        case transforms.Temperature():
            return kinds.Temperature(transform.value)
        case transforms.TopK():
            return kinds.TopK(transform.k)
        case transforms.TopP():
            return kinds.TopP(transform.p)
        case transforms.MinP():
            return kinds.MinP(transform.p)
        case transforms.TypicalP():
            return kinds.TypicalP(transform.p)
        case transforms.RepetitionPenalty():
            return kinds.RepetitionPenalty(transform.penalty, transform.scope)
        case transforms.FrequencyPenalty():
            return kinds.FrequencyPenalty(transform.penalty, transform.scope)
        case transforms.PresencePenalty():
            return kinds.PresencePenalty(transform.penalty, transform.scope)
        case transforms.NoRepeatNgram():
            return kinds.NoRepeatNgram(transform.size, transform.scope)
        case transforms.LogitBias():
            return kinds.LogitBias(tuple((each.token_id, each.bias) for each in transform.biases))
        case transforms.AllowedTokens():
            return kinds.AllowedTokens(transform.token_ids)
        case transforms.BannedTokens():
            return kinds.BannedTokens(transform.token_ids)
        case transforms.ForcedTokens():
            return kinds.ForcedTokens(tuple((each.step, each.token_id) for each in transform.tokens))
        case transforms.Grammar():
            return kinds.MaskedTokens()
