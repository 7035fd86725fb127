"""The databases of `tests/databases.py` as fixtures."""

from databases import (
    database_url,
    empty_postgres_url,
    empty_sqlite_url,
    empty_url,
    postgres_server,
    postgres_url,
    sqlite_url,
    store,
    store_url,
)

__all__ = [
    "database_url",
    "empty_postgres_url",
    "empty_sqlite_url",
    "empty_url",
    "postgres_server",
    "postgres_url",
    "sqlite_url",
    "store",
    "store_url",
]
