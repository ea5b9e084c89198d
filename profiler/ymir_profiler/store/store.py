"""Reading and writing measurements, keyed by what was measured."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ymir_opt.domain.documents import canonical_json, rounded, sha256
from ymir_opt.domain.errors import InputError
from ymir_profiler.store.tables import migrate, tables

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection

__all__ = ["PASSWORD", "Record", "Store", "key_of"]

PASSWORD = "YMIR_STORE_PASSWORD"  # noqa: S105 - the variable's name
BUSY_S = 30


@dataclass(frozen=True)
class Record:
    """One measurement.

    Attributes
    ----------
    kind : str
        ``run``, ``throughput``, ``switch``, ``backbone``, ``colocation``, ``score`` or ``imported``.
    foundation_model : str
    subject : mapping
        What was measured: every condition that the result depends on.
    value : mapping
        What came out.
    cpu_s, wall_s : float
        What the measurement itself cost.
    status : str
        ``ok``, ``non-finite`` or ``out-of-memory``: a failure is a result too.
    machine : mapping
        Where it was measured.
    finished_at_s : float
        Unix time.
    """

    kind: str
    foundation_model: str
    subject: Mapping[str, Any]
    value: Mapping[str, Any]
    cpu_s: float = 0.0
    wall_s: float = 0.0
    status: str = "ok"
    machine: Mapping[str, Any] | None = None
    finished_at_s: float = 0.0

    @property
    def key(self) -> str:
        """The hash of what was measured."""
        return key_of(self.kind, self.foundation_model, self.subject)


def key_of(kind: str, foundation_model: str, subject: Mapping[str, Any]) -> str:
    """Return the key under which a measurement is kept."""
    return sha256({"kind": kind, "foundation_model": foundation_model, "subject": dict(subject)})


def _url(text: str) -> URL:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
    except ArgumentError:
        # the text may hold a password: it is not repeated
        raise InputError(
            "--store", "is not a URL of a database", "give sqlite:///FILE or postgresql://USER@HOST/NAME"
        ) from None
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise InputError("--store", f"names {url.get_backend_name()}", "use SQLite or PostgreSQL")
    if url.password is None and url.get_backend_name() == "postgresql" and os.environ.get(PASSWORD):
        url = url.set(password=os.environ[PASSWORD])
    return url


class Store:
    """A profile store; writes are idempotent and each is a transaction of its own.

    Parameters
    ----------
    url : str
        ``sqlite:///FILE`` or ``postgresql://USER@HOST/NAME``; the password of the latter may come from
        the environment variable ``YMIR_STORE_PASSWORD`` and never appears in messages.

    Raises
    ------
    InputError
        If the database cannot be reached or is newer than this release.
    """

    def __init__(self, url: str) -> None:
        try:
            from sqlalchemy import create_engine
        except ModuleNotFoundError:
            raise InputError(
                "--store", "needs the package sqlalchemy", "install the extra profiler"
            ) from None
        self._parsed = _url(url)
        sqlite = self._parsed.get_backend_name() == "sqlite"
        options: dict[str, Any] = {"connect_args": {"timeout": BUSY_S}} if sqlite else {}
        with self._errors():
            self._engine = create_engine(self._parsed, hide_parameters=True, **options)
        self._metadata, self._measurements, self._machines = tables()
        try:
            with self._begin() as connection:
                migrate(connection)
        except BaseException:
            self._engine.dispose()
            raise

    @property
    def name(self) -> str:
        """The URL without its password."""
        return self._parsed.render_as_string(hide_password=True)

    @property
    def artifacts(self) -> Path | None:
        """Where adapters of measured runs lie: beside a SQLite file; None for a server."""
        database = self._parsed.database
        if self._parsed.get_backend_name() != "sqlite" or not database or database == ":memory:":
            return None
        return Path(database + ".adapters")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

        try:
            yield
        except ModuleNotFoundError as error:
            raise InputError(
                "--store", f"needs the package {error.name}", "install the extra profiler"
            ) from None
        except (SQLAlchemyError, NoSuchModuleError) as error:
            text = " ".join(str(getattr(error, "orig", None) or error).split())[:200]
            if self._parsed.password:
                text = text.replace(str(self._parsed.password), "***")
            raise InputError(
                f"--store {self.name}", f"failed ({text})", "check the address, the rights and the disk"
            ) from None

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        with self._errors(), self._engine.begin() as connection:
            yield connection

    def put(self, record: Record) -> bool:
        """Write a measurement; return False, changing nothing, where it is there already."""
        description = canonical_json(dict(record.machine or {}))
        machine = sha256(dict(record.machine or {}))
        row = {
            "key": record.key,
            "kind": record.kind,
            "foundation_model": record.foundation_model,
            "subject": canonical_json(dict(record.subject)),
            "value": json.dumps(rounded(dict(record.value)), allow_nan=False),
            "machine": machine,
            "cpu_s": record.cpu_s,
            "wall_s": record.wall_s,
            "finished_at_s": record.finished_at_s or time.time(),
            "status": record.status,
        }
        insert = self._insert()
        with self._begin() as connection:
            connection.execute(
                insert(self._machines).values(id=machine, description=description).on_conflict_do_nothing()
            )
            # drivers disagree on the number of rows of such a statement; what it returns is certain
            statement = insert(self._measurements).values(**row).on_conflict_do_nothing()
            return connection.execute(statement.returning(self._measurements.c.key)).first() is not None

    def _insert(self) -> Any:
        from sqlalchemy.dialects import postgresql, sqlite

        return {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[self._engine.dialect.name]

    def has(self, key: str) -> bool:
        """Return whether a measurement is there."""
        return self.get(key) is not None

    def get(self, key: str) -> Record | None:
        """Return a measurement by key."""
        from sqlalchemy import select

        table = self._measurements
        with self._begin() as connection:
            row = connection.execute(
                select(table, self._machines.c.description)
                .join(self._machines, self._machines.c.id == table.c.machine)
                .where(table.c.key == key)
            ).first()
        return None if row is None else _record(row._mapping)

    def keys(self) -> set[str]:
        """Return the keys of everything measured."""
        from sqlalchemy import select

        with self._begin() as connection:
            return set(connection.execute(select(self._measurements.c.key)).scalars())

    def records(self, kind: str | None = None, foundation_model: str | None = None) -> list[Record]:
        """Return measurements, ordered by key."""
        from sqlalchemy import select

        table = self._measurements
        query = select(table, self._machines.c.description).join(
            self._machines, self._machines.c.id == table.c.machine
        )
        if kind is not None:
            query = query.where(table.c.kind == kind)
        if foundation_model is not None:
            query = query.where(table.c.foundation_model == foundation_model)
        with self._begin() as connection:
            return [_record(row._mapping) for row in connection.execute(query.order_by(table.c.key))]

    def close(self) -> None:
        """Give every connection back."""
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _record(row: Mapping[Any, Any]) -> Record:
    return Record(
        kind=row["kind"],
        foundation_model=row["foundation_model"],
        subject=json.loads(row["subject"]),
        value=json.loads(row["value"]),
        cpu_s=row["cpu_s"],
        wall_s=row["wall_s"],
        status=row["status"],
        machine=json.loads(row["description"]),
        finished_at_s=row["finished_at_s"],
    )
