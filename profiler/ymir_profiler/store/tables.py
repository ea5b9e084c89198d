"""Tables of the profile store and the migrations that lead to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ymir_opt.domain.errors import InputError

if TYPE_CHECKING:
    from sqlalchemy import Connection, MetaData, Table

__all__ = ["MIGRATIONS", "migrate", "tables"]


def tables() -> tuple[MetaData, Table, Table]:
    """Return the metadata, the table of measurements and that of machines, in their newest form."""
    from sqlalchemy import Column, Float, MetaData, String, Table, Text

    metadata = MetaData()
    machines = Table(
        "machines",
        metadata,
        Column("id", String(64), primary_key=True),
        Column("description", Text, nullable=False),
    )
    measurements = Table(
        "measurements",
        metadata,
        Column("key", String(64), primary_key=True),
        Column("kind", String(32), nullable=False),
        Column("foundation_model", String(256), nullable=False),
        Column("subject", Text, nullable=False),
        Column("value", Text, nullable=False),
        Column("machine", String(64), nullable=False),
        Column("cpu_s", Float, nullable=False),
        Column("wall_s", Float, nullable=False),
        Column("finished_at_s", Float, nullable=False),
        Column("status", String(32), nullable=False, server_default="ok"),
    )
    return metadata, measurements, machines


# Portable SQL, one list of statements for each version; never edited after a release, only added to.
MIGRATIONS: Sequence[Sequence[str]] = (
    (
        "CREATE TABLE machines (id VARCHAR(64) PRIMARY KEY, description TEXT NOT NULL)",
        """CREATE TABLE measurements (
            key VARCHAR(64) PRIMARY KEY, kind VARCHAR(32) NOT NULL, foundation_model VARCHAR(256) NOT NULL,
            subject TEXT NOT NULL, value TEXT NOT NULL, machine VARCHAR(64) NOT NULL,
            cpu_s DOUBLE PRECISION NOT NULL, wall_s DOUBLE PRECISION NOT NULL,
            finished_at_s DOUBLE PRECISION NOT NULL)""",
    ),
    (
        "ALTER TABLE measurements ADD COLUMN status VARCHAR(32) NOT NULL DEFAULT 'ok'",
        "CREATE INDEX measurements_by_kind ON measurements (kind, foundation_model)",
    ),
)

VERSIONS = "CREATE TABLE IF NOT EXISTS profile_store (version INTEGER NOT NULL)"


def migrate(connection: Connection, steps: Sequence[Sequence[str]] = MIGRATIONS) -> int:
    """Bring a store to the newest version, inside the caller's transaction; return that version.

    Raises
    ------
    InputError
        If the store was written by a newer release.
    """
    from sqlalchemy import text

    _lock(connection)(connection)
    connection.execute(text(VERSIONS))
    found = connection.execute(text("SELECT max(version) FROM profile_store")).scalar()
    version = int(found) if found is not None else 0
    if version > len(steps):
        raise InputError(
            "--store", f"has version {version}, this release knows {len(steps)}", "use the newer release"
        )
    for number, statements in enumerate(steps[version:], start=version + 1):
        for statement in statements:
            connection.execute(text(statement))
        connection.execute(text("INSERT INTO profile_store (version) VALUES (:v)"), {"v": number})
    return len(steps)


def _lock(connection: Connection) -> Callable[[Connection], None]:
    return LOCKS.get(connection.dialect.name, lambda _connection: None)


def _postgresql_lock(connection: Connection) -> None:
    from sqlalchemy import text

    # two processes that start at once must not both create the tables
    connection.execute(text("SELECT pg_advisory_xact_lock(1498237778)"))


LOCKS: dict[str, Callable[[Connection], None]] = {"postgresql": _postgresql_lock}
