"""The body of a sealed log, read item by item as it is decompressed: a few bytes can be compressed from very many.

Nothing stated is trusted: a size is checked against the data, a list against its bound and a value against its type,
each before memory is allocated for it.
"""

from __future__ import annotations

import lzma
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from msgpack import Unpacker, UnpackException

from ...fsm.limits import LOGPROBS_TOP_MAX, NEW_TOKENS_MAX, PAYLOAD_BYTES_MAX, VOCABULARY_SIZE_MAX

WHOLE, THINNED = 0, 1
_WINDOW: Final = [{"id": lzma.FILTER_LZMA2, "dict_size": 64 * 1024 * 1024}]
"""How far back what was written may look, whichever preset it was written with."""

MALFORMED: Final = (
    lzma.LZMAError, UnpackException, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, struct.error,
)  # fmt: skip
"""What reading bytes that no release wrote can raise, beside this program's own errors."""

_READ_BYTES: Final = 64 * 1024
_WORD_BYTES: Final = 8
_COLUMN_BYTES_MAX: Final = _WORD_BYTES * LOGPROBS_TOP_MAX * NEW_TOKENS_MAX
_NIL: Final = 0xC0
_SHORT_LIST, _LIST_16, _LIST_32 = 0x90, 0xDC, 0xDD
_WHOLE_FIELDS, _THINNED_FIELDS, _OTHERS_FIELDS = 4, 12, 5


class Whole(NamedTuple):
    """An append as it was written."""

    fence: int
    key: bytes
    payload: bytes


class Thinned(NamedTuple):
    """Steps as columns (see `columns`)."""

    fence: int
    columns: tuple[Any, ...]


class _Inflated:
    """What compressed bytes say, read forward. ValueError where it is not of just this size."""

    def __init__(self, compressed: bytes, size: int) -> None:
        self._inflater = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_WINDOW)
        self._next = compressed
        self._size = size
        self._left = size

    def read(self, most: int) -> bytes:
        """The next bytes, `most` at most; none only at the end."""
        if self._inflater.eof:
            self._end()
            return b""
        given, self._next = self._next, b""
        found = self._inflater.decompress(given, most)
        self._left -= len(found)
        if self._left < 0:
            raise ValueError(f"sealed_bytes is more than the {self._size} that it says")
        if not found and not self._inflater.eof and self._inflater.needs_input:
            raise ValueError("the compressed bytes end too early")
        return found or self.read(most)

    def _end(self) -> None:
        if self._left or self._inflater.unused_data:
            raise ValueError(f"{self._size - self._left} of {self._size} bytes")


def items(compressed: bytes, size: int) -> Iterator[Whole | Thinned]:
    """The items of a body of so many bytes. Errors: those of MALFORMED."""
    inflated = _Inflated(compressed, size)
    reader = _Reader(inflated)
    for _ in range(reader.list_size()):
        fields = reader.list_size()
        kind, fence = reader.number(), reader.number()
        if (kind, fields) == (WHOLE, _WHOLE_FIELDS):
            yield Whole(fence, reader.octets(), reader.octets())
        elif (kind, fields) == (THINNED, _THINNED_FIELDS):
            yield Thinned(fence, reader.columns())
        else:
            raise ValueError(f"an item of kind {kind} and {fields} fields")
    if inflated.read(1):
        raise ValueError("something follows the last item")


class _Reader:
    """Values of the types that are due, one after the other."""

    def __init__(self, file: _Inflated) -> None:
        self._unpacker = Unpacker(
            file,
            read_size=_READ_BYTES,
            use_list=False,
            max_buffer_size=max(_COLUMN_BYTES_MAX, PAYLOAD_BYTES_MAX) + 2 * _READ_BYTES,
            max_bin_len=max(_COLUMN_BYTES_MAX, PAYLOAD_BYTES_MAX),
            max_str_len=0,
            max_array_len=0,
            max_map_len=0,
            max_ext_len=0,
        )

    def number(self) -> int:
        value = self._unpacker.unpack()
        if type(value) is not int:
            raise TypeError(f"{type(value).__name__} in the place of a number")
        return value

    def octets(self) -> bytes:
        value = self._unpacker.unpack()
        if type(value) is not bytes:
            raise TypeError(f"{type(value).__name__} in the place of bytes")
        return value

    def words(self, count: int) -> bytes:
        """A column of so many numbers."""
        column = self.octets()
        if len(column) != _WORD_BYTES * count:
            raise ValueError(f"a column of {len(column)} bytes for {count} numbers")
        return column

    def list_size(self) -> int:
        """How many values the list has that begins here. ValueError where none does."""
        size = self._maybe_list()
        if size is None:
            raise ValueError("nothing in the place of a list")
        return size

    def _maybe_list(self) -> int | None:
        """The same; None for nil."""
        (code,) = self._raw(1)
        if code == _NIL:
            return None
        if code & 0xF0 == _SHORT_LIST:
            return code & 0x0F
        if code in (_LIST_16, _LIST_32):
            return int.from_bytes(self._raw(2 if code == _LIST_16 else 4))
        raise ValueError(f"byte {code:#x} in the place of a list")

    def columns(self) -> tuple[Any, ...]:
        """Ten columns of steps. No token is twice in a table, beside as one that is shown and one that is hidden."""
        count, lanes, output = self.number(), self.number(), self.number()
        if not 0 < count <= NEW_TOKENS_MAX:
            raise ValueError(f"thinned_steps is {count}, and the maximum is {NEW_TOKENS_MAX}")
        branches = self.words(count)
        kinds = self._table(3, min(count, 2 * VOCABULARY_SIZE_MAX))
        inner = [self.words(count) for _ in range(4)]
        return count, lanes, output, branches, kinds, *inner, self._others(count)

    def _others(self, count: int) -> tuple[Any, ...] | None:
        """The alternatives beside the steps; None where there are none."""
        fields = self._maybe_list()
        if fields is None:
            return None
        if fields != _OTHERS_FIELDS:
            raise ValueError(f"alternatives of {fields} fields")
        sizes = self.words(count)
        most = LOGPROBS_TOP_MAX * count
        table = self._table(2, min(most, VOCABULARY_SIZE_MAX))
        return sizes, table, *[self.octets() for _ in range(3)]

    def _table(self, width: int, most: int) -> list[tuple[Any, ...]]:
        """Rows of values, `width` in each."""
        size = self.list_size()
        if size > most:
            raise ValueError(f"a table has {size} rows, and the maximum is {most}")
        return [self._row(width) for _ in range(size)]

    def _row(self, width: int) -> tuple[Any, ...]:
        if (fields := self.list_size()) != width:
            raise ValueError(f"a row of {fields} values in a table of {width}")
        return tuple([self._unpacker.unpack() for _ in range(width)])

    def _raw(self, count: int) -> bytes:
        found = self._unpacker.read_bytes(count)
        if len(found) != count:
            raise ValueError("the body ends within a list")
        return bytes(found)
