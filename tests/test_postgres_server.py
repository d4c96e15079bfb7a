"""The throw-away PostgreSQL server of the tests: real, as strict as it is set up to be, and gone without trace."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import OperationalError

from tests.fixtures_postgres import need_postgres
from tests.postgres import OWNER, Server, SqlRefused
from tests.postgres_keeper import processes
from tests.postgres_tls import RIGHT, WRONG_NAME, TlsServer

ROOT = Path(__file__).parent.parent


def ask(url: str, sql: str = "SELECT current_user", *, within_s: int = 60) -> str:
    """One value that libpq gets with this address."""
    with psycopg.connect(url, connect_timeout=within_s) as connection:
        row = connection.execute(sql).fetchone()
    assert row is not None
    return str(row[0])


# The socket


def test_the_owner_of_a_fresh_database_logs_in_over_the_socket(postgres: Server) -> None:
    database = postgres.fresh_database()

    assert ask(postgres.url(database, user=OWNER)) == OWNER
    assert ask(postgres.url(database, user=OWNER), "SELECT current_database()") == database
    assert (
        ask(postgres.url(database), "SELECT setting FROM pg_settings WHERE name = 'listen_addresses'") == ""
    )


def test_nobody_else_reaches_the_socket(postgres: Server) -> None:
    assert postgres.folder.stat().st_mode & 0o777 == 0o700


def test_a_role_has_what_it_is_a_member_of_and_no_more(postgres: Server) -> None:
    database = postgres.fresh_database()
    postgres.psql(
        "CREATE ROLE server_readers; CREATE TABLE t (n int); INSERT INTO t VALUES (7)", database=database
    )
    postgres.psql("GRANT SELECT ON t TO server_readers", database=database)
    reader = postgres.create_login("server-reader", "server_readers")

    assert postgres.psql("SELECT n, 'x' FROM t", database=database, user=reader) == "7|x"
    with pytest.raises(SqlRefused, match="permission denied for table t"):
        postgres.psql("DELETE FROM t", database=database, user=reader)


def test_a_paused_server_answers_nothing_until_it_goes_on(own_postgres: Server) -> None:
    url = own_postgres.url(user=OWNER)
    with psycopg.connect(url) as connection:
        own_postgres.pause()
        with pytest.raises(OperationalError, match="timeout"):
            ask(url, within_s=2)
        later = threading.Timer(0.3, own_postgres.resume)
        began = time.monotonic()
        later.start()
        row = connection.execute("SELECT 1").fetchone()
        later.join()

    assert row == (1,)
    assert time.monotonic() - began > 0.25


def test_a_crash_keeps_what_was_committed_and_nothing_else(own_postgres: Server) -> None:
    own_postgres.psql("CREATE TABLE t (n int); INSERT INTO t VALUES (1)")
    with psycopg.connect(own_postgres.url()) as connection:
        connection.execute("INSERT INTO t VALUES (2)")
        own_postgres.crash()
        with pytest.raises(OperationalError):
            connection.execute("SELECT 1")
        with pytest.raises(OperationalError):
            ask(own_postgres.url())
        own_postgres.start()

    assert own_postgres.psql("SELECT n FROM t") == "1"


# TLS


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_password_from_a_passfile_logs_in_over_verified_tls(tls_postgres: TlsServer, host: str) -> None:
    user = tls_postgres.create_login(f"by-password-{host}", password="correct horse")  # noqa: S106
    file = tls_postgres.passfile(user, "correct horse", host=host)
    url = tls_postgres.tls_url(user=user, host=host, passfile=str(file))

    assert ask(url) == user
    assert ask(url, "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()") == "TLSv1.3"


def test_a_wrong_password_or_none_is_refused(tls_postgres: TlsServer) -> None:
    user = tls_postgres.create_login("wrong-password", password="correct horse")  # noqa: S106
    file = tls_postgres.passfile(user, "battery staple")

    with pytest.raises(OperationalError, match="password authentication failed"):
        ask(tls_postgres.tls_url(user=user, passfile=str(file)))
    with pytest.raises(OperationalError, match="no password supplied"):
        ask(tls_postgres.tls_url(user=user, passfile="/dev/null"))


def test_a_certificate_logs_in_as_the_role_of_its_map_alone(tls_postgres: TlsServer) -> None:
    leaf = tls_postgres.create_certificate_login("anna", common_name="Anna of the lab")
    tls_postgres.create_certificate_login("boris")

    assert ask(tls_postgres.certificate_url(user="anna")) == "anna"
    stolen = {"sslcert": str(leaf.certificate), "sslkey": str(leaf.key)}
    with pytest.raises(OperationalError, match="certificate authentication failed"):
        ask(tls_postgres.tls_url(user="boris", **stolen))
    with pytest.raises(OperationalError, match="requires a valid client certificate"):
        ask(tls_postgres.tls_url(user="anna", sslcert="/nowhere"))


def test_a_service_file_says_where_and_how(tls_postgres: TlsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    user = tls_postgres.create_login("by-service", password="correct horse")  # noqa: S106
    passfile = tls_postgres.passfile(user, "correct horse")
    file = tls_postgres.service_file("inventory", user=user, dbname=OWNER, passfile=str(passfile))
    monkeypatch.setenv("PGSERVICEFILE", str(file))

    assert ask("postgresql:///?service=inventory") == user


def test_an_authority_that_is_not_ours_is_refused(tls_postgres: TlsServer) -> None:
    with pytest.raises(OperationalError, match="certificate verify failed"):
        ask(tls_postgres.tls_url(user=OWNER, sslrootcert=str(tls_postgres.wrong_ca)))


@pytest.fixture
def presenting(tls_postgres: TlsServer) -> Iterator[TlsServer]:
    """The server, which presents its right certificate again afterwards."""
    yield tls_postgres
    tls_postgres.present(RIGHT)


def test_a_certificate_for_another_name_is_refused(presenting: TlsServer) -> None:
    presenting.present(WRONG_NAME)

    with pytest.raises(OperationalError, match="does not match host name"):
        ask(presenting.certificate_url())
    assert ask(presenting.certificate_url().replace("verify-full", "verify-ca")) == OWNER


def test_a_server_without_tls_is_refused_where_tls_is_asked_for(presenting: TlsServer) -> None:
    user = presenting.create_login("plainly", password="correct horse")  # noqa: S106
    file = str(presenting.passfile(user, "correct horse"))
    presenting.present(None)

    with pytest.raises(OperationalError, match="does not support SSL"):
        ask(presenting.tls_url(user=user, passfile=file))
    assert ask(presenting.tls_url(user=user, passfile=file, sslmode="prefer")) == user


def test_a_server_on_tcp_comes_back_on_its_port(presenting: TlsServer) -> None:
    port = presenting.port
    presenting.stop()
    with pytest.raises(OperationalError, match="refused"):
        ask(presenting.certificate_url())
    presenting.start()

    assert presenting.port == port
    assert ask(presenting.certificate_url()) == OWNER


# Its end


@pytest.mark.parametrize("last", ["server.pause()", "server.crash()", "pass"])
def test_nothing_is_left_of_it_when_its_user_is_killed(last: str) -> None:
    need_postgres()
    source = f"""
        from tests.postgres import Server
        server = Server()
        {last}
        print(server.folder, flush=True)
        input()
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    folder = Path(child.stdout.readline().strip())
    assert folder.exists()
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=600)

    until = time.monotonic() + 60
    while (folder.exists() or processes(folder)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not folder.exists()
    assert processes(folder) == []


def test_a_crashed_server_leaves_no_shared_memory() -> None:
    need_postgres()
    server = Server()
    lock = (server.folder / "data/postmaster.pid").read_text().splitlines()
    segment = lock[6].split()[1]
    server.crash()
    assert segment in shared_memory()

    server.end()

    assert segment not in shared_memory()
    assert not server.folder.exists()


def shared_memory() -> list[str]:
    return [row.split()[1] for row in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]


@pytest.mark.parametrize(
    ("tls", "command", "status"),
    [
        ((), ["sh", "-c", 'psql -X -q -A -t "$MUSTER_INVENTORY" -c "SELECT current_user"; exit 7'], 7),
        (
            ("--tls",),
            ["sh", "-c", 'psql -X -q -A -t "$MUSTER_INVENTORY" -c "SELECT current_user"; exit 7'],
            7,
        ),
        ((), ["sh", "-c", "echo muster; kill -9 $$"], 137),
    ],
    ids=["socket", "tls", "killed"],
)
def test_a_command_has_a_server_for_itself(tls: tuple[str, ...], command: list[str], status: int) -> None:
    need_postgres()
    done = subprocess.run(
        [sys.executable, "-m", "tests.postgres", *tls, *command],
        cwd=ROOT,
        env=os.environ | {"PGHOST": "127.0.0.9"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert (done.returncode, done.stdout) == (status, "muster\n"), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not any(Path("/tmp").glob(f"{folder_in(done.stderr)}*"))


def folder_in(line: str) -> str:
    """The name of the server's folder in what the command said."""
    return line.partition("/tmp/")[2].partition("/")[0].partition("&")[0].strip()
