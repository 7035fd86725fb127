"""A chat as a model's own template writes it: where it goes on, what a message may spell, and what ends a turn.

While it is rendered, marks stand where the text must be known again: characters that are in no message and not in the
template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from jinja2 import TemplateError

from ...fsm.errors import TemplateFailed
from .sandbox import Sandbox

_MARKS: Final = range(0xF0000, 0xFFFFE)  # a plane that Unicode leaves to private use
LITERAL_ROLES: Final = ("user", "tool")
_DATE_CHARACTERS_MAX = 100
_WIDE = re.compile(r"%[^%a-zA-Z]*\d")
_PROBE = "8f3a"


class ChatTemplate:
    """A template and the special tokens that it may name; `source` is the Jinja text."""

    def __init__(self, source: str, names: Mapping[str, str]) -> None:
        self.source = source
        self._names = dict(names)

    def render(self, messages: Sequence[Mapping[str, Any]], opening: bool, now_ms: int | None) -> str:
        """The chat as one text; with `opening`, that of the assistant's next turn.

        now_ms  ms since 1970: the date that `strftime_now` writes, in UTC; None: the template may not ask for it
        Deterministic in its arguments. Errors: TemplateFailed where the template refuses the messages, is itself
        broken, or does more work than any chat needs.
        """
        try:
            sandbox = Sandbox()
            sandbox.globals["strftime_now"] = _dated(now_ms)
            template = sandbox.from_string(self.source)
            given = {"messages": messages, "add_generation_prompt": opening}
            return template.render(**self._names, **given, tools=None, documents=None)
        except RecursionError as error:
            raise TemplateFailed("it nests too deep") from error
        except Exception as error:  # whatever a library raises over somebody's template
            raise TemplateFailed(str(error) or type(error).__name__) from error


class Marked(NamedTuple):
    """A rendered chat, in which what a message spelled stands as `mark`, the token's id, `mark`."""

    text: str
    mark: str

    def plain(self, tokens: Mapping[int, str], part: str | None = None) -> str:
        """The text, or a part of it, with the spelled tokens' own words for their marks."""
        pattern = f"{self.mark}(\\d+){self.mark}"
        return re.sub(pattern, lambda found: tokens[int(found[1])], self.text if part is None else part)


def marked(
    template: ChatTemplate, messages: Sequence[Mapping[str, str]], now_ms: int | None, control: Mapping[int, str]
) -> Marked:
    """The chat as a prompt: with the opening of the answer, or, after an assistant's message, with that one unended.

    control  tokens by their ids, whose words in the messages of LITERAL_ROLES are marked; none: nothing is
    Errors: TemplateFailed, also where the template does not show the message that is to go on.
    """
    mark, end = _unused(template.source, messages)
    ids = {words: token for token, words in control.items()}
    pattern = re.compile("|".join(re.escape(words) for words in sorted(ids, key=len, reverse=True)) or r"(?!)")

    def literal(message: Mapping[str, str]) -> dict[str, str]:
        content = message["content"]
        if message["role"] in LITERAL_ROLES:
            content = pattern.sub(lambda found: f"{mark}{ids[found[0]]}{mark}", content)
        return {**message, "content": content}

    chat = [literal(message) for message in messages]
    if not chat or chat[-1]["role"] != "assistant":
        return Marked(template.render(chat, True, now_ms), mark)
    chat[-1]["content"] += end
    text = template.render(chat, False, now_ms)
    if end not in text:
        raise TemplateFailed("it does not show the last message, so that nothing can go on from there")
    return Marked(text[: text.rindex(end)], mark)


def turn_end(template: ChatTemplate, tokens: Mapping[str, int], now_ms: int = 0) -> int | None:
    """The token that the template writes right after an assistant's words; None where it writes none.

    tokens  the tokenizer's added tokens, by their words
    """
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
    try:
        text = template.render(chat, False, now_ms)
    except TemplateFailed:
        return None  # it takes no such chat, and will say so where one is asked for
    before, _, behind = text.rpartition(_PROBE)
    behind = behind.lstrip()
    written = [words for words in tokens if words and behind.startswith(words)]
    return tokens[max(written, key=len)] if before and written else None


def _dated(now_ms: int | None) -> Callable[[str], str]:
    def strftime_now(pattern: str) -> str:
        if now_ms is None:
            raise TemplateError("it asks for the date, and none is given")
        if len(pattern) > _DATE_CHARACTERS_MAX or _WIDE.search(pattern):
            raise TemplateError("it asks for a date in a form that is none")
        return datetime.fromtimestamp(now_ms / 1000, UTC).strftime(pattern)

    return strftime_now


def _unused(source: str, messages: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """Two characters that stand nowhere in a template and its messages."""
    used = set(source).union(*(message["content"] for message in messages))
    free = [chr(code) for code in _MARKS if chr(code) not in used][:2]
    if len(free) < 2:
        raise TemplateFailed("the messages use up all characters that Unicode leaves to private use")
    return free[0], free[1]
