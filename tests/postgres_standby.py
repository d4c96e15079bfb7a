"""A second PostgreSQL server that follows a first one, as teams keep one: a streaming standby, to be promoted."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.postgres import Server
from tests.postgres_tls import RIGHT, TlsServer

PRIMARY = "wal_level = replica\nmax_wal_senders = 4\n"
_SYNCHRONOUS = "synchronous_standby_names = '*'\n"
_TLS = """
ssl = on
ssl_ca_file = '{folder}/ca.crt'
ssl_cert_file = '{folder}/right.crt'
ssl_key_file = '{folder}/right.key'
"""
_WAIT_S = 60.0


class Standby(Server):
    """A copy of a TlsServer on a port of its own; it shows the same certificate and follows until promote()."""

    def __init__(self, primary: TlsServer) -> None:
        self._primary = primary
        follow = f"primary_conninfo = 'host={primary.folder} port={primary.port} user=postgres'\n"
        super().__init__(tcp=True, settings=PRIMARY + follow)

    def _make(self) -> None:
        self._own_folder()
        done = self._run(
            "pg_basebackup",
            *("-D", str(self.folder / "data"), "-X", "stream", "-c", "fast", "--no-sync"),
            *("-h", str(self._primary.folder), "-p", str(self._primary.port), "-U", "postgres"),
        )
        assert done.wait(_WAIT_S) == 0, self.log()

    def prepare(self) -> None:
        """Take over what the primary shows, and begin as a standby."""
        self.write("data/standby.signal", "")
        for name in ("ca.crt", f"{RIGHT}.crt", f"{RIGHT}.key"):
            self.write(name, (self._primary.folder / name).read_text())
        self._settings += _TLS.format(folder=self.folder)

    def furnish(self) -> None:
        """It has all from its primary; from here on that waits for it with every commit."""
        self._primary.add_settings(_SYNCHRONOUS)
        until = time.monotonic() + _WAIT_S
        while "sync" not in self._primary.psql("SELECT sync_state FROM pg_stat_replication").split():
            assert time.monotonic() < until, self.log()
            time.sleep(0.02)

    def promote(self) -> None:
        """Follow no more, and be written to."""
        assert self.psql("SELECT pg_promote(true, 60)", database="postgres") == "t", self.log()


@contextmanager
def pair() -> Iterator[tuple[TlsServer, Standby]]:
    """A primary whose commits wait for its standby, and that standby."""
    with TlsServer(settings=PRIMARY) as primary, Standby(primary) as standby:
        try:
            yield primary, standby
        finally:  # in order each would wait for the other
            standby.crash()
            primary.crash()


def both(url: str, standby: Server, *, host: str = "localhost") -> str:
    """The URL of a database on the primary, with the standby after it."""
    before, at, rest = url.partition("@/")
    assert at, url
    path, _, query = rest.partition("?")
    pairs = dict(pair.split("=", 1) for pair in query.split("&"))
    first = f"{pairs.pop('host')}:{pairs.pop('port')}"
    kept = "&".join(f"{name}={value}" for name, value in pairs.items())
    return f"{before}@{first},{host}:{standby.port}/{path}?{kept}&target_session_attrs=read-write"
