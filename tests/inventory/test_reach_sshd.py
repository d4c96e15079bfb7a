"""The traps of SSH, set by a real OpenSSH server: key types, certificates, rotation, agents, jump hosts, IPv6."""

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inventory.errors import BadInput, OtherSide
from inventory.jump import Jump, parse_jump
from inventory.model import HostKey
from inventory.reach import Session, open_session
from inventory.signature import public_key_line
from inventory.ticket import read_ticket, sign_ticket
from tests.inventory.agents import agent, short_folder
from tests.inventory.kit import NOW, signers_line, ticket
from tests.ports import free_port
from tests.require import need
from tests.sshd import ADDRESS, Sshd, keygen, sshd


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd"), options="MaxAuthTries 2") as running:
        yield running


def pin_of(key: Path) -> HostKey:
    return HostKey.from_line(key.with_suffix(".pub").read_text())


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


def hears(session: Session) -> bool:
    return session.run("echo hello", timeout_s=60).stdout == b"hello\n"


def test_the_pinned_type_is_asked_for_though_the_server_would_offer_another_first(tmp_path: Path) -> None:
    others = [keygen(tmp_path / kind, kind=kind) for kind in ("rsa", "ecdsa")]
    offered = "HostKeyAlgorithms rsa-sha2-512,ecdsa-sha2-nistp256,ssh-ed25519"
    options = "\n".join([*(f"HostKey {key}" for key in others), offered])
    with sshd(tmp_path / "sshd", options=options) as server:
        for pin in (server.host_key, *map(pin_of, others)):
            with reach(server, host_keys=[pin]) as session:
                assert hears(session)


def test_a_host_certificate_does_not_stand_for_the_pinned_key(tmp_path: Path) -> None:
    authority, host = keygen(tmp_path / "authority"), keygen(tmp_path / "host", kind="ecdsa")
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "host", "-h", "-n", ADDRESS, f"{host}.pub"]
    subprocess.run(sign, check=True, timeout=600)
    options = f"HostKey {host}\nHostCertificate {host}-cert.pub"
    with sshd(tmp_path / "sshd", options=options) as server:
        with reach(server, host_keys=[pin_of(host)]) as session:
            assert hears(session)
        with pytest.raises(OtherSide, match="not the machine"):
            reach(server, host_keys=[pin_of(authority)])


def test_keys_that_a_server_announces_are_not_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    new = keygen(tmp_path / "new")
    with sshd(tmp_path / "both", options=f"HostKey {keygen(tmp_path / 'rsa', kind='rsa')}") as server:
        with reach(server) as session:  # sshd tells all its keys: hostkeys-00@openssh.com
            assert hears(session)
        old = server.host_key
    with (
        sshd(tmp_path / "rotated") as rotated,
        pytest.raises(OtherSide, match="not the machine it should be") as refused,
    ):
        reach(rotated, host_keys=[old, pin_of(new)])
    assert rotated.host_key.fingerprint in refused.value.why
    assert not (tmp_path / ".ssh").exists()


def test_a_key_exchange_in_the_midst_of_a_command_loses_nothing(tmp_path: Path) -> None:
    with sshd(tmp_path / "sshd", options="RekeyLimit 128K") as server, reach(server) as session:
        data = bytes(range(256)) * 4096
        result = session.run("cat", stdin=data, timeout_s=60)

        assert result.stdout == data
        assert hears(session)


