"""Passwords do not belong in messages: this one place takes them out of everything that people are shown.

Nothing here parses URLs: the messages are often about URLs that could not be parsed.
"""

from __future__ import annotations

import re
from typing import Any, Final

HIDDEN: Final = "***"

# Up to the last @ of the word: a password may itself have an @, a colon, a slash.
_USER: Final = re.compile(r"((?:\b[a-z][a-z0-9+.-]*:/+)[^\s:/@?]*|(?<![\w:/@.+-])[\w.+-]+):(?!/)\S*@", re.IGNORECASE)
_NO_PORT: Final = re.compile(
    r"(\b[a-z][a-z0-9+.-]*://[^\s:/@?\[]*):(?!\*{3}@|\d*(?:[/?#\s'\")`,;]|$))[^\s/?'\")]+", re.IGNORECASE
)
_OPTION: Final = re.compile(
    r"((?<![a-z0-9])[\w-]*(?:password|passwd|passphrase|pwd|secret|scram_client_key|scram_server_key)[\w-]*\s*=\s*)"
    r"('(?:[^'\\]|\\.)*'|\"[^\"]*\"|[^&;,\s'\"`)]+)",
    re.IGNORECASE,
)
_SCHEME: Final = re.compile(r"\w[\w+.-]*:/*")
_URL_USER: Final = re.compile(r"(\w[\w+.-]*:/+[^:/@?]*):.*@", re.DOTALL)


def redacted(text: str) -> str:
    """The text without the passwords of URLs, and without the values of options that are named like one."""
    if "@" in text:
        text = _USER.sub(rf"\1:{HIDDEN}@", text)
    if "://" in text:  # where a port would be, after a user's name that was taken for a host's
        text = _NO_PORT.sub(rf"\1:{HIDDEN}", text)
    return _OPTION.sub(rf"\1{HIDDEN}", text) if "=" in text else text


def redacted_facts(value: Any) -> Any:
    """The same of every text in a value that is ready for JSON."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: redacted_facts(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [redacted_facts(each) for each in value]
    return value


def redacted_url(url: str) -> str:
    """The same of a text that is one URL, also where a password has blanks or an option's name is percent-encoded."""
    place, mark, query = _URL_USER.sub(rf"\1:{HIDDEN}@", url, count=1).partition("?")
    options = [
        f"{name}={HIDDEN}" if equals and _OPTION.match(f"{_decoded(name)}=x") else f"{name}{equals}{value}"
        for name, equals, value in (option.partition("=") for option in query.split("&"))
    ]
    return redacted(place + mark + "&".join(options))


def _decoded(name: str) -> str:
    """An option's name without percent signs, as far as ASCII goes."""
    return re.sub(r"%([0-7][0-9a-fA-F])", lambda found: chr(int(found[1], 16)), name)


def unreadable_url(url: str) -> str:
    """What a message may quote of a text that is no URL: all of it if it cannot hold a password, else its beginning."""
    if not any(mark in url for mark in ":@=%"):
        return url
    scheme = _SCHEME.match(url)
    return f"{scheme[0] if scheme and '@' not in scheme[0] else ''}{HIDDEN}"
