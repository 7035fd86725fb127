"""Write docs/reference/errors.md: a row for every typed error, from the errors' own classes and from here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Final

from decisions import table

from decodelog.fsm.errors import Defect, Problem, Rejected, Transient

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/errors.md"

HEAD: Final = """# Errors

Every error that decodelog raises, sorted by who must act. Each has a stable `code`, typed fields, and a message that
ends with what to do; the command line adds the command that helps, and with `--json` prints all of them. In Python each
is a class of `decodelog.errors` with the same name in its own spelling: `limit_exceeded` is `LimitExceeded`.
`make docs` writes this page from the classes and from `tools/runbook.py`.
"""

KINDS: Final[dict[type[Problem], str]] = {
    Transient: """## It may succeed later

Workers try again by themselves, for a bounded time or number of times; commands do not. Nothing is lost, and nothing
was done by half. Somebody has to act where it lasts.
""",
    Defect: """## Something cannot be as it is: stop, keep the evidence, look

None of these is tried again. Stop the workers that say it, export the job or back the database up as it is, and look
before anything is changed.
""",
    Rejected: """## The caller, or whoever set the program up, must change something

Trying again unchanged cannot help. A refused request was not admitted; a job that a worker refuses is left to others,
as it is.
""",
}

GUIDANCE: Final = {
    # it may succeed later
    "database_unavailable": "Look whether the server runs and takes connections, whether the disk can be read, and "
    "what the reason says; after a failover, where the URL leads to. Workers wait 60 s and "
    "then end: start them again when it is back. Where a server speaks another language "
    "than English, a wrong name or password says this too.",
    "database_read_only": "Look where the URL leads to: to a standby, or to a server to which a failover has not "
    "come yet. `default_transaction_read_only` of the role or the database says this too. "
    "Workers wait 60 s and then end.",
    "database_exhausted": "Count connections (`pg_stat_activity`) and look at `max_connections`, the role's "
    "CONNECTION LIMIT and the server's memory. A worker takes four; a pooler before the "
    "server lets them share.",
    "database_timeout": "Look at `statement_timeout`, `transaction_timeout`, "
    "`idle_in_transaction_session_timeout` and `idle_session_timeout` of the role and the "
    "database. A server that is overloaded runs into them too.",
    "database_full": "Make room on the disk of the database, its write-ahead log included. Workers go on by "
    "themselves within 60 s, later when they are started again.",
    "database_locked": "Find the process that holds it: for SQLite an open shell, a backup or a migration (`fuser "
    "decodelog.db`), for PostgreSQL `pg_stat_activity` and `pg_locks`. Ending that process is safe.",
    "fetch_failed": "Look at the network, the proxy and the disk, and fetch again: nothing half-fetched is used.",
    "no_free_slot": "For programs that reserve lanes themselves: hold fewer jobs than the session has slots. No job "
    "fails of it: a worker claims as many as there is room for, and gives back what finds none. Where one says that "
    "there are 0 slots, its model has room for no job at all.",
    "call_failed": "It counts against its job's retry budget, and the reason is in `decodelog events JOB`. Where many "
    "jobs fail so, look at the worker's memory and device.",
    "prepared_cache_changed": "As `call_failed`. Repeated, something else writes into the cache: restart that worker.",
    "roster_incomplete": "As `call_failed`.",
    "job_busy": "A repair or a restore needs the job for itself. Wait for its end, or stop the worker that holds it.",
    "child_failed": "Run `decodelog doctor`; where the kernel has killed the process, give it more memory.",
    # stop and look
    "job_fault": "The job is FAILED, its committed text stays, and jobs beside it went on. Keep `decodelog export JOB` "
    "and the worker's versions, and report the message. Submitted again it may end the same way.",
    "broken_limits": "The installation was edited: install it anew.",
    "broken_table": "The installation was edited: install it anew.",
    "broken_invariant": "Run `decodelog audit JOB`, keep `decodelog export JOB --out job.dlog`, and report both.",
    "wrong_scores": "An error of the program or of an adapter: keep the export of the job, and report it.",
    "wrong_draw": "As `wrong_scores`.",
    "database_fault": "The tables are not what the schema says: `decodelog db check`, and the server's log. Somebody "
    "has changed them, or the database is damaged; restore a backup beside it and compare.",
    "database_moved": "Something has removed, renamed or replaced the file or its write-ahead log: a cleanup,"
    " a restore of a backup, a synchronised folder. Stop all that use it before anything is"
    " put back. What was shown before is in the files that were taken away, as long as some"
    " process still has them open (`lsof +L1`).",
    "misformed_append": "An error of the program: nothing was written. Report it.",
    "corrupt_record": "Stop what writes, copy the database as it is, and check disk and memory. `decodelog audit "
    "--all` names every damaged place; jobs that it does not name are sound. Restore a backup beside it; an export "
    "of the job from before shows what was there.",
    "corrupt_model": "Jobs are sound: each has its request sealed. `decodelog model register DIR` writes the model "
    "anew; then look at disk and memory, and at who may write to the database.",
    # whoever set the program up
    "schema_missing": "Nobody has run `decodelog db upgrade` on it, or the URL leads to another database: look before "
    "you make a new one.",
    "schema_outdated": "The program is newer than the database: stop the workers, back up, `decodelog db upgrade`.",
    "schema_newer": "The program is older than the database: a host was left out when the others were upgraded.",
    "unsupported_database": "Correct `--db` or DECODELOG_DB.",
    "folder_missing": "Make the folder, or correct `--db` or DECODELOG_DB; a disk may not be mounted.",
    "log_left_behind": "Somebody has removed or renamed the file alone, after a crash or while it was in use. Its "
    "newest work is in the log: bring the file back under its name, and both are whole. To begin anew, remove what "
    "is left beside it (`-wal`, `-shm`, `-journal`), when no process has it open any more.",
    "file_read_only": "`ls -l` of the file and its folder, and `mount`. To read alone the right to read is "
    "enough, unless a write-ahead log was left behind: then let somebody who may write open"
    " it once (`decodelog jobs`).",
    "database_denied": "`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES` and `USAGE ON ALL SEQUENCES` are "
    "what a worker takes, SELECT what a reader does, and `GRANT CREATE ON SCHEMA` what "
    "`decodelog db upgrade` does; or correct the user, the password, `pg_hba.conf`.",
    "database_missing": "Correct the name in the URL, or `CREATE DATABASE`.",
    "database_pooled": "The URL has `prepare_threshold`, and the pooler does not keep prepared statements: "
    "leave it out, or point the URL at the server itself.",
    "database_not_durable": "`SHOW fsync` and `SHOW full_page_writes`, and turn them on. For a database whose "
    "content may be lost, as in tests, declare that: `ALTER DATABASE NAME SET "
    "decodelog.durable = 'no'`.",
    "unknown_wire_tag": "As `schema_newer`: a later release has written this log.",
    "unknown_model": "On a worker: jobs name models as they were submitted; a relative directory must exist there too.",
    "model_not_fetched": "Fetch it on each machine that has workers.",
    "model_not_here": "Give the worker the folder that it lies in (`--models DIR`, or DECODELOG_MODELS), or start one "
    "where it lies. Its jobs wait; this worker looks again once a minute.",
    "unwritable_models": "Correct the permissions, or make room.",
    "contradictory_model": "Fetch the model again, or ask whoever made it which of the two is meant. A head that was "
    "trained apart from its embedding needs `tie_word_embeddings` set to false.",
    "broken_artifact": "Fetch the model again; where it comes back, look at the disk.",
    "not_runnable_here": "A library failed while it loaded the model or compiled the grammar, or took longer than five "
    "minutes. Look at the model's files and where they lie (a network mount that hangs), at free memory, and at the "
    "libraries' versions. The job stays for another worker, and this one does not take it "
    "again until it is started anew.",
    "not_admissible": "On a worker: its model, device or torch is not what the job binds. The job stays for a worker "
    "that is; keep one until such jobs are done, or cancel them.",
    "lost_tenure": "Ordinary after a worker was paused for longer than its lease, or its database was away for so "
    "long: another worker has the job. Where it is frequent, the machine is overloaded or its clock of the database "
    "jumps.",
    "non_finite_scores": "The job is FAILED, its committed text stays. Where it is frequent, check weights and dtype.",
    "no_token_left": "The job is FAILED, its committed text stays. Its bans leave nothing to choose.",
    "own_transform_missing": "The job stays for a process that has registered that very function (`audit` needs none). "
    "Run such a one, or cancel the job.",
    "own_transform_fault": "The job is FAILED, its committed text stays, and the jobs beside it went on. The message "
    "says what the function raised or gave.",
    "grammar_too_costly": "The job is FAILED, its committed text stays, and the jobs beside it went on. A rule such as "
    '`s: "a" | s s` says one text in many ways: write `s: "a"+`. Where the reason names the machine, a faster '
    "one may follow it.",
    "poison_job": "The job is FAILED, its committed text stays. Look at what ended its workers: the "
    "kernel's log for too little memory, their own output for a crash. Submitted again on the same machine it "
    "may end them again: give it fewer lanes, more memory or a machine of its own.",
    "content_erased": "Nothing brings it back but a backup or an export from before, which may be past its retention "
    "too. Whoever submits under its idempotency key needs a new key to have it run again.",
    "evidence_sealed": "Text, tokens and log-probabilities are there: they are all that `--level sequence` compares. "
    "Where such evidence must be shown later, export before `seal`, or let `--seal-after` be longer.",
    "seal_refused": "A sweep goes on with the others. Where the audit finds a fault, do as for "
    "`corrupt_record`; where it finds none, keep the export of the job, and report it.",
    "unknown_seal": "As `schema_newer`: a later release has sealed this log.",
    "broken_snapshot": "Nothing has changed. `decodelog verify FILE` names the damaged place; copy it "
    "again, or make another one where the job is.",
    "restore_conflict": "Nothing has changed. Compare both with `decodelog show JOB` and `decodelog verify FILE`: the "
    "log there has gone another way, or another request has this name or this idempotency key.",
    "output_failed": "Exit code 1, and what the command did stands: where a job was admitted, standard error names it, "
    "and it is not to be submitted again.",
    "terminal": "The job has ended: there is nothing to do.",
    "idempotency_conflict": "Two callers use one key, or one caller changes its request between tries: tell it.",
}
"""Code -> what to look at and to do, beyond what the message says. Complete for Transient and Defect; a test looks."""

OTHERS: Final = (
    ("wrong_use", "a command's arguments are wrong; the message says which", "Correct the command line."),
    (
        "unexpected",
        "an error that this program has no word for; exit code 1",
        "The log is whole. Set DECODELOG_DEBUG=1 to see where it arose, run `decodelog doctor`, and report it.",
    ),
)


def problems(kind: type[Problem]) -> Iterator[type[Problem]]:
    """Every error of a kind, in the order in which they are declared."""
    for each in kind.__subclasses__():
        yield each
        yield from problems(each)


def page() -> str:
    """The whole page. Deterministic: equal code gives equal bytes."""
    parts = [HEAD]
    for kind, words in KINDS.items():
        rows = [
            (f"`{each.code}`", named(each), each.says, GUIDANCE.get(each.code, "as it says")) for each in problems(kind)
        ]
        parts.append(f"{words}\n{table('code', 'fields', 'what it says', 'what to look at, and to do', rows=rows)}")
    others = [(f"`{code}`", says, do) for code, says, do in OTHERS]
    parts.append(f"## Codes of the command line alone\n\n{table('code', 'what it is', 'what to do', rows=others)}")
    return "\n".join(parts)


def named(kind: type[Problem]) -> str:
    """The fields of an error, as code."""
    return ", ".join(f"`{field.name}`" for field in fields(kind)) or "none"  # type: ignore[arg-type]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
