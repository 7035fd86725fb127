"""Text that is safe for a terminal: control characters are shown, not obeyed.

Tokens, paths, names, keys and messages come from models, files and other people. A terminal obeys control sequences in
them: it overwrites lines that were read already, sets the clipboard (OSC 52), or sets its title.
"""

from __future__ import annotations

import re
from typing import Final

# C0 but tab and newline, DEL and C1; what turns the order of letters round; halves of surrogate pairs, which stand for
# bytes that are no UTF-8. Each is one character, so a sequence that is cut between two tokens does not get through.
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_COLOURS: Final = re.compile(r"(\x1b\[[0-9;]*m)")


def visible(text: str) -> str:
    r"""The text with `\u001b` for ESC, and so on: within JSON, where that is an escape, the same value."""
    return _CONTROLS.sub(_escape, text)


def visible_line(text: str) -> str:
    """The same for a value within a line: its tabs and newlines are shown, too."""
    return visible(text).replace("\t", r"\u0009").replace("\n", r"\u000a")


def coloured(text: str) -> str:
    """The output of other code, with its colours and no other control sequences."""
    return "".join(part if index % 2 else visible(part) for index, part in enumerate(_COLOURS.split(text)))


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found.group()):04x}"
