"""A real PostgreSQL server for tests, the demo and CI: made in a moment, gone without trace.

`python -m tests.postgres [--tls] COMMAND...` runs a command whose MUSTER_INVENTORY is such a server.
"""

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

from tests import postgres_keeper
from tests.ports import free_port

SUPERUSER = "postgres"
OWNER = "muster"  # no superuser: it owns the database `muster` and those of fresh_database()
GIVEN = os.environ.get("MUSTER_POSTGRES_BIN", "")  # another version's programs; read before tests scrub it
_PORT = 5432  # of the socket's name, where nothing listens on TCP
_START_S = 120.0
_STOP_S = 60.0

# What was committed is written, so that it outlives a crash() of the server; fsync is for crashes of the machine.
# The time zone is one that nobody takes for UTC: a record that relies on the server's would show it.
_SETTINGS = """\
cluster_name = '{name}'
unix_socket_directories = '{folder}'
listen_addresses = '{addresses}'
port = {port}
fsync = off
full_page_writes = off
wal_level = minimal
max_wal_senders = 0
autovacuum = off
jit = off
shared_buffers = 16MB
dynamic_shared_memory_type = mmap
max_connections = 60
timezone = 'Asia/Kathmandu'
log_timezone = 'UTC'
"""
_LOCAL = "local all,replication all trust\n"  # the folder lets nobody else in


class NoServer(Exception):
    """PostgreSQL's server is not installed here, or may not be run by this user."""


class SqlRefused(Exception):
    """What psql said."""


def programs() -> Path:
    """The folder of the newest PostgreSQL server here, or the one that MUSTER_POSTGRES_BIN names.

    Raises:
        NoServer: there is none.
    """
    if GIVEN:
        return Path(GIVEN)
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda place: _number(place.parent.name))
    if on_path := shutil.which("initdb"):
        places.insert(0, Path(on_path).resolve().parent)
    for place in reversed(places):
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    raise NoServer("PostgreSQL's server is not installed")


