"""Work counters of model calls (CALL-5): what was computed, and what a cache-less model would have computed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """Counts; they add up.

    prefill_tokens, decode_tokens   input tokens of either kind of call
    cache_appends                   key/value row pairs appended: layers x tokens
    qkv_rows                        rows projected to q, k or v: 3 x layers x tokens
    cached_cells                    attention scores formed: layers x heads x positions seen, over all tokens
    complete_prefix_cells           attention scores that recomputing the prefix would form, once for each score row
    """

    prefill_tokens: int = 0
    decode_tokens: int = 0
    cache_appends: int = 0
    qkv_rows: int = 0
    cached_cells: int = 0
    complete_prefix_cells: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.prefill_tokens + other.prefill_tokens,
            self.decode_tokens + other.decode_tokens,
            self.cache_appends + other.cache_appends,
            self.qkv_rows + other.qkv_rows,
            self.cached_cells + other.cached_cells,
            self.complete_prefix_cells + other.complete_prefix_cells,
        )


def work_of_call(layers: int, heads: int, start: int, stop: int, prefill: bool) -> Work:
    """The work of appending positions [start, stop) of one lane and scoring the last of them.

    A causal row at position p forms p + 1 cells in each layer and head; the full square of a cache-less call is `stop`
    rows of `stop` cells. Padding rows and cells under the mask are not counted.
    """
    tokens = stop - start
    seen = (start + 1 + stop) * tokens // 2
    return Work(
        prefill_tokens=tokens if prefill else 0,
        decode_tokens=0 if prefill else tokens,
        cache_appends=layers * tokens,
        qkv_rows=3 * layers * tokens,
        cached_cells=layers * heads * seen,
        complete_prefix_cells=layers * heads * stop * stop,
    )
