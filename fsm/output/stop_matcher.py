"""Stop strings over a byte stream: one automaton, one integer of state.

The automaton of Aho and Corasick ("Efficient string matching", CACM 1975). Its node is the longest suffix of the
stream that is a prefix of some stop, which answers both questions of a stop search: what has completed, and what may
still complete and must be held back. Memory is linear in the stops' bytes, and a byte costs the same anywhere in a
stream.

Rule of choice: the match that completes first; of several that complete at one byte, the longest, which is the one
that starts first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ..errors import SchemaViolation


@dataclass(frozen=True, slots=True)
class Match:
    """A completed stop: its index in the list of stops, and its bytes [start, end) in the visible stream.

    start equals end for a stop that is a hidden special token: it has no visible byte.
    """

    stop: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StopMatcher:
    """The compiled automaton; immutable, so every job with the same stops shares one.

    Nodes are numbered in the order in which the stops, in their order, first need them; the root is 0. A node is
    stored in snapshots, so this numbering never changes.
    """

    stops: tuple[bytes, ...]
    edges: tuple[Mapping[int, int], ...]
    fallbacks: tuple[int, ...]
    completed: tuple[int | None, ...]
    holdbacks: tuple[int, ...]
    starts: frozenset[int]
    indexes: Mapping[bytes, int]

    def feed(self, node: int, data: bytes, offset: int = 0) -> tuple[int, Match | None]:
        """Step from `node` over `data`, up to the first completed stop.

        offset   position of data[0] in the stream, in bytes; a match is given in the stream's positions
        returns  (node, match): the node after the last byte looked at
        """
        if node == 0 and self.starts.isdisjoint(data):
            return 0, None
        edges, fallbacks, completed = self.edges, self.fallbacks, self.completed
        for index, byte in enumerate(data, offset + 1):
            while byte not in edges[node] and node:
                node = fallbacks[node]
            node = edges[node].get(byte, 0)
            stop = completed[node]
            if stop is not None:
                return node, Match(stop, index - len(self.stops[stop]), index)
        return node, None

    def skip(self, node: int, data: bytes) -> int:
        """Step from `node` over all of `data` where no stop counts yet, and return the node.

        What was passed can still begin a stop that completes later, so the node goes on as it would in `feed`.
        """
        edges, fallbacks = self.edges, self.fallbacks
        for byte in data:
            while byte not in edges[node] and node:
                node = fallbacks[node]
            node = edges[node].get(byte, 0)
        return node

    def holdback(self, node: int) -> int:
        """Length in bytes of the longest suffix of the stream that is a proper prefix of some stop."""
        return self.holdbacks[node]

    def whole(self, piece: bytes) -> int | None:
        """Index of the first stop that equals `piece` entirely, or None."""
        return self.indexes.get(piece)


@lru_cache(maxsize=1024)
def compile_stops(stops: tuple[bytes, ...]) -> StopMatcher:
    """Build the automaton for `stops`; of two equal stops the first counts.

    Raises SchemaViolation for an empty stop, which would match before the first byte.
    """
    edges: list[dict[int, int]] = [{}]
    completed: list[int | None] = [None]
    depths = [0]
    indexes: dict[bytes, int] = {}
    for index, stop in enumerate(stops):
        if not stop:
            raise SchemaViolation(f"stop[{index}]", "an empty stop string matches everywhere")
        node = 0
        for byte in stop:
            if byte not in edges[node]:
                edges[node][byte] = len(edges)
                edges.append({})
                completed.append(None)
                depths.append(depths[node] + 1)
            node = edges[node][byte]
        if stop not in indexes:
            completed[node] = indexes[stop] = index

    fallbacks = [0] * len(edges)
    holdbacks = [0] * len(edges)
    # Breadth first: a node's fallback is shallower than the node, so it is finished before the node needs it.
    queue = [0]
    for node in queue:
        for byte, child in edges[node].items():
            queue.append(child)
            fallback = fallbacks[node]
            while byte not in edges[fallback] and fallback:
                fallback = fallbacks[fallback]
            fallbacks[child] = edges[fallback].get(byte, 0) if node else 0
        fallback = fallbacks[node]
        if completed[node] is None:
            completed[node] = completed[fallback]
        # A node without edges is a whole stop: as a proper prefix only a shorter suffix of it can count.
        holdbacks[node] = depths[node] if edges[node] else holdbacks[fallback]
    return StopMatcher(
        stops=stops,
        edges=tuple(edges),
        fallbacks=tuple(fallbacks),
        completed=tuple(completed),
        holdbacks=tuple(holdbacks),
        starts=frozenset(edges[0]),
        indexes=indexes,
    )
