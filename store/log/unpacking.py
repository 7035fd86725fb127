"""Unpacking: msgpack that anybody may have written, as values, in bounded memory.

A list states its length before its values, and memory is allocated for that; a single byte can stand for a value of
some dozens. So anything longer than a step's record is scanned first without building values, and the values are
counted as they are built. Nothing here is ever written as a map or an extension, and those are refused.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from msgpack import Unpacker, UnpackException, unpackb

from ...fsm.limits import PROMPT_ENTRIES_MAX

STEP_BYTES: Final = 4096
"""Anything up to this size is harmless, and most of what is read is: a step with alternatives fits."""

SHORT: Final = 4096
"""Values in one list that are few: msgpack nests a thousand deep, so room for some 32 MiB can be asked for."""

VALUES_MAX: Final = 8 * PROMPT_ENTRIES_MAX
"""Values in one append: an entry of a prompt's record is a list of at most four, and its prompt's share."""

LISTS_MAX: Final = 2 * PROMPT_ENTRIES_MAX + SHORT


class _Counted:
    """Counts the values of lists as they are made. Raises ValueError beyond the maximum."""

    def __init__(self) -> None:
        self._values = 0
        self._lists = 0

    def __call__(self, made: tuple[Any, ...]) -> tuple[Any, ...]:
        self._values += len(made)
        self._lists += 1
        if self._values > VALUES_MAX or self._lists > LISTS_MAX:
            raise ValueError(f"it has more than {LISTS_MAX} lists or {VALUES_MAX} values")
        return made


def unpacked(data: bytes, longest: int = SHORT, **options: Any) -> Any:
    """What these bytes say, tuples for lists. No list may be longer than `longest`; `options` are msgpack's.

    Errors: ValueError, TypeError and LookupError, as msgpack's own; also for more lists or values than the maximum.
    """
    if len(data) <= STEP_BYTES:
        return unpackb(data, use_list=False, **options)
    if longest > SHORT:
        _ends(data)
    return unpackb(
        data,
        use_list=False,
        max_array_len=longest,
        list_hook=_Counted(),
        object_hook=_refused,
        ext_hook=_refused,
        **options,
    )


def _ends(data: bytes) -> None:
    """Raise ValueError unless every list in these bytes is as long as it says."""
    reader = Unpacker(max_buffer_size=len(data))
    reader.feed(data)
    try:
        reader.skip()
    except (UnpackException, ValueError) as problem:  # a value that does not end is no ValueError here
        raise ValueError(str(problem)) from problem


def _refused(*_: object) -> NoReturn:
    raise ValueError("it has a map or an extension")
