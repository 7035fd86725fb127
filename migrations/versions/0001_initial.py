"""Jobs, their logs and snapshots, refused appends, the inbox, and registered models.

Revision 0001, the first.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # what numbers the rows of a table


def upgrade() -> None:
    jobs()
    logs()
    commands()
    models()


def jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("prompt", sa.BigInteger(), nullable=False),
        sa.Column("output_max", sa.BigInteger()),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("finish", sa.Text()),
        sa.Column("output", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("chain", sa.LargeBinary(), nullable=False),
        sa.Column("tail", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until_ms", sa.BigInteger()),
        sa.Column("stalled", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("claimed_output", sa.BigInteger()),
        sa.Column("claimed_sequence", sa.BigInteger()),
        sa.Column("claim_after_ms", sa.BigInteger()),
        sa.Column("ended_ms", sa.BigInteger()),
        sa.Column("retain_ms", sa.BigInteger()),
        sa.Column("sealed_ms", sa.BigInteger()),
        sa.Column("erased_ms", sa.BigInteger()),
        sa.Column("artifact", sa.Text(), nullable=False, server_default=""),
        sa.CheckConstraint("(finish IS NULL) = (status NOT IN ('CLOSED', 'FAILED'))", name=op.f("ck_jobs_finish")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("job", name=op.f("uq_jobs_job")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_jobs_idempotency_key")),
    )
    live = sa.text("finish IS NULL")
    op.create_index("ix_jobs_live", "jobs", ["id"], sqlite_where=live, postgresql_where=live)
    owned = sa.text("finish IS NULL AND owner IS NOT NULL")
    op.create_index("ix_jobs_owned", "jobs", ["owner"], sqlite_where=owned, postgresql_where=owned)
    suspect = sa.text("finish IS NULL AND stalled > 0")
    op.create_index("ix_jobs_suspects", "jobs", ["id"], sqlite_where=suspect, postgresql_where=suspect)


def logs() -> None:
    op.create_table(
        "appends",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("prev", sa.BigInteger()),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("chain", sa.LargeBinary(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_appends")),
    )
    op.create_table(
        "refusals",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("job_id", NUMBER, nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("refused_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_refusals_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_refusals")),
    )
    op.create_table(
        "snapshots",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("job_id", NUMBER, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("chain", sa.LargeBinary(), nullable=False),
        sa.Column("output", sa.BigInteger(), nullable=False),
        sa.Column("ids", sa.LargeBinary(), nullable=False),
        sa.Column("link", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.LargeBinary()),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_snapshots_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_snapshots")),
    )
    op.create_index("ix_snapshots_job_id", "snapshots", ["job_id", "sequence"], unique=True)


def commands() -> None:
    op.create_table(
        "inbox",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("command_id", sa.Text(), nullable=False),
        sa.Column("job_id", NUMBER, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text()),
        sa.Column("posted_ms", sa.BigInteger(), nullable=False),
        sa.Column("settled_ms", sa.BigInteger()),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_inbox_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_inbox")),
        sa.UniqueConstraint("command_id", name=op.f("uq_inbox_command_id")),
    )
    unsettled = sa.text("outcome IS NULL")
    op.create_index("ix_inbox_unsettled", "inbox", ["id"], sqlite_where=unsettled, postgresql_where=unsettled)


def models() -> None:
    op.create_table(
        "models",
        sa.Column("artifact", sa.Text(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("registered_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("artifact", name=op.f("pk_models")),
    )
    op.create_table(
        "model_names",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("artifact", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["artifact"], ["models.artifact"], name=op.f("fk_model_names_artifact_models")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_model_names")),
    )
    op.create_table(
        "missing_models",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("artifact", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("model", "artifact", name=op.f("pk_missing_models")),
    )
    op.create_table(
        "model_files",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_model_files")),
    )
