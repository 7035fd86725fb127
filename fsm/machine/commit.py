"""commit: a DECIDED state with its receipt -> the state after it. After a crash before it nothing is drawn again."""

from __future__ import annotations

from ..errors import BrokenInvariant
from ..evidence.receipt import Receipt
from ..output.horizon import Horizon, end_before
from ..output.standing import Standing
from ..output.stop_matcher import Match
from ..output.structure import Structure, watch
from .compiled import target
from .spec import Spec
from .state import State
from .states import Trigger

OUTPUT_COMMITTED = Trigger.OUTPUT_COMMITTED  # an enum finds its members by way of Python code


def released(
    spec: Spec, before: Horizon, output: int, token: int, piece: bytes, hidden: bool
) -> tuple[Horizon, str, Match | None]:
    """What output number `output` does to the text: the horizon after it, the text it releases, and the stop it ends.

    piece    the token's bytes that can be text; hidden  whether they are kept out of it, as a special token's are
    A token that ends the output by itself, and is no text for that, ends the text before it.
    """
    armed = output >= spec.min_new_tokens
    advance = end_before if armed and token in spec.withheld_ids else spec.advance
    return advance(before, spec.matcher, piece, hidden, spec.include_stop, armed)


def committed(state: State) -> State:
    """Consume the issued receipt: a pure function of (state, receipt)."""
    status = target(state.status, OUTPUT_COMMITTED)
    receipt, spec, structure = state.receipt, state.spec, state.structure
    if receipt is None:
        raise BrokenInvariant(clause="FSM-5", reason="a DECIDED state holds no receipt")
    frontier = state.frontier.after_commit()
    hidden, token, output = receipt.hidden and spec.skip_special, receipt.selection.token, frontier.output
    standing = None
    if structure is None:
        horizon, delta, match = released(spec, state.horizon, output, token, receipt.piece, hidden)
    else:
        structure, horizon, delta, match = structured(state, structure, receipt, output, hidden)
        standing = structure.standing
    due = spec.due(token, output, match is not None, standing)
    stop = spec.matched(due, token, match) if due else None
    return State(
        spec, status, state.tenure, frontier, horizon, None, receipt.receipt_id, b"", delta, due, None, structure, stop
    )


def structured(
    state: State, before: Structure, receipt: Receipt, output: int, hidden: bool
) -> tuple[Structure, Horizon, str, Match | None]:
    """Where a token leaves the structure that was asked for, and the text; no byte after the structure's end is any."""
    spec, token, whole = state.spec, receipt.selection.token, receipt.piece
    armed = output >= spec.min_new_tokens
    if receipt.structure is not None:
        structure, piece = Structure(receipt.structure), whole
    else:
        structure, taken = watch(before, spec.detectors, whole, hidden, armed)
        piece = whole if hidden else whole[:taken]
    horizon, delta, match = released(spec, state.horizon, output, token, piece, hidden)
    ends = armed and token in spec.ending_ids
    if match is not None and cuts(match, state.horizon.position, 0 if hidden else len(piece), ends, spec):
        structure = structure._replace(standing=Standing.INCOMPLETE)
    cut = len(piece) < len(whole) and not (armed and token in spec.withheld_ids)
    if cut and spec.alignment == "token" and (match is None or spec.include_stop):
        # The structure ends within the token, and all of the token is text; no stop counts behind the structure.
        counts = match is not None
        horizon, delta, _ = spec.advance(state.horizon, spec.matcher, whole, False, spec.include_stop, counts)
    return structure, horizon, delta, match


def cuts(match: Match, position: int, size: int, ends: bool, spec: Spec) -> bool:
    """Whether a stop string ends the text before the end of the structure, and so leaves it incomplete.

    position, size   of the token's bytes that can be text;  ends  the token ends the output by itself
    """
    if ends and spec.grammar is not None:  # then the structure had ended before it
        return match.start < position and not spec.include_stop
    return match.end != position + size
