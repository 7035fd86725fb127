"""Tenures that stall, counted by the claims.

Revision 0002.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("stalled", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("claimed_output", sa.BigInteger()))
    op.add_column("jobs", sa.Column("claimed_sequence", sa.BigInteger()))
    op.add_column("jobs", sa.Column("claim_after_ms", sa.BigInteger()))
    suspect = sa.text("finish IS NULL AND stalled > 0")
    op.create_index("ix_jobs_suspects", "jobs", ["id"], sqlite_where=suspect, postgresql_where=suspect)