def test_a_key_in_an_agent_logs_in_and_no_other_of_the_agent_is_offered(
    server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers = [keygen(tmp_path / f"key{n}") for n in range(6)]
    mine = keygen(tmp_path / "mine")
    with server.authorized_keys.open("a") as file:
        file.write(mine.with_suffix(".pub").read_text())
    with agent(*strangers, mine) as place:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
        with reach(server, key_file=mine.with_suffix(".pub")) as session:
            assert hears(session)
            assert session.run('echo "[$SSH_AUTH_SOCK]"', timeout_s=60).stdout == b"[]\n"
        with pytest.raises(OtherSide, match="refused the login"):
            reach(server, key_file=strangers[0].with_suffix(".pub"))
        unknown = keygen(tmp_path / "unknown")
        with pytest.raises(BadInput, match="none of them"):
            reach(server, key_file=unknown.with_suffix(".pub"))


def test_an_rsa_key_in_an_agent_signs_with_sha_2(
    server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = keygen(tmp_path / "mine", kind="rsa")
    with server.authorized_keys.open("a") as file:
        file.write(mine.with_suffix(".pub").read_text())
    with agent(mine) as place:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
        with reach(server, key_file=mine.with_suffix(".pub")) as session:
            assert hears(session)


def test_an_agent_is_asked_only_where_a_pub_file_is_named(
    server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, stranger = keygen(tmp_path / "mine"), keygen(tmp_path / "stranger")
    with server.authorized_keys.open("a") as file:
        file.write(mine.with_suffix(".pub").read_text())
    with agent(mine) as place:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
        with pytest.raises(OtherSide, match="refused the login"):
            reach(server, key_file=stranger)


def test_an_absent_and_a_silent_agent_are_told(server: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    public = server.login_key.with_suffix(".pub")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(BadInput, match="SSH_AUTH_SOCK names none"):
        reach(server, key_file=public)
    with short_folder() as folder, socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(folder / "silent"))
        silent.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(folder / "silent"))
        began = time.monotonic()
        with pytest.raises(BadInput, match="does not answer"):
            reach(server, key_file=public, timeout_s=1.0)
        assert time.monotonic() - began < 60


def test_a_ticket_is_signed_by_a_key_that_lives_in_an_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = keygen(tmp_path / "infra", comment="operator@lab")
    signers = tmp_path / "signers"
    signers.write_text(signers_line(key))
    with agent(key) as place:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
        text = sign_ticket(ticket(), key_file=key.with_suffix(".pub"))

        assert read_ticket(text, signers=signers, now=NOW).signer == "operator@lab"
        assert public_key_line(key.with_suffix(".pub")).endswith(" operator@lab")
    with pytest.raises(BadInput, match="did not sign"):
        sign_ticket(ticket(), key_file=key.with_suffix(".pub"))


def test_an_address_of_ipv6_is_reached_by_its_own_pin(tmp_path: Path) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            port = free_port("::1")
    except OSError:
        need(condition=False, what="an IPv6 loopback", how="sysctl net.ipv6.conf.lo.disable_ipv6=0")
    with sshd(tmp_path / "sshd", options=f"ListenAddress [::1]:{port}") as server:
        with reach(server, host="::1", port=port) as session:
            assert hears(session)
        with pytest.raises(OtherSide, match="not the machine"):
            reach(server, host="::1", port=port, host_keys=[pin_of(keygen(tmp_path / "other"))])


def test_a_jump_host_leads_on_and_each_host_is_held_to_its_own_pin(server: Sshd, tmp_path: Path) -> None:
    with sshd(tmp_path / "jump") as bastion:
        bastion.authorized_keys.write_text(server.login_key.with_suffix(".pub").read_text())
        way = Jump(ADDRESS, bastion.port, bastion.user, (bastion.host_key,))
        with reach(server, jump=way) as session:
            result = session.run("echo $SSH_CONNECTION; head -c 100000 /dev/zero", timeout_s=60)
            assert result.stdout.startswith(f"{ADDRESS} ".encode())
            assert len(result.stdout) > 100_000
        wrong = Jump(ADDRESS, bastion.port, bastion.user, (server.host_key,))
        with pytest.raises(OtherSide, match="not the machine it should be"):
            reach(server, jump=wrong)
        with pytest.raises(OtherSide, match="not the machine it should be"):
            reach(server, jump=way, host_keys=[bastion.host_key])


def test_a_jump_host_that_does_not_lead_on_is_named(server: Sshd, tmp_path: Path) -> None:
    with sshd(tmp_path / "jump", options="AllowTcpForwarding no") as bastion:
        bastion.authorized_keys.write_text(server.login_key.with_suffix(".pub").read_text())
        way = Jump(ADDRESS, bastion.port, bastion.user, (bastion.host_key,))
        with pytest.raises(OtherSide, match=f"does not lead to {ADDRESS} port {server.port}"):
            reach(server, jump=way)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bastion.example", ("bastion.example", 22, "me")),
        ("holder@10.0.0.1:2222", ("10.0.0.1", 2222, "holder")),
        ("[2001:db8::1]:22", ("2001:db8::1", 22, "me")),
    ],
)
def test_a_jump_host_is_written_as_ssh_writes_it(
    server: Sshd, tmp_path: Path, text: str, expected: tuple[str, int, str]
) -> None:
    (tmp_path / "jump.pub").write_text(f"# the bastion\n{server.host_key.line} root@bastion\n")
    found = parse_jump(text, tmp_path / "jump.pub", user="me")

    assert found is not None
    assert (found.host, found.port, found.user) == expected
    assert found.host_keys == (server.host_key,)


NO_HOSTS = ("", "-oProxyCommand=x", "a b", "h:0", "h:70000", "Root@h", "h:22:22", "2001:db8::1", "h\n")


@pytest.mark.parametrize("text", NO_HOSTS)
def test_what_is_no_jump_host_is_refused(server: Sshd, tmp_path: Path, text: str) -> None:
    (tmp_path / "jump.pub").write_text(server.host_key.line)
    with pytest.raises(BadInput, match="is no jump host"):
        parse_jump(text, tmp_path / "jump.pub", user="me")


def test_a_jump_host_without_a_pin_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.pub").write_text("# nothing\n")
    with pytest.raises(BadInput, match="--jump-host-key FILE is missing"):
        parse_jump("bastion", None, user="me")
    with pytest.raises(BadInput, match="is missing beside"):
        parse_jump(None, tmp_path / "empty.pub", user="me")
    with pytest.raises(BadInput, match="holds no host key"):
        parse_jump("bastion", tmp_path / "empty.pub", user="me")
    assert parse_jump(None, None, user="me") is None
