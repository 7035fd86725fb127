"""What Alembic runs for every command: the migrations, on the connection and in the transaction it is given.

`store/database/schema.py` gives both, so that a whole upgrade is one transaction, and hands over no settings file.
"""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=context.config.attributes.get("metadata"),
    render_as_batch=True,  # SQLite alters a table by building it anew
    transaction_per_migration=False,
)
context.run_migrations()
