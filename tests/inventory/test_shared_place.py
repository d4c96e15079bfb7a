"""How a record on a server is reached: URLs, TLS that is always verified, secrets, servers that do not answer."""

import re
import time
from dataclasses import replace

import pytest
from sqlalchemy import text

from inventory.errors import BadInput, MusterError, OtherSide
from inventory.store import Store
from inventory.store.database import Database
from inventory.store.making import migrate
from inventory.store.place import in_schema, place_of
from tests.inventory.records import node, store
from tests.postgres import Server
from tests.postgres_tls import ADDRESS, RIGHT, WRONG_NAME, TlsServer

WORD = "a word"


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("postgresql://anna:secret@db/fleet", "no place for a password"),
        ("postgresql://db/fleet?password=secret", "no place for a password"),
        ("postgresql://db/fleet?sslpassword=secret", "no place for a password"),
        ("postgresql://db/fleet?sslmode=require", "verify-full and nothing less"),
        ("postgresql://db/fleet?sslmode=disable", "verify-full and nothing less"),
        ("postgresql://db/fleet?sslmod=verify-full", "'sslmod' is not known"),
        ("postgresql://db/fleet?options=-csearch_path%3Dx", "'options' is not known"),
        ("postgresql://db/fleet?host=a&host=b", "'host' is not known"),
        ("postgresql://db/fleet?schema=pg_catalog", "cannot name a schema"),
        ('postgresql://db/fleet?schema=a"b', "cannot name a schema"),
        ("postgresql+psycopg2://db/fleet", "sqlite:///FILE and postgresql://"),
        ("sqlite:///file.db?mode=ro", "sqlite:///FILE and postgresql://"),
        ("postgresql://anna:secret@one,two/fleet", "no place for a password"),
        ("postgresql://anna:se,cret/x@one/fleet", "no place for a password"),
        ("postgresql://one,two/fleet?sslmode=require", "verify-full and nothing less"),
        (
            "postgresql://one,two/fleet?target_session_attrs=any",
            "target_session_attrs is read-write or primary",
        ),
        (
            "postgresql://one/fleet?target_session_attrs=standby",
            "target_session_attrs is read-write or primary",
        ),
        ("postgresql://one,/fleet", "'' is no server"),
        ("postgresql:///fleet?host=one,", "one of its servers has no name"),
        ("postgresql://one:1,::2/fleet", "'::2' is no server"),
        ("postgresql://one:1,two:x/fleet", "'x' is no port"),
        ("postgresql://one:1,two:65536/fleet", "'65536' is no port"),
        ("postgresql://one,two/fleet?host=three", "names its servers twice"),
        ("postgresql:///fleet?host=one,two&port=1,2,3", "2 servers and 3 ports"),
    ],
)
def test_a_url_that_would_tell_a_secret_or_trust_anybody_is_refused(url: str, word: str) -> None:
    with pytest.raises(BadInput) as refused:
        place_of(url)
    assert word in refused.value.why
    assert not re.search("secret|cret/x|'se'", f"{refused.value}{refused.value.next_step}")


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("postgresql://anna@one:1,two:2/fleet", "one,two", "1,2"),
        ("postgresql://anna@one,two:2/fleet", "one,two", ",2"),
        ("postgresql://anna@one,two/fleet", "one,two", None),
        ("postgresql://anna@[::1]:1,[::2]:2/fleet", "::1,::2", "1,2"),
        ("postgresql://anna@/fleet?host=/one,/two&port=7", "/one,/two", "7,7"),
    ],
)
def test_of_several_servers_the_one_that_is_written_to_is_asked_for(
    url: str, host: str, port: str | None
) -> None:
    place = place_of(url)

    query = dict(place.url.query)
    assert (query["host"], query.get("port")) == (host, port)
    assert (query["target_session_attrs"], query["sslmode"]) == ("read-write", "verify-full")
    assert place.where == f"postgresql://{host}/fleet (schema muster)"
    assert place_of(in_schema(url, "another")).url == place.url
    assert place_of(in_schema(url, "another")).schema == "another"


def test_every_connection_asks_for_the_servers_certificate() -> None:
    for url in (
        "postgresql://db/fleet",
        "postgresql:///fleet?service=muster",
        "postgresql:///fleet?host=/run",
    ):
        assert place_of(url).url.query["sslmode"] == "verify-full"


@pytest.fixture
def fleet(tls_postgres: TlsServer) -> str:
    """A database with a record."""
    name = tls_postgres.fresh_database()
    migrate(Database(place_of(tls_postgres.url(name, user="muster"))))
    return name


