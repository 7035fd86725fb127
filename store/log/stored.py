"""An append as it is stored, and what kind of row it is."""

from __future__ import annotations

from typing import Final, NamedTuple

CHECK_BYTES: Final = 8
"""What a row that is no anchor keeps of its digest."""

MARK: Final = b"\xc1"
"""What a sealed row's payload begins with, and no other's that has a key: msgpack gives this byte no meaning."""

ERASED: Final = MARK + b"\x00"
"""What it begins with where the content is erased; else the second byte is the version of what follows."""


class Stored(NamedTuple):
    """An append as it is stored. `chain` is the digest after it, whole in an anchor, else its beginning."""

    first: int
    last: int
    fence: int
    key: bytes
    chain: bytes
    payload: bytes

    @property
    def anchor(self) -> bool:
        return len(self.chain) > CHECK_BYTES

    @property
    def sealed(self) -> bool:
        """Whether it stands for a whole log. An erased append has no key, and any bytes may begin its digest."""
        return bool(self.key) and self.payload[:1] == MARK

    @property
    def erased(self) -> bool:
        """Whether its content is gone: it has no key, or is a sealed row that says so."""
        return not self.key or self.payload[:2] == ERASED
