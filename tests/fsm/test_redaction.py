"""No message has a password: whatever attribute of whatever error held it, and however its URL was written."""

from __future__ import annotations

import json
import pickle
from dataclasses import Field, fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodelog.fsm import errors
from decodelog.fsm.errors import Problem
from decodelog.fsm.errors.redaction import redacted, redacted_facts, redacted_url, unreadable_url

SECRET = "hunter2"
HOLDERS = [
    f"postgresql://user:{SECRET}@host/name",
    f"postgresql+psycopg://user:{SECRET}@host:5432/name?sslmode=require",
    f"postgresql://:{SECRET}@host/name",
    f"postgresql://user:a@b:c/{SECRET}@host/name",
    f"postgresql://user:{SECRET}@[::1/name",
    f"postgresql://user:{SECRET}@host:port/name",
    f"postgresql:/user:{SECRET}@host",
    f"postgresql://user:{SECRET}",
    f"postgresql://user:{SECRET}/name",
    f"user:{SECRET}@host/name",
    f"postgresql://host/name?password={SECRET}",
    f"postgresql://host/name?sslmode=x&sslpassword={SECRET}&connect_timeout=3",
    f"postgresql://host/name?PassWord={SECRET}",
    f"postgresql://host/name?require_auth=x&oauth_client_secret={SECRET}",
    f"http://proxy:{SECRET}@proxy.example:3128/",
    f"host=here password={SECRET} dbname=name",
    f"host=here password='a {SECRET}' dbname=name",
    f"password = {SECRET}",
]
CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Problem)]


def made(kind: type[Problem], text: str) -> Problem:
    """An error whose every attribute that can be text is `text`."""
    problem = kind.__new__(kind)
    named: tuple[Field[Any], ...] = fields(kind) if is_dataclass(kind) else ()
    for field in named:
        words = str(field.type)
        value = 3 if words.startswith("int") else [text, text] if words.startswith(("list", "tuple")) else text
        setattr(problem, field.name, value)
    return problem


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_password_is_taken_out_of_fields_and_of_sentences(holder: str) -> None:
    """A password is taken out of what holds it and of a sentence about it."""
    for text in (holder, f"{holder} does not answer", f"run `decodelog resume J --db '{holder}'`", f'("{holder}")'):
        assert SECRET not in redacted(text)
        assert SECRET not in redacted(redacted(text))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.code)
def test_no_error_says_a_password(kind: type[Problem]) -> None:
    for holder in HOLDERS:
        problem = made(kind, holder)
        for each in (problem, pickle.loads(pickle.dumps(problem))):
            assert SECRET not in str(each)
            assert SECRET not in json.dumps(each.facts(), default=str)


def test_no_error_has_a_way_of_its_own_to_say_its_message() -> None:
    assert [kind.__name__ for kind in CLASSES if kind is not Problem and "__str__" in vars(kind)] == []
    assert [kind.__name__ for kind in CLASSES if kind is not Problem and "facts" in vars(kind)] == []


def test_the_advice_of_no_error_speaks_of_a_command() -> None:
    assert [kind.__name__ for kind in CLASSES if "`decodelog" in str(vars(kind).get("says"))] == []


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://user@host:5432/name?sslmode=require", "sqlite:////tmp/a@b=c.db", "at 12:30 x@example.org",
        "min_new_tokens=5 and max_new_tokens=6", "a row of (a=1, b=2)", "", "temperature: 0.8 @ step 3",
        "http://host:80/x y@z", "the password is wrong", "passfile=/home/ada/.pgpass",
    ],
)  # fmt: skip
def test_what_is_no_password_stays(text: str) -> None:
    assert redacted(text) == text
    assert redacted_facts({"a": [text, 3, None], "b": (text,)}) == {"a": [text, 3, None], "b": [text]}


def test_the_rest_of_a_url_stays() -> None:
    assert (
        redacted_url("postgresql://ada:pw@host:5432/name?sslmode=x") == "postgresql://ada:***@host:5432/name?sslmode=x"
    )
    assert redacted_url("postgresql://h/n?pass%77ord=pw&a=b") == "postgresql://h/n?pass%77ord=***&a=b"
    assert redacted_url("sqlite:///50%.db") == "sqlite:///50%.db"
    assert unreadable_url("decodelog.db") == "decodelog.db"
    assert unreadable_url("postgresql://user:pw") == "postgresql://***"


PARTS = st.text(st.sampled_from("aB3 :/@?#%'\"+-._~é"), max_size=8)


@given(
    before=PARTS, after=PARTS, user=st.sampled_from(["", "ada", "a.b"]), end=st.sampled_from(["host/name", "[::1]/n"])
)
def test_a_url_has_no_password_left_whatever_is_in_it(before: str, after: str, user: str, end: str) -> None:
    """Also with blanks, at signs, slashes and question marks, which a password in a URL should not have."""
    url = f"postgresql://{user}:{before}{SECRET}{after}@{end}"
    assert SECRET not in redacted_url(url)
    assert SECRET not in unreadable_url(url)
