"""Walk: follow a job's appends by their links, from the newest back to an anchor or the first."""

from __future__ import annotations

from typing import Final

from sqlalchemy import text

from .stored import CHECK_BYTES

# From the newest append (`{tail}`) to the last anchor that lies wholly at or before `after`. A link leads to an older
# row, so a damaged one cannot lead in a circle.
_LINKS: Final = f"""
    walk (id, prev, last, anchor) AS (
        SELECT id, prev, last, length(chain) > {CHECK_BYTES} FROM appends WHERE id = {{tail}}
        UNION ALL
        SELECT a.id, a.prev, a.last, length(a.chain) > {CHECK_BYTES}
        FROM walk w JOIN appends a ON a.id = w.prev AND a.id < w.id
        WHERE NOT (w.anchor AND w.last <= :after)
    )
"""

ALL: Final = -1
"""The sequence `after` that no anchor lies at: the walk ends at the first append."""

FROM_TAIL: Final = text(
    f"""
    WITH RECURSIVE {_LINKS.format(tail=":tail")}
    SELECT a.id, a.first, a.last, a.fence, a.key, a.chain, a.payload
    FROM walk w JOIN appends a ON a.id = w.id ORDER BY a.first, a.id
    """
)

# The job's row comes first: its head's sequence as `first`, its head's digest as `chain`. One statement sees the head
# and what leads to it at one moment, also where the log is sealed or erased meanwhile.
FROM_HEAD: Final = text(
    f"""
    WITH RECURSIVE
    job AS (SELECT tail, sequence, chain FROM jobs WHERE job = :job),
    {_LINKS.format(tail="(SELECT tail FROM job WHERE sequence > :after)")}
    SELECT 0 AS part, sequence AS first, 0 AS last, 0 AS fence, NULL AS key, chain, NULL AS payload FROM job
    UNION ALL
    SELECT 1, a.first, a.last, a.fence, a.key, a.chain, a.payload FROM walk w JOIN appends a ON a.id = w.id
    ORDER BY part, first
    """
)
