"""Live jobs by their owner, and the fence of jobs that have ended.

Revision 0005. A restore used to raise the fence of a job that had ended as well: it is again that of its last append.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    owned = sa.text("finish IS NULL AND owner IS NOT NULL")
    op.create_index("ix_jobs_owned", "jobs", ["owner"], sqlite_where=owned, postgresql_where=owned)
    newest = "(SELECT fence FROM appends WHERE appends.id = jobs.tail)"
    op.execute(sa.text(f"UPDATE jobs SET fence = {newest} WHERE finish IS NOT NULL AND fence > {newest}"))