def test_over_the_network_a_record_is_reached_by_client_certificate_passfile_or_service(
    tls_postgres: TlsServer, fleet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = f"p_{fleet}"
    tls_postgres.create_login(person, "muster", password=WORD)
    passfile = tls_postgres.passfile(person, WORD)
    service = tls_postgres.service_file("muster", user=person, dbname=fleet, passfile=str(passfile))
    monkeypatch.setenv("PGSERVICEFILE", str(service))

    store(tls_postgres.certificate_url(fleet, user="muster")).add(node(), why="asked for")
    for url in (
        tls_postgres.tls_url(fleet, user=person, passfile=str(passfile)),
        "postgresql:///?service=muster",
    ):
        assert store(url).get("gpu-01") is not None


def test_a_server_that_is_not_the_one_is_not_told_anything(tls_postgres: TlsServer, fleet: str) -> None:
    good = tls_postgres.certificate_url(fleet, user="muster")
    refused: dict[str, str] = {}
    try:
        for what, url in {
            "another authority": good.replace(str(tls_postgres.ca), str(tls_postgres.wrong_ca)),
            "another name": good,
            "no TLS": good,
        }.items():
            if what != "another authority":
                tls_postgres.present(WRONG_NAME if what == "another name" else None)
            with pytest.raises(OtherSide) as error:
                store(url)
            refused[what] = error.value.why
    finally:
        tls_postgres.present(RIGHT)
    assert "certificate verify failed" in refused["another authority"]
    assert "does not match host name" in refused["another name"]
    assert "server does not support SSL" in refused["no TLS"]
    assert store(good).all() == ()


def test_of_several_servers_each_must_show_its_certificate(tls_postgres: TlsServer, fleet: str) -> None:
    one = tls_postgres.certificate_url(fleet, user="muster")
    server = f"{ADDRESS}:{tls_postgres.port}"
    several = in_servers(one, f"{ADDRESS}:1,{server}")  # of the first one nobody answers

    assert store(several).all() == ()
    try:
        tls_postgres.present(WRONG_NAME)
        with pytest.raises(OtherSide, match="does not match host name"):
            store(several)
        tls_postgres.present(None)
        with pytest.raises(OtherSide, match="server does not support SSL") as error:
            store(several)
    finally:
        tls_postgres.present(RIGHT)
    assert error.value.why.count("server does not support SSL") == 1
    assert "Connection refused" in error.value.why


def in_servers(url: str, servers: str) -> str:
    """The same URL for other servers."""
    _, at, rest = url.partition("@/")
    assert at, url
    return f"postgresql://muster@{servers}/{re.sub('(host|port)=[^&]*&', '', rest)}"


def test_a_wrong_password_is_the_servers_refusal_and_is_not_told(tls_postgres: TlsServer, fleet: str) -> None:
    person = f"q_{fleet}"
    tls_postgres.create_login(person, password=WORD)
    passfile = tls_postgres.passfile(person, "not-this")

    with pytest.raises(OtherSide, match="password authentication failed") as error:
        store(tls_postgres.tls_url(fleet, user=person, passfile=str(passfile)))
    assert "not-this" not in f"{error.value}{error.value.next_step}"


def test_a_server_that_crashed_and_came_back_is_gone_on_with(own_postgres: Server) -> None:
    url = own_postgres.url(user="muster")
    migrate(Database(place_of(url)))
    record = store(url)
    added = record.add(node(), why="asked for")

    own_postgres.crash()
    with pytest.raises(OtherSide, match="did not answer") as error:
        record.save(replace(added, vmid=100))
    assert "try again" in error.value.next_step
    own_postgres.start()
    assert record.save(replace(added, vmid=100)).vmid == 100


def test_a_server_that_keeps_silent_is_not_waited_for_without_end(own_postgres: Server) -> None:
    url = own_postgres.url(user="muster")
    migrate(Database(place_of(url)))
    own_postgres.pause()
    began = time.monotonic()
    try:
        with pytest.raises(MusterError, match="did not answer"):
            Store.open(url)
    finally:
        own_postgres.resume()
    assert time.monotonic() - began < 60
    assert store(url).all() == ()


def test_a_server_that_falls_silent_midway_is_not_waited_for_without_end(own_postgres: Server) -> None:
    database = Database(place_of(own_postgres.url(user="muster")), silence_s=2)
    migrate(database)

    def count(*, silent: bool) -> int:
        with database.begin() as connection:
            if silent:
                own_postgres.pause()
            return int(connection.execute(text("SELECT count(*) FROM nodes")).scalar_one())

    for before in (True, False):
        if before:
            own_postgres.pause()
        with pytest.raises(OtherSide, match="did not answer"):
            count(silent=True)
        own_postgres.resume()
    assert count(silent=False) == 0


def test_a_row_that_another_holds_is_not_waited_for_without_end(shared: str) -> None:
    holding, waiting = Database(place_of(shared)), Database(place_of(shared), lock_s=1)
    store(shared).add(node(), why="asked for")

    with holding.begin() as connection:
        connection.execute(text("SELECT * FROM nodes FOR UPDATE"))
        with pytest.raises(OtherSide, match="did not answer in time"), waiting.begin() as other:
            other.execute(text("SELECT * FROM nodes FOR UPDATE"))
