"""What the crank needs of a loaded model, native or scripted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...fsm.request.admission import RuntimeFacts
from ...fsm.request.artifact import ArtifactFacts
from ...fsm.request.seal import TextPort

if TYPE_CHECKING:
    from torch import Tensor

    from ..caches.abi import CacheAbi
    from ..caches.arena import Lane
    from ..families.session import Decode, Prefill


class Text(TextPort, Protocol):
    """Text to token ids, and back: exact bytes of every token id, and which tokens are special."""

    @property
    def pieces(self) -> Sequence[bytes]: ...

    def is_special(self, token: int) -> bool: ...


class RowCache(Protocol):
    """K/V rows of a session's lanes, to be kept elsewhere and put back.

    abi  what they are rows of: those of another one are refused
    """

    @property
    def abi(self) -> CacheAbi: ...

    def rows(self, lane: Lane, start: int, stop: int) -> Tensor:
        """A copy of the lane's rows [start, stop), on the host: [layers, 2, kv_heads, stop - start, head_dim]."""

    def restore(self, lane: Lane, parts: Sequence[Tensor]) -> None:
        """Fill an empty lane with rows as `rows` gave them, one part after the other."""


class ModelSession(Protocol):
    """Lanes, and model calls that advance all of their lanes or none.

    recorded  facts of its calls, as (name, value) pairs: recorded with each tenure
    cache     the rows of its lanes; None where they hold none, and a lost lane comes back by calls alone
    """

    @property
    def recorded(self) -> tuple[tuple[str, str], ...]: ...

    @property
    def cache(self) -> RowCache | None: ...

    def open(self, request: str, positions: int) -> Lane:
        """An empty lane with room for `positions` rows."""

    def release(self, lane: Lane) -> None:
        """Forget a lane; its storage may be reused, its content never read again."""

    def prepare(self, calls: Sequence[Prefill | Decode]) -> Any:
        """Compute without changing logical state; a ticket, which only this session has to understand."""

    def select(self, ticket: Any) -> Tensor:
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
    """One artifact, loaded; any number of threads may share it. `check_model` says whether an object is one.

    session(width)  opens a session of the caller's own, for one thread, for jobs of that batch width: what it computes
                    of a row depends on no other row. Errors: UnequalRows
    """

    @property
    def recorded(self) -> tuple[tuple[str, str], ...]: ...

    @property
    def lanes(self) -> int | None:
        """How many jobs it has room for at a time, whatever their widths; None without bound."""

    def session(self, width: int) -> ModelSession: ...
