"""What a hostile or broken server does to a session: an error in bounded time and space, never a hang."""

import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inventory.errors import OtherSide
from inventory.model import HostKey
from inventory.reach import MAX_OUTPUT, Session, open_session
from tests.hostile import ADDRESS, Hostile, hostile, raw
from tests.sshd import keygen

BANNER = b"SSH-2.0-OpenSSH_9.2p1\r\n"
HOLDS_S = 120.0  # for so long a server that is silent would hold whoever has no deadline of their own


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keygen(tmp_path_factory.mktemp("login") / "login")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    with hostile(keygen(tmp_path_factory.mktemp("hostile") / "host")) as running:
        yield running


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[Hostile]:
    with hostile(keygen(tmp_path / "host"), stalled=True) as running:
        yield running


def reach(port: int, host_key: HostKey, login: Path, *, timeout_s: float = 60.0) -> Session:
    return open_session(
        host=ADDRESS, port=port, user="x", host_keys=[host_key], key_file=login, timeout_s=timeout_s
    )


def silent(_connection: socket.socket, over: threading.Event) -> None:
    over.wait(HOLDS_S)


def silent_after_its_banner(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(BANNER)
    over.wait(HOLDS_S)


def drips(connection: socket.socket, over: threading.Event) -> None:
    while not over.wait(0.02):
        connection.sendall(b"x")


def drips_lines(connection: socket.socket, over: threading.Event) -> None:
    while not over.wait(0.2):
        connection.sendall(b"wait\r\n")


def drips_a_packet(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(BANNER + (30_000).to_bytes(4, "big"))
    while not over.wait(0.02):
        connection.sendall(b"\x04")


def one_endless_line(connection: socket.socket, over: threading.Event) -> None:
    while not over.is_set():
        connection.sendall(b"x" * 65536)


def endless_lines(connection: socket.socket, over: threading.Event) -> None:
    while not over.is_set():
        connection.sendall(b"welcome\r\n" * 4096)


def noise_after_its_banner(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(BANNER)
    while not over.is_set():
        connection.sendall(b"\xff" * 65536)


def half_closed(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(BANNER)
    connection.shutdown(socket.SHUT_WR)
    over.wait(HOLDS_S)


def half_a_banner(connection: socket.socket, _over: threading.Event) -> None:
    connection.sendall(b"SSH-2.0")


def ssh_1(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"SSH-1.5-old\r\n")
    over.wait(HOLDS_S)


Talk = Callable[[socket.socket, threading.Event], None]
RAW: tuple[Talk, ...] = (
    silent, silent_after_its_banner, drips, drips_lines, drips_a_packet, one_endless_line, endless_lines,
    noise_after_its_banner, half_closed, half_a_banner, ssh_1,
)  # fmt: skip


@pytest.mark.parametrize("talk", RAW, ids=lambda talk: talk.__name__)
def test_a_server_that_never_gets_to_a_login_ends_in_an_error_in_time_and_in_small_memory(
    server: Hostile, login: Path, talk: Talk, capfd: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    threads = threading.active_count()
    with raw(talk) as port:
        began = time.monotonic()
        with pytest.raises(OtherSide, match="no SSH session") as refused:
            reach(port, server.host_key, login, timeout_s=1.0)
        assert time.monotonic() - began < HOLDS_S / 2

    assert refused.value.why.isprintable()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB
    assert capfd.readouterr().err == ""
    deadline = time.monotonic() + 60
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() <= threads


def test_a_server_that_says_much_before_the_login_is_given_up_early(server: Hostile, login: Path) -> None:
    with raw(one_endless_line) as port, pytest.raises(OtherSide, match="said more than 262144 bytes"):
        reach(port, server.host_key, login, timeout_s=60.0)


def test_a_server_that_never_tells_the_exit_status_is_left_at_the_deadline(
    server: Hostile, login: Path
) -> None:
    with reach(server.port, server.host_key, login) as session:
        began = time.monotonic()
        with pytest.raises(OtherSide, match="no end within 1 s"):
            session.start("no-status").finish(timeout_s=1)
        assert time.monotonic() - began < HOLDS_S / 2


def test_a_session_that_closes_without_a_status_is_lost_not_done(server: Hostile, login: Path) -> None:
    with reach(server.port, server.host_key, login) as session, pytest.raises(OtherSide, match=r"cut|lost"):
        session.run("closes", timeout_s=60)


def test_ten_mib_on_stderr_alone_neither_hang_nor_are_kept(server: Hostile, login: Path) -> None:
    with reach(server.port, server.host_key, login) as session:
        result = session.run("stderr-flood", timeout_s=60)

    assert (result.exit_status, result.stdout, len(result.stderr)) == (0, b"", MAX_OUTPUT)


def test_a_command_that_drips_for_ever_is_left_at_the_deadline(server: Hostile, login: Path) -> None:
    with reach(server.port, server.host_key, login) as session:
        remote = session.start("drip")
        began = time.monotonic()
        with pytest.raises(OtherSide, match="no end within 1 s"):
            list(remote.lines(timeout_s=1))
        assert time.monotonic() - began < HOLDS_S / 2


def test_what_a_node_says_reaches_nobody_with_its_escapes(server: Hostile, login: Path) -> None:
    with reach(server.port, server.host_key, login) as session:
        result = session.run("escapes", timeout_s=60)

    assert result.exit_status == 3
    assert result.last_words == r"\x1b]0;owned\x07\x1b[2J\u202egnp.exe"


def test_a_server_that_never_answers_the_command_is_left_at_the_deadline(
    stalled: Hostile, login: Path
) -> None:
    session = reach(stalled.port, stalled.host_key, login)
    began = time.monotonic()
    with pytest.raises(OtherSide, match="runs no command"):
        session.run("never-answered", timeout_s=1)
    session.close()

    assert time.monotonic() - began < HOLDS_S / 2


def test_a_server_that_takes_a_command_but_not_its_input_is_left_at_the_deadline(
    stalled: Hostile, login: Path
) -> None:
    session = reach(stalled.port, stalled.host_key, login)
    began = time.monotonic()
    with pytest.raises(OtherSide, match=r"did not end|was lost"):
        session.run("takes-nothing", stdin=bytes(40_000_000), timeout_s=1)
    session.close()

    assert time.monotonic() - began < HOLDS_S / 2
