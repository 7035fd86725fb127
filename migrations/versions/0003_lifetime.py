"""When a job ended, how long its content may stay, and when its log was sealed or its content erased.

Revision 0003. Nobody has written down when a job ended that has ended already: it counts as ended now.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("ended_ms", "retain_ms", "sealed_ms", "erased_ms"):
        op.add_column("jobs", sa.Column(name, sa.BigInteger()))
    sqlite = op.get_context().dialect.name == "sqlite"
    seconds = "(julianday('now') - 2440587.5) * 86400" if sqlite else "extract(epoch from clock_timestamp())"
    op.execute(sa.text(f"UPDATE jobs SET ended_ms = CAST({seconds} * 1000 AS BIGINT) WHERE finish IS NOT NULL"))
