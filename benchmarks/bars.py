"""The figures that count, the bar of each, and how it was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

Figures = Mapping[str, float]


class Row(NamedTuple):
    """A line of the table. `bar` says in words what `holds` checks; both are absent where a figure has no bar."""

    key: str
    form: str
    how: str
    bar: str = ""
    holds: Callable[[Figures], bool] | None = None


ROWS = (
    Row(
        "generate_ratio",
        "{:.2f}",
        "a durable stream's tokens/s over transformers' generate: SmolLM2-135M fp32, greedy, 64 + 128 tokens, same ids",
        ">= 1.3",
        lambda f: f["generate_ratio"] >= 1.3 and f["stream_same_tokens"] == 1,
    ),
    Row(
        "durability_tax",
        "{:.3f}",
        "1 - tokens/s on SQLite (synchronous FULL) over that in memory: two equal streams that take turns by blocks",
        "<= 0.02",
        lambda f: f["durability_tax"] <= 0.02,
    ),
    Row(
        "sync_share",
        "{:.3f}",
        "of that, what the syncs alone cost: the same over a third such stream, on SQLite with synchronous OFF",
    ),
    Row(
        "control_sqlite_1",
        "{:,.0f}/s",
        "committed tokens, scripted model, 1 greedy job, SQLite synchronous FULL, an append and a sync each",
        ">= 5 x dbos_steps",
        lambda f: f["control_over_dbos_1"] >= 5,
    ),
    Row(
        "control_sqlite_64",
        "{:,.0f}/s",
        "the same with 64 jobs side by side, an append and a sync for a token of each",
        ">= 20,000/s and >= 25 x dbos_steps",
        lambda f: f["control_sqlite_64"] >= 20_000 and f["control_over_dbos_64"] >= 25,
    ),
    Row("control_postgres_1", "{:,.0f}/s", "as control_sqlite_1, on a local PostgreSQL, fsync on"),
    Row(
        "control_postgres_64",
        "{:,.0f}/s",
        "as control_sqlite_64, on a local PostgreSQL, fsync on",
        ">= 12,000/s",
        lambda f: f["control_postgres_64"] >= 12_000,
    ),
    Row("dbos_steps", "{:,.0f}/s", "DBOS: trivial steps of one workflow, SQLite system database, default settings"),
    Row("es_events", "{:,.0f}/s", "eventsourcing: one event a save, SQLite recorder in a file, default settings"),
    Row(
        "fold_us",
        "{:.2f} us",
        "an event of a sampled job of 2,000 tokens in SQLite: read, chain verified, decoded, taken into the transcript",
        "<= es_fold_us / 8",
        lambda f: f["fold_us"] * 8 <= f["es_fold_us"],
    ),
    Row("read_us", "{:.2f} us", "the same, and the items of a stream made of it"),
    Row(
        "audit_fold_us",
        "{:.2f} us",
        "the same with every event folded: each receipt issued again, each state digested",
    ),
    Row(
        "es_fold_us",
        "{:.2f} us",
        "eventsourcing: repository.get of an aggregate with as many events and the same facts",
    ),
    Row(
        "bytes_per_token",
        "{:.0f} bytes",
        "growth of the SQLite file a token, log merged; the worse of 1 sampled job and 64 side by side",
        "<= 200",
        lambda f: f["bytes_per_token"] <= 200,
    ),
    Row(
        "sealed_bytes_per_token",
        "{:.0f} bytes",
        "the same of 1 sampled job of 4,096 tokens, sealed: all that is of it in the vacuumed file",
        "<= 24",
        lambda f: f["sealed_bytes_per_token"] <= 24,
    ),
    Row(
        "sealed_bytes_per_token_64", "{:.0f} bytes", "the same of 64 sampled jobs of 64 tokens each, sealed one by one"
    ),
    Row(
        "late_over_early",
        "{:.3f}",
        "median time of a turn at position 8,000 over that at 100, by turns: scripted model, sampled, memory log",
        "<= 1.1",
        lambda f: f["late_over_early"] <= 1.1,
    ),
    Row(
        "text_us",
        "{:.1f} us",
        "a token to text and its place in a stream, four stop strings: the worse of positions 100 and 8,000",
        "<= 5 us",
        lambda f: f["text_us"] <= 5,
    ),
    Row("seal_ms", "{:.1f} ms", "a prompt of 4,096 token ids: sealed, and its envelope's identity"),
    Row("admit_ms", "{:.1f} ms", "that envelope as text: admitted, and its identity"),
    Row(
        "resume_tensors_ms",
        "{:.0f} ms",
        "a lost job of 2,000 tokens of SmolLM2: from its claim until its cache is back from kept rows",
        "<= 100 ms",
        lambda f: f["resume_tensors_ms"] <= 100,
    ),
    Row(
        "resume_prefill_ratio",
        "{:.2f}",
        "the same by one prefill, over a prefill of as many tokens by the session alone",
        "<= 1.2",
        lambda f: f["resume_prefill_ratio"] <= 1.2,
    ),
    Row(
        "api_overhead",
        "{:.3f}",
        "share of the time of 4 jobs of 160 tokens of SmolLM2 through `Log.map` that an engine alone does not take",
        "<= 0.01",
        lambda f: f["api_overhead"] <= 0.01,
    ),
    Row(
        "mask_p99_us",
        "{:.0f} us",
        "a step's grammar mask over 49,152 tokens, 99th percentile: parser, llguidance's mask, guards; JSON schema",
        "<= 500 us",
        lambda f: f["mask_p99_us"] <= 500,
    ),
    Row(
        "grammar_rebuild_us",
        "{:.1f} us",
        "bringing a lost parser back from the committed tokens, a token, compilation included",
        "<= 20 us",
        lambda f: f["grammar_rebuild_us"] <= 20,
    ),
    Row(
        "policy_ratio",
        "{:.2f}",
        "64 rows of 49,152 decided by temperature, top-k, top-p, over transformers' processors, softmax and draw",
        "<= 1.5",
        lambda f: f["policy_ratio"] <= 1.5,
    ),
    Row(
        "policy_ratio_edited",
        "{:.2f}",
        "the same with 300 biases, and a repetition penalty over the 512 tokens before",
        "<= 1.5",
        lambda f: f["policy_ratio_edited"] <= 1.5,
    ),
    Row(
        "torture_points",
        "{:.0f}",
        "kills and adversities of the quick crash matrix: old or new, nothing lost or twice, the same end",
    ),
    Row(
        "torture_failures",
        "{:.0f}",
        "how many of them did harm, and points that nothing reached",
        "0",
        lambda f: f["torture_failures"] == 0,
    ),
    Row("simulated_schedules", "{:.0f}", "schedules of faults, each drawn from a seed"),
    Row(
        "simulated_failures",
        "{:.0f}",
        "how many of them changed a log, lost or repeated a token, or did not end",
        "0",
        lambda f: f["simulated_failures"] == 0,
    ),
    Row(
        "simulated_seconds",
        "{:.0f} s",
        "all of them, a process for each core",
        "<= 180 s",
        lambda f: f["simulated_seconds"] <= 180,
    ),
)