def unset_pg(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without libpq's variables, PGHOST and the like."""
    return {name: value for name, value in environ.items() if not name.startswith("PG")}


class Server:
    """One running server; as root it runs as the user `postgres`, since it refuses to be root.

    Args:
        tcp: listen on 127.0.0.1 too, on a free port; otherwise on a Unix socket alone.
        settings: more lines of postgresql.conf.
    """

    def __init__(self, *, tcp: bool = False, settings: str = "") -> None:
        self._programs = programs()
        self._as_user = server_user()
        self.folder = Path(tempfile.mkdtemp(prefix="mpg-", dir="/tmp"))  # a socket's path has 107 bytes
        self.port = _PORT
        self._tcp, self._settings = tcp, settings
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._keeper = _keeper(self.folder)
        except BaseException:
            self.folder.rmdir()
            raise
        try:
            self._make()
            self.prepare()
            self.start()
            self.furnish()
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    # Whom to ask

    def url(self, database: str = OWNER, *, user: str | None = None, **query: str) -> str:
        """The address of a database over the socket, as the store takes it; `schema=` and the like go along."""
        where = {"host": str(self.folder)} | ({} if self.port == _PORT else {"port": str(self.port)}) | query
        return f"postgresql://{quote(user or SUPERUSER, safe='')}@/{quote(database, safe='')}?" + urlencode(
            where, safe="/"
        )

    def psql(self, sql: str, *, database: str = OWNER, user: str = SUPERUSER) -> str:
        """What the real psql prints: a line per row, columns divided by |.

        Raises:
            SqlRefused: the server refused the first statement that it did refuse.
        """
        done = subprocess.run(
            [
                *(self._programs / "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"),
                *("-h", self.folder, "-p", str(self.port), "-U", user, "-d", database),
            ],
            input=sql,
            env=unset_pg(os.environ),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode:
            raise SqlRefused(done.stderr.strip())
        return done.stdout.removesuffix("\n")

    def fresh_database(self, *, owner: str = OWNER, template: str = "template1") -> str:
        """The name of a new database, a copy of `template`."""
        name = f"t_{uuid.uuid4().hex[:12]}"
        self.psql(f'CREATE DATABASE {name} OWNER "{owner}" TEMPLATE "{template}"', database="postgres")
        return name

    def create_login(self, name: str, *member_of: str, password: str | None = None) -> str:
        """A new role that may log in, a member of others; its name, for a `with` in one line."""
        secret = "" if password is None else f" PASSWORD '{password}'"
        grants = "".join(f'GRANT "{role}" TO "{name}";' for role in member_of)
        self.psql(f'CREATE ROLE "{name}" LOGIN{secret};{grants}', database="postgres")
        return name

    def open_to_others(self) -> None:
        """Let every user of this machine reach the socket, and so every role of it."""
        self.folder.chmod(0o711)

    # Its life

    def start(self) -> None:
        """Start, the first time or after crash() or stop(), on the same data and port."""
        for attempt in range(5):
            if self._tcp and (self.port == _PORT or attempt):
                self.port = free_port()
            self.write_settings()
            if self._started():
                return
            if "Address already in use" not in self.log():
                break
        raise AssertionError(f"PostgreSQL did not start:\n{self.log()}")

    def stop(self) -> None:
        """End the server in order, its connections too (`pg_ctl -m fast`); the data stay."""
        self.resume()
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.crash()
            self._process = None

    def crash(self) -> None:
        """Kill every process of it at once; start() then recovers, as after a fall of the machine."""
        postgres_keeper.kill(self.folder)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Keep connections open and new ones accepted, but answer nothing, until resume()."""
        stopped: set[int] = set()
        while new := [pid for pid in postgres_keeper.processes(self.folder) if pid not in stopped]:
            postgres_keeper.send(new, signal.SIGSTOP)  # the postmaster first: it forks no more
            stopped.update(new)

    def resume(self) -> None:
        """Go on where pause() stopped it."""
        postgres_keeper.send(postgres_keeper.processes(self.folder), signal.SIGCONT)

    def reload(self) -> None:
        """Have it read its files again; who connects from now on finds the new ones in force."""
        before = self.psql("SELECT pg_conf_load_time()", database="postgres")
        self.psql("SELECT pg_reload_conf()", database="postgres")
        until = time.monotonic() + 60
        while self.psql("SELECT pg_conf_load_time()", database="postgres") == before:
            assert time.monotonic() < until, self.log()

    def log(self) -> str:
        """What it has said so far."""
        return (self.folder / "log").read_text(errors="replace")

    def end(self) -> None:
        """Stop, and leave nothing behind."""
        self.stop()
        _, said = self._keeper.communicate(timeout=600)  # a busy disk takes its time over so many databases
        assert self._keeper.returncode == 0, said

    # How it is made

    def prepare(self) -> None:
        """What a special server needs before its first start."""

    def furnish(self) -> None:
        """What a server has from its first start on."""
        self.psql(f"CREATE ROLE {OWNER} LOGIN", database="postgres")
        self.psql(f"CREATE DATABASE {OWNER} OWNER {OWNER}", database="postgres")

    def _make(self) -> None:
        self._own_folder()
        options = ("-D", str(self.folder / "data"), "--no-sync", "-E", "UTF8", "--locale=C")
        done = self._run("initdb", *options, "-A", "trust", "-U", SUPERUSER)
        assert done.wait(120) == 0, self.log()
        self.write("data/pg_hba.conf", _LOCAL)

    def _own_folder(self) -> None:
        if user := self._as_user.get("user"):
            os.chown(self.folder, user, self._as_user["group"])

    def write(self, name: str, text: str) -> Path:
        """Write one file in the server's folder, its own and for it alone."""
        file = self.folder / name
        file.touch(mode=0o600)
        file.write_text(text)
        if user := self._as_user.get("user"):
            os.chown(file, user, self._as_user["group"])
        return file

    def write_settings(self) -> None:
        """Write postgresql.conf anew; a server that runs needs reload() then."""
        text = _SETTINGS.format(
            name=self.folder.name,
            folder=self.folder,
            port=self.port,
            addresses="127.0.0.1" if self._tcp else "",
        )
        self.write("data/postgresql.conf", text + self._settings)

    def add_settings(self, lines: str) -> None:
        """More lines of postgresql.conf, for who connects from now on; of two for one thing the later counts."""
        self._settings += lines
        self.write_settings()
        self.reload()

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [self._programs / program, *arguments],
                cwd="/",
                env=unset_pg(os.environ) | {"LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests: they end it
                **self._as_user,
            )

    def _started(self) -> bool:
        (self.folder / "log").write_text("")
        self._process = process = self._run("postgres", "-D", str(self.folder / "data"))
        lock = self.folder / "data/postmaster.pid"
        until = time.monotonic() + _START_S
        while process.poll() is None and time.monotonic() < until:
            lines = lock.read_text().splitlines() if lock.exists() else []
            if len(lines) > 7 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
                return True  # what pg_ctl looks for too
            time.sleep(0.01)
        self.crash()
        return False


def _number(name: str) -> int:
    return int(re.sub(r"\D", "", name) or 0)


def server_user() -> dict[str, Any]:
    """How subprocess starts it: as another where one is root, otherwise as oneself.

    Raises:
        NoServer: root finds no user to run it as.
    """
    if os.geteuid():
        return {}
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        raise NoServer("PostgreSQL's server refuses to be root, and there is no user postgres") from None
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _keeper(folder: Path) -> subprocess.Popen[str]:
    """The one at the other end of a pipe that closes when we end, however we end."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", postgres_keeper.__file__, str(folder)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


if __name__ == "__main__":
    from tests.postgres_command import main

    sys.exit(main(sys.argv[1:]))
