import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inventory.errors import BadInput, OtherSide
from inventory.model import HostKey
from inventory.reach import MAX_OUTPUT, Session, WrongMachine, open_session
from tests.sshd import ADDRESS, Sshd, keygen, sshd


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


def reach(server: Sshd, **other: object) -> Session:
    settings: dict[str, object] = {
        "host": ADDRESS,
        "port": server.port,
        "user": server.user,
        "host_keys": [server.host_key],
        "key_file": server.login_key,
        "timeout_s": 60.0,
    }
    return open_session(**{**settings, **other})  # type: ignore[arg-type]  # settings vary by test


@pytest.fixture
def session(server: Sshd) -> Iterator[Session]:
    with reach(server) as opened:
        yield opened


def test_a_command_gets_its_stdin_and_gives_both_streams_and_its_status(session: Session) -> None:
    result = session.run("cat; echo talk >&2; exit 3", stdin=b"data", timeout_s=60)

    assert (result.exit_status, result.stdout, result.stderr) == (3, b"data", b"talk\n")


def test_much_on_both_streams_neither_hangs_nor_grows_without_bound(session: Session) -> None:
    flood = "head -c 5000000 /dev/zero >&2; head -c 5000000 /dev/zero; exit 0"
    result = session.run(flood, timeout_s=60)

    assert result.exit_status == 0
    assert len(result.stdout) == len(result.stderr) == MAX_OUTPUT


def test_much_on_stdin_arrives_whole_while_the_command_talks(session: Session) -> None:
    result = session.run("tee /dev/stderr | wc -c", stdin=b"x" * 3_000_000, timeout_s=60)

    assert result.stdout.strip() == b"3000000"


def test_a_command_that_does_not_end_is_left_at_its_deadline(session: Session) -> None:
    began = time.monotonic()
    with pytest.raises(OtherSide, match="no end within 1 s"):
        session.start("sleep 999").finish(timeout_s=1)

    assert time.monotonic() - began < 60


def test_a_command_killed_by_a_signal_is_an_error_not_a_status(session: Session) -> None:
    with pytest.raises(OtherSide, match="ended by a signal"):
        session.run("kill -9 $$", timeout_s=60)


def test_lines_come_while_the_command_runs_and_stdin_stays_open(session: Session) -> None:
    remote = session.start("while read word; do echo got $word; done; echo bye")
    lines = remote.lines(timeout_s=60)
    remote.send(b"one\n")
    first = next(lines)
    remote.send(b"two\n")
    second = next(lines)
    remote.close_stdin()

    assert (first, second, list(lines)) == (b"got one", b"got two", [b"bye"])
    assert remote.finish(timeout_s=60).exit_status == 0


def test_a_line_without_end_is_refused(session: Session) -> None:
    remote = session.start("head -c 400000 /dev/zero | tr '\\0' x; sleep 999")

    with pytest.raises(OtherSide, match="line longer than"):
        list(remote.lines(timeout_s=60))


def test_a_server_with_another_key_gets_nothing_and_both_fingerprints_are_told(
    server: Sshd, tmp_path: Path
) -> None:
    other = HostKey.from_line(keygen(tmp_path / "other").with_suffix(".pub").read_text())
    with pytest.raises(WrongMachine, match="not the machine it should be") as refused:
        reach(server, host_keys=[other])

    assert refused.value.there == (ADDRESS, server.port)
    assert refused.value.found == f"host key {server.host_key.fingerprint}"
    assert server.host_key.fingerprint in refused.value.why
    assert other.fingerprint in refused.value.why


def test_known_hosts_of_the_user_are_not_asked(
    server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    poisoned = tmp_path / ".ssh" / "known_hosts"
    poisoned.write_text(f"[{ADDRESS}]:{server.port} {server.host_key.line}\n")
    other = HostKey.from_line(keygen(tmp_path / "other").with_suffix(".pub").read_text())

    with pytest.raises(OtherSide, match="not the machine"):
        reach(server, host_keys=[other])
    assert poisoned.read_text() == f"[{ADDRESS}]:{server.port} {server.host_key.line}\n"


def test_a_server_that_has_no_key_of_the_pinned_type_is_refused(tmp_path: Path) -> None:
    pinned = HostKey.from_line(keygen(tmp_path / "pin").with_suffix(".pub").read_text())
    with sshd(tmp_path / "rsa", kind="rsa") as server, pytest.raises(WrongMachine, match="pinned type"):
        reach(server, host_keys=[pinned])


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_other_key_types_can_be_pinned(tmp_path: Path, kind: str) -> None:
    with sshd(tmp_path / kind, kind=kind) as server, reach(server) as session:
        assert session.run("echo hello", timeout_s=60).stdout == b"hello\n"


def test_a_login_that_is_refused_names_the_key(server: Sshd, tmp_path: Path) -> None:
    with pytest.raises(OtherSide, match="refused the login"):
        reach(server, key_file=keygen(tmp_path / "stranger"))


def test_a_key_that_cannot_be_used_says_why(server: Sshd, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret12", "-f", str(locked)]
    subprocess.run(command, check=True, timeout=600)

    with pytest.raises(BadInput, match="no such file"):
        reach(server, key_file=tmp_path / "none")
    with pytest.raises(BadInput, match="locked with a passphrase"):
        reach(server, key_file=locked)
    (tmp_path / "junk").write_text("junk")
    with pytest.raises(BadInput, match="cannot be used"):
        reach(server, key_file=tmp_path / "junk")


def test_a_closed_port_and_a_silent_one_are_told_apart(server: Sshd) -> None:
    with socket.create_server((ADDRESS, 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(OtherSide, match="no SSH session"):
            reach(server, port=port, timeout_s=1.0)
        assert time.monotonic() - began < 60
    with pytest.raises(OtherSide, match="unable to connect"):
        reach(server, port=port)


def test_a_server_that_babbles_instead_of_speaking_ssh_ends_in_an_error(
    server: Sshd, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server((ADDRESS, 0)) as babbler:

        def babble() -> None:
            connection, _ = babbler.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 200)

        thread = threading.Thread(target=babble)
        thread.start()
        with pytest.raises(OtherSide, match="no SSH session"):
            reach(server, port=babbler.getsockname()[1], timeout_s=60.0)
        thread.join(timeout=600)

    assert "Traceback" not in capfd.readouterr().err


def test_a_session_that_is_cut_ends_a_waiting_command_with_an_error(tmp_path: Path) -> None:
    with sshd(tmp_path / "cut") as server, reach(server) as session:
        remote = session.start("echo $PPID; sleep 999")
        parent = int(next(remote.lines(timeout_s=60)))
        os.kill(parent, signal.SIGKILL)

        with pytest.raises(OtherSide, match=r"cut|lost|signal"):
            remote.finish(timeout_s=60)
