"""Snapshots: where jobs stood, so that a load need not begin at the log's start.

Revision 0004.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # what numbers the rows of a table


def upgrade() -> None:
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
