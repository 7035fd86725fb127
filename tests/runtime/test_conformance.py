"""The conformance suite for models: what this project ships passes it, and each single mistake is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cranks import model as scripted
from tiny_model import fetched, release, wheel

from decodelog.fsm.errors import ForeignLane, ModelNotConforming
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.families.session import Session
from decodelog.runtime.model.conformance import check_model
from decodelog.runtime.model.native import NativeModel

__all__ = ["fetched", "release", "wheel"]

pytestmark = pytest.mark.contract("API-4")


def test_the_models_of_this_project_conform(fetched: Path) -> None:
    check_model(scripted(), prompt=[72, 101])
    check_model(NativeModel(fetched, lanes=3))


Change = Callable[[pytest.MonkeyPatch, ScriptedModel], None]


def in_method(name: str, changed: Callable[..., Any]) -> Change:
    """Every session's method, given what it did before."""

    def change(patch: pytest.MonkeyPatch, of: ScriptedModel) -> None:
        session: Any = of.session(1)
        before = getattr(session, name)
        patch.setattr(session, name, lambda *arguments: changed(before, session, *arguments))

    return change


def in_fact(**facts: Any) -> Change:
    def change(patch: pytest.MonkeyPatch, of: ScriptedModel) -> None:
        patch.setattr(of, "facts", replace(of.facts, **facts))

    return change


def hasty(prepare: Any, session: Any, calls: Any) -> Any:
    ticket = prepare(calls)
    session.select(ticket)
    return ticket


def forgiving(error: type[Exception]) -> Callable[..., Any]:
    def prepare(before: Any, session: Any, calls: Any) -> Any:
        try:
            return before(calls)
        except error:
            return None

    return prepare


def lasting(select: Any, session: Any, ticket: Any) -> Any:
    scores = select(ticket)
    ticket.state = "prepared"
    for lane in ticket.lanes:
        lane.length -= 1
    return scores


def in_the_company_of(select: Any, session: Any, ticket: Any) -> Any:
    scores = select(ticket)
    return scores + len(scores) - 1


def unwatched(prepare: Any, session: Any, calls: Any) -> Any:
    return prepare([call._replace(watch=None) if hasattr(call, "watch") else call for call in calls])


MISTAKES: dict[str, tuple[Change, str]] = {
    "a vocabulary of another size": (in_fact(vocabulary_size=300), "bytes of each of the 300 tokens"),
    "an end beyond the vocabulary": (in_fact(eos_ids=(9999,)), "every id that ends an output"),
    "state that moves early": (in_method("prepare", hasty), "leaves its lanes as they are"),
    "half precision": (in_method("select", lambda select, _, ticket: select(ticket).half()), "scores are float32"),
    "a row too few": (in_method("select", lambda select, _, ticket: select(ticket)[:0]), "scores of shape"),
    "scores that are not finite": (in_method("select", lambda select, _, ticket: select(ticket) / 0), "are finite"),
    "a frontier that lags": (in_method("select", lasting), "leaves a length of"),
    "no end of a lane": (in_method("release", lambda release, *_: None), "a lane that was released is refused"),
    "a watch that is not called": (in_method("prepare", unwatched), "a watch is given all"),
    "a row that sees its mates": (in_method("select", in_the_company_of), "with mates and without"),
    "a foreign lane": (in_method("prepare", forgiving(ForeignLane)), "a lane that was released is refused"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_model_with_one_mistake_is_refused_by_name(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = scripted()
    change, named = MISTAKES[mistake]
    change(monkeypatch, of)
    with pytest.raises(ModelNotConforming) as caught:
        check_model(of, prompt=[72, 101])
    assert named in str(caught.value)


def test_a_real_session_that_mixes_rows_is_refused(fetched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of, select = NativeModel(fetched, lanes=3), Session.select
    monkeypatch.setattr(
        Session,
        "select",
        lambda session, ticket: in_the_company_of(lambda ticket: select(session, ticket), session, ticket),
    )
    with pytest.raises(ModelNotConforming, match="with mates and without"):
        check_model(of)
