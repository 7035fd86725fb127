"""What the crank needs of a loaded model, native or scripted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ...fsm.request.admission import RuntimeFacts
from ...fsm.request.artifact import ArtifactFacts
from ...fsm.request.seal import TextPort

if TYPE_CHECKING:
    from torch import Tensor

    from ..families.session import Decode, Lane, Prefill, Ticket


class Text(TextPort, Protocol):
    """Text to token ids, and back: exact bytes of every token id, and which tokens are special."""

    @property
    def pieces(self) -> Sequence[bytes]: ...

    def is_special(self, token: int) -> bool: ...


class Caller(Protocol):
    """A session: lanes, and model calls that advance all of their lanes or none.

    recorded  facts of its calls, as (name, value) pairs: recorded with each tenure
    """

    @property
    def recorded(self) -> tuple[tuple[str, str], ...]: ...

    def open(self, request: str, positions: int) -> Lane:
        """An empty lane with room for `positions` rows."""

    def release(self, lane: Lane) -> None:
        """Forget a lane; its storage may be reused, its content never read again."""

    def prepare(self, calls: Sequence[Prefill | Decode]) -> Ticket:
        """Compute without changing logical state."""

    def select(self, ticket: Ticket) -> Tensor:
        """ALL_NEW: advance every lane of the ticket; its score rows, [calls, vocabulary] float32."""


class Described(Protocol):
    """What it takes of a model to seal requests for it: loaded, or as it is registered in a database."""

    @property
    def facts(self) -> ArtifactFacts: ...

    @property
    def runtime(self) -> RuntimeFacts: ...

    @property
    def text(self) -> Text: ...


class Model(Described, Protocol):
    """One artifact, loaded; any number of threads may share it.

    session(width)  opens a session of the caller's own, for one thread, for jobs of that batch width: what it computes
                    of a row depends on no other row. Errors: UnequalRows
    """

    @property
    def recorded(self) -> tuple[tuple[str, str], ...]: ...

    @property
    def lanes(self) -> int | None:
        """How many jobs it has room for at a time, whatever their widths; None without bound."""

    def session(self, width: int) -> Caller: ...
