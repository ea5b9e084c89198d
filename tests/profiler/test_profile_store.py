"""The store: idempotent, migrated, private about passwords, the same in SQLite and PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from ymir_profiler.store.store import PASSWORD, Record, Store
from ymir_profiler.store.tables import MIGRATIONS, migrate, tables

from ymir_opt.domain.errors import InputError

RECORD = Record(
    "throughput", "fm", {"batch_size": 4, "rate": 0.1}, {"samples_per_s": 12.5}, machine={"cpu": "x"}
)
SECRET = "s3cr3t-w0rd"


def _tool(name: str) -> str | None:
    found = shutil.which(name)
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return found or (str(versions[-1]) if versions else None)


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """Start a real server on a free port of the loopback; return its URL without the password."""
    initdb, pg_ctl = _tool("initdb"), _tool("pg_ctl")
    if initdb is None or pg_ctl is None:
        pytest.skip("no PostgreSQL server on this machine")
    # not below pytest's own folder, which is closed to the server's user
    folder = Path(tempfile.mkdtemp(prefix="ymir-postgres-"))
    as_user: list[str] = []
    if os.geteuid() == 0:
        # the server refuses to run as root
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        shutil.chown(folder, "postgres", "postgres")
    (folder / "password").write_text(SECRET)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = folder / "data"

    def call(*command: str) -> None:
        subprocess.run(
            [*as_user, *command], check=True, capture_output=True, cwd=folder, timeout=120, text=True
        )

    call(
        initdb, "-D", str(data), "-U", "ymir", "-A", "scram-sha-256", f"--pwfile={folder / 'password'}", "-N"
    )
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
    call(pg_ctl, "-D", str(data), "-o", options, "-l", str(folder / "log"), "-w", "start")
    try:
        yield f"postgresql://ymir@127.0.0.1:{port}/postgres"
    finally:
        pid = int((data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGQUIT)  # immediate shutdown
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'p.db'}"
    monkeypatch.setenv(PASSWORD, SECRET)
    found: str = request.getfixturevalue("postgresql")
    return found


@pytest.fixture(autouse=True)
def _clean(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "url" in request.fixturenames and "postgresql" in request.fixturenames:
        address = request.getfixturevalue("postgresql").replace("ymir@", f"ymir:{SECRET}@")
        engine = create_engine(address.replace("postgresql:", "postgresql+psycopg:"))
        with engine.begin() as connection:
            for name in ("measurements", "machines", "profile_store"):
                connection.execute(text(f"DROP TABLE IF EXISTS {name}"))
        engine.dispose()


def test_a_measurement_is_written_once_and_read_back(url: str) -> None:
    with Store(url) as store:
        assert store.put(RECORD)
        assert not store.put(replace(RECORD, value={"samples_per_s": 99.0}))
        assert store.put(replace(RECORD, subject={"batch_size": 5}))
    with Store(url) as store:
        found = store.get(RECORD.key)
        assert found is not None
        assert (found.value, found.subject, found.machine) == (RECORD.value, RECORD.subject, RECORD.machine)
        assert found.finished_at_s > 0
        assert len(store.keys()) == len(store.records("throughput", "fm")) == 2
        assert store.records("switch") == []
        assert store.get("0" * 64) is None


def test_an_old_store_is_migrated_and_keeps_its_rows(url: str) -> None:
    address = url.replace("ymir@", f"ymir:{SECRET}@").replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(address)
    with engine.begin() as connection:
        migrate(connection, MIGRATIONS[:1])
        connection.execute(text("INSERT INTO machines VALUES ('m', '{}')"))
        connection.execute(
            text("INSERT INTO measurements VALUES ('k', 'switch', 'fm', '{}', '{\"a\": 1}', 'm', 1, 2, 3)")
        )
    engine.dispose()
    for _ in range(2):
        with Store(url) as store:
            record = store.get("k")
            assert record is not None
            assert (record.status, record.value, record.cpu_s) == ("ok", {"a": 1}, 1.0)


def test_migrations_lead_to_the_tables_that_the_code_expects(tmp_path: Path) -> None:
    from sqlalchemy import inspect

    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    with engine.begin() as connection:
        migrate(connection)
        found = {c["name"] for c in inspect(connection).get_columns("measurements")}
    engine.dispose()
    assert found == {column.name for column in tables()[1].columns}


def test_a_store_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    engine = create_engine(url)
    with engine.begin() as connection:
        migrate(connection, [*MIGRATIONS, ("SELECT 1",)])
    engine.dispose()
    with pytest.raises(InputError, match="newer"):
        Store(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "is not a URL"),
        ("mysql://u:pass-word@h/x", "use SQLite or PostgreSQL"),
        ("sqlite:////no/such/folder/x.db", "unable to open"),
        (f"postgresql://ymir:{SECRET}@127.0.0.1:9/x", "ymir:\\*\\*\\*@127.0.0.1"),
    ],
)
def test_a_store_that_cannot_be_opened_is_one_line_without_a_password(url: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Store(url)
    line = caught.value.one_line()
    assert "\n" not in line
    assert SECRET not in line
    assert "pass-word" not in line


def test_a_wrong_password_is_not_repeated(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "wr0ng-w0rd")
    with pytest.raises(InputError, match="authentication failed") as caught:
        Store(postgresql)
    assert "wr0ng-w0rd" not in caught.value.one_line()


def test_the_key_ignores_order_and_last_digits_and_nothing_else() -> None:
    turned = replace(RECORD, subject={"rate": 0.1 + 1e-17, "batch_size": 4})
    assert turned.key == RECORD.key
    assert replace(RECORD, foundation_model="other").key != RECORD.key
    assert replace(RECORD, kind="switch").key != RECORD.key
    assert replace(RECORD, subject={"rate": 0.1, "batch_size": 5}).key != RECORD.key


def test_a_full_disk_is_one_line_and_keeps_what_was_there(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'p.db'}"
    with Store(url) as store:
        store.put(RECORD)
        with store._engine.begin() as connection:
            connection.execute(text("PRAGMA max_page_count = 1"))
        large = replace(RECORD, subject={"batch_size": 9}, value={"text": "x" * 10**6})
        with pytest.raises(InputError, match="disk is full") as caught:
            store.put(large)
        assert "\n" not in caught.value.one_line()
    with Store(url) as store:
        assert [record.key for record in store.records()] == [RECORD.key]
        assert store.put(large)
