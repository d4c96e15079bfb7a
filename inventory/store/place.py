"""Which database a URL means: a file, or a record on a server or on several of which one is written to (pure)."""

import re
from dataclasses import dataclass

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from inventory.command import default_url
from inventory.errors import BadInput

DEFAULT_SCHEMA = "muster"
_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
# libpq's own words for these; every other one is refused, for it would be a setting that nobody knows of.
_QUERY = frozenset(
    {
        *("host", "port", "service", "passfile", "target_session_attrs", "schema"),
        *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl"),
    }
)
# A server that is only read lags behind, and nobody can act by what it says.
_WRITTEN_TO = ("read-write", "primary")
# Several servers, as libpq takes them and SQLAlchemy does not: who logs in, the servers, the rest.
_SEVERAL = re.compile(r"(postgresql://(?:[^/?@]*@)?)([^/?@]*,[^/?@]*)((?:/[^?@]*)?(?:\?.*)?)", re.DOTALL)
_ONE = re.compile(r"\[(?P<ipv6>[^][]+)\](?::(?P<its>[^:]*))?|(?P<name>[^][:]+)(?::(?P<port>[^:]*))?")
_SECRETS = frozenset({"password", "sslpassword"})


@dataclass(frozen=True, slots=True)
class Place:
    """A database, without anything secret. where: as it is told to people. schema: PostgreSQL's only."""

    url: URL
    where: str
    schema: str | None = None

    @property
    def shared(self) -> bool:
        """Is it a server's, with roles and a clock of its own?"""
        return self.schema is not None


def place_of(text: str | None) -> Place:
    """What a URL means (default: `default_url`).

    Raises:
        BadInput: it is not one of ours, or holds what it must not.
    """
    parsed = _parsed(text or default_url())
    if parsed.drivername == "postgresql":
        return _postgres(parsed)
    if parsed.drivername != "sqlite" or not parsed.database or parsed.database == ":memory:" or parsed.query:
        raise _bad_url("only sqlite:///FILE and postgresql://HOST/DATABASE are understood")
    return Place(parsed, parsed.database)


def in_schema(text: str, schema: str) -> str:
    """The URL of another record in the database that `text` names.

    Raises:
        BadInput: it is not one of ours.
    """
    return _parsed(text).update_query_dict({"schema": schema}).render_as_string()


def _parsed(text: str) -> URL:
    """A URL without a password; where it names several servers they are in its query, as `host` and `port`."""
    several = _SEVERAL.fullmatch(text)
    try:
        parsed = make_url(several[1] + several[3] if several else text)
    except (ArgumentError, ValueError):
        raise _bad_url("it is not a database URL") from None
    if parsed.password is not None or _SECRETS & set(parsed.query):
        raise _bad_url("a URL is no place for a password: it shows in process lists and logs")
    if several is None:
        return parsed
    if {"host", "port"} & set(parsed.query):
        raise _bad_url("it names its servers twice: before the database, and by 'host' or 'port'")
    hosts, ports = [], []
    for one in several[2].split(","):
        found = _ONE.fullmatch(one)
        if found is None:
            raise _bad_url(f"{one!r} is no server; it is HOST or HOST:PORT, with IPv6 as [ADDRESS]:PORT")
        hosts.append(found["ipv6"] or found["name"])
        ports.append(found["its"] or found["port"] or "")
    return parsed.update_query_dict(
        {"host": ",".join(hosts)} | ({"port": ",".join(ports)} if any(ports) else {})
    )


def _postgres(parsed: URL) -> Place:
    query: dict[str, str] = {}
    for key, value in parsed.query.items():
        if key not in _QUERY or not isinstance(value, str):
            raise _bad_url(f"{key!r} is not known in it; known are: {', '.join(sorted(_QUERY))}")
        query[key] = value
    hosts = query.get("host", parsed.host or "").split(",")
    if len(hosts) > 1:
        _check_several(hosts, query)
    elif "port" in query:
        _check_port(query["port"])
    if query.get("target_session_attrs", _WRITTEN_TO[0]) not in _WRITTEN_TO:
        raise _bad_url(f"target_session_attrs is {' or '.join(_WRITTEN_TO)}: a record is written to")
    schema = query.pop("schema", DEFAULT_SCHEMA)
    if not _SCHEMA.fullmatch(schema):
        raise _bad_url(f"{schema!r} cannot name a schema: a to z, 0 to 9 and '_', not beginning with pg_")
    # libpq asks no certificate of a local socket; of everything else, a service's host too, it is asked here.
    if query.setdefault("sslmode", "verify-full") != "verify-full":
        raise _bad_url("sslmode is verify-full and nothing less; over a local socket it does not matter")
    host = query.get("host") or parsed.host or (f"service {query['service']}" if "service" in query else "")
    where = f"postgresql://{host}/{parsed.database or ''} (schema {schema})"
    return Place(parsed.set(drivername="postgresql+psycopg", query=query), where, schema)


def _check_several(hosts: list[str], query: dict[str, str]) -> None:
    """Of several servers each has a name, and a port of its own or the one of all; only one is written to."""
    if "" in hosts:
        raise _bad_url("one of its servers has no name")
    ports = query.get("port", "").split(",")
    for port in filter(None, ports):
        _check_port(port)
    if len(ports) not in {1, len(hosts)}:
        raise _bad_url(f"it has {len(hosts)} servers and {len(ports)} ports")
    if ports[0] and len(ports) == 1:
        query["port"] = ",".join(ports * len(hosts))
    query.setdefault("target_session_attrs", _WRITTEN_TO[0])


def _check_port(port: str) -> None:
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise _bad_url(f"{port!r} is no port")


def _bad_url(why: str) -> BadInput:
    return BadInput(
        "the record's URL was refused",
        why=why,
        next_step="give --inventory sqlite:////path/to/inventory.db or postgresql://host/database",
    )
