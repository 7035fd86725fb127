"""The tables, as SQLAlchemy Core sees them. Times are in ms since 1970, by the database's clock.

A job's log is a list of appends, each linked to the one before it, with its newest append named by the job's row. No
index leads to an append: SQLite then adds the rows of one engine step at the end of one table, where an index by job
would touch a page for every job, and cost 14 bytes a token.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)

Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by a column of exactly this type

jobs = Table(
    "jobs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("job", Text, nullable=False, unique=True),
    Column("identity", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("idempotency_key", Text, unique=True),
    Column("created_ms", BigInteger, nullable=False),
    Column("prompt", BigInteger, nullable=False),
    Column("output_max", BigInteger),  # output tokens at most, as the request says; NULL where nobody has said it here
    Column("status", Text, nullable=False),
    Column("finish", Text),
    Column("output", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),  # of the last event
    Column("chain", LargeBinary, nullable=False),  # digest after the last append
    Column("tail", BigInteger, nullable=False),  # appends.id of the last append
    Column("fence", BigInteger, nullable=False),
    Column("owner", Text),
    Column("lease_until_ms", BigInteger),
    Column("stalled", BigInteger, nullable=False, server_default="0"),  # see `stalls`
    Column("claimed_output", BigInteger),  # output at the newest claim
    Column("claimed_sequence", BigInteger),  # sequence then; NULL where the claim was asked for (`Caution.asked`)
    Column("claim_after_ms", BigInteger),  # not before, if the newest tenure is not released
    Column("ended_ms", BigInteger),
    Column("retain_ms", BigInteger),  # how long its content may stay from its end on
    Column("sealed_ms", BigInteger),
    Column("erased_ms", BigInteger),
    Column("artifact", Text, nullable=False, server_default=""),  # its model's digest, where the submitter said it
    # `finish IS NULL` is how every statement here says that a job is live.
    CheckConstraint("(finish IS NULL) = (status NOT IN ('CLOSED', 'FAILED'))", name="finish"),
)
Index("ix_jobs_live", jobs.c.id, sqlite_where=jobs.c.finish.is_(None), postgresql_where=jobs.c.finish.is_(None))
# An append changes no owner but at the end, so this index costs it nothing.
Index(
    "ix_jobs_owned",
    jobs.c.owner,
    sqlite_where=jobs.c.finish.is_(None) & jobs.c.owner.is_not(None),
    postgresql_where=jobs.c.finish.is_(None) & jobs.c.owner.is_not(None),
)
Index(
    "ix_jobs_suspects",
    jobs.c.id,
    sqlite_where=jobs.c.finish.is_(None) & (jobs.c.stalled > 0),
    postgresql_where=jobs.c.finish.is_(None) & (jobs.c.stalled > 0),
)

appends = Table(
    "appends",
    metadata,
    Column("id", Id, primary_key=True),
    # No foreign key: the statement that adds a row has just found its job, and PostgreSQL would look again each time.
    Column("job_id", BigInteger, nullable=False),
    Column("prev", BigInteger),  # appends.id of the job's append before this one
    Column("first", BigInteger, nullable=False),  # sequence of the first event
    Column("last", BigInteger, nullable=False),  # sequence of the last event
    Column("fence", BigInteger, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("chain", LargeBinary, nullable=False),  # digest after this append: whole in an anchor, else its beginning
    Column("payload", LargeBinary, nullable=False),
)

refusals = Table(
    "refusals",
    metadata,
    Column("id", Id, primary_key=True),
    Column("job_id", Id, ForeignKey("jobs.id"), nullable=False),
    Column("first", BigInteger, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("refused_ms", BigInteger, nullable=False),
)

inbox = Table(
    "inbox",
    metadata,
    Column("id", Id, primary_key=True),
    Column("command_id", Text, nullable=False, unique=True),
    Column("job_id", Id, ForeignKey("jobs.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("outcome", Text),
    Column("posted_ms", BigInteger, nullable=False),
    Column("settled_ms", BigInteger),
)
Index(
    "ix_inbox_unsettled", inbox.c.id, sqlite_where=inbox.c.outcome.is_(None), postgresql_where=inbox.c.outcome.is_(None)
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", Id, primary_key=True),
    Column("job_id", Id, ForeignKey("jobs.id"), nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("chain", LargeBinary, nullable=False),  # the log's digest there
    Column("output", BigInteger, nullable=False),
    Column("ids", LargeBinary, nullable=False),
    Column("link", LargeBinary, nullable=False),
    Column("state", LargeBinary),
)
Index("ix_snapshots_job_id", snapshots.c.job_id, snapshots.c.sequence, unique=True)

models = Table(
    "models",
    metadata,
    Column("artifact", Text, primary_key=True),  # the digest by which jobs have it
    Column("record", LargeBinary, nullable=False),  # what it is, in canonical JSON
    Column("digest", LargeBinary, nullable=False),  # of the record
    Column("registered_ms", BigInteger, nullable=False),
)

model_names = Table(
    "model_names",
    metadata,
    Column("name", Text, primary_key=True),
    Column("artifact", Text, ForeignKey("models.artifact"), nullable=False),
)

missing_models = Table(
    "missing_models",
    metadata,
    Column("model", Text, primary_key=True),
    Column("artifact", Text, primary_key=True),
    Column("worker", Text, nullable=False),  # that has looked for it in vain
)

model_files = Table(
    "model_files",
    metadata,
    Column("sha256", Text, primary_key=True),  # of the content; models share what they have alike
    Column("content", LargeBinary, nullable=False),
)
