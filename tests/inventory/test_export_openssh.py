import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.errors import BadInput
from inventory.export.openssh import HEAD, write_known_hosts, write_ssh_config
from inventory.export.target import Tally, known_hosts_path
from inventory.model import Address, HostKey, Node, State
from tests.inventory.exports import key, node, text_of
from tests.inventory.kit import KEY
from tests.require import need_command
from tests.sshd import Sshd, keygen, sshd

HOSTS = Path("/etc/muster/known_hosts")


def ssh_config(*nodes: Node, known_hosts: Path = HOSTS) -> str:
    return text_of(lambda out: write_ssh_config(nodes, out, known_hosts=known_hosts))


def known_hosts(*nodes: Node) -> str:
    return text_of(lambda out: write_known_hosts(nodes, out))


def at(server: Sshd, name: str = "gpu-01", **facts: Any) -> Node:
    """A node at the address of a real server."""
    whole = {
        "address": Address("127.0.0.1", None, "leased"),
        "ssh_port": server.port,
        "user": server.user,
        "host_keys": (server.host_key,),
        **facts,
    }
    return node(name, **whole)


def judged(config: str, folder: Path, name: str = "gpu-01") -> dict[str, str]:
    """What ssh makes of a configuration for a host."""
    need_command("ssh")
    file = folder / "config"
    file.write_text(config)
    done = subprocess.run(
        ["ssh", "-T", "-G", "-F", str(file), name], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stderr == ""
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def log_in(name: str, server: Sshd, folder: Path, *nodes: Node) -> subprocess.CompletedProcess[str]:
    """`ssh NAME` through the two files, as a user who includes the one."""
    (folder / "hosts").write_text(known_hosts(*nodes))
    (folder / "config").write_text(ssh_config(*nodes, known_hosts=folder / "hosts"))
    command = ["ssh", "-F", str(folder / "config"), "-i", str(server.login_key), "-o", "BatchMode=yes"]
    return subprocess.run(
        [*command, name, "echo arrived"], capture_output=True, text=True, check=False, timeout=600
    )


def found(name: str, file: Path) -> list[str]:
    """The keys that ssh-keygen finds for a host in a known_hosts file."""
    need_command("ssh-keygen")
    done = subprocess.run(
        ["ssh-keygen", "-F", name, "-f", str(file)], capture_output=True, text=True, check=False, timeout=600
    )
    return [line.split(" ", 1)[1] for line in done.stdout.splitlines() if not line.startswith("#")]


def test_ssh_reads_the_block_of_a_node_as_it_was_meant(tmp_path: Path) -> None:
    rsa = keygen(tmp_path / "rsa", kind="rsa").with_suffix(".pub").read_text()
    told = judged(ssh_config(node(ssh_port=2222, host_keys=(KEY, HostKey.from_line(rsa)))), tmp_path)

    assert (told["hostname"], told["port"], told["user"]) == ("10.0.0.7", "2222", "muster")
    assert told["hostkeyalias"] == "gpu-01"
    assert told["userknownhostsfile"] == str(HOSTS)
    assert told["globalknownhostsfile"] == "/dev/null"
    assert told["stricthostkeychecking"] == "true"
    assert told["hostkeyalgorithms"] == "ssh-ed25519,rsa-sha2-512,rsa-sha2-256"
    assert (told["updatehostkeys"], told["verifyhostkeydns"]) == ("false", "false")


def test_what_stands_after_it_does_not_weaken_it(tmp_path: Path) -> None:
    weak = "Host *\n    StrictHostKeyChecking no\n    UserKnownHostsFile /dev/null\n    HostKeyAlias other\n"
    told = judged(ssh_config(node()) + weak, tmp_path)

    assert (told["stricthostkeychecking"], told["userknownhostsfile"]) == ("true", str(HOSTS))
    assert told["hostkeyalias"] == "gpu-01"


def test_an_ipv6_address_arrives(tmp_path: Path) -> None:
    six = node(address=Address("fd00::7", 64, "static"), ssh_port=2222)
    (tmp_path / "hosts").write_text(known_hosts(six))

    assert judged(ssh_config(six), tmp_path)["hostname"] == "fd00::7"
    assert found("[fd00::7]:2222", tmp_path / "hosts") == [KEY.line]


def test_keys_are_found_by_name_and_by_address_with_a_port_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    other = key("ecdsa-sha2-nistp256")
    file.write_text(
        known_hosts(
            node("gpu-01", host_keys=(KEY, other)),
            node("gpu-02", ssh_port=2222, address=Address("10.0.0.8", 24, "static")),
        )
    )

    assert found("gpu-01", file) == found("10.0.0.7", file) == [KEY.line, other.line]
    assert found("gpu-02", file) == found("[10.0.0.8]:2222", file) == found("[gpu-02]:2222", file)
    assert found("gpu-02", file) == [KEY.line]
    assert found("10.0.0.8", file) == found("gpu-03", file) == []


def test_an_address_that_two_nodes_have_is_neithers(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(known_hosts(node("gpu-01"), node("gpu-02", site="other"), node("gpu-03", ssh_port=2222)))

    assert found("10.0.0.7", file) == []
    assert found("gpu-01", file) == found("gpu-02", file) == found("[10.0.0.7]:2222", file) == [KEY.line]


def test_nodes_that_nobody_can_log_in_to_are_counted_and_left_out() -> None:
    nodes = [
        node("gpu-01"),
        node("gpu-02", State.RETIRED),
        node("gpu-03", address=None),
        node("gpu-04", host_keys=()),
        node("gpu-05", State.AWAITING_IDENTITY, spec_hash=None),  # a list of nodes told of it, nobody looked
        node("gpu-06", host_keys=(key("ssh-dss"),)),
        node("gpu-07", user="muster\n    ProxyCommand touch /tmp/x"),
        node("gpu-08", ssh_port=70000),
    ]
    tallies: list[Tally] = []
    text = text_of(lambda out: tallies.append(write_known_hosts(nodes, out)))

    (tally,) = tallies
    assert [line.partition(",")[0] for line in text.removeprefix(HEAD).splitlines()] == ["gpu-01"]
    assert tally.absent == {"retired": 1, "without an address": 1, "without a pinned host key": 2}
    assert [line.partition(" ")[0] for line in tally.faulty] == ["gpu-06", "gpu-07", "gpu-08"]
    assert (tally.written, tally.left) == (1, 7)


@pytest.mark.parametrize("zone", ["eth0", "x\n    ProxyCommand touch /tmp/x", "x ecdsa", "%h"])
def test_no_zone_of_an_address_becomes_a_line(zone: str) -> None:
    try:
        address = Address(f"fe80::1%{zone}", None, "leased")
    except ValueError:
        return
    assert ssh_config(node(address=address)) == known_hosts(node(address=address)) == HEAD


@given(st.text(max_size=20), st.text(max_size=20), st.integers(-1, 70000))
def test_no_text_of_the_record_becomes_a_line(user: str, site: str, port: int) -> None:
    hostile = node(user=user, site=site, profile=site, reason=site, proxmox_node=site, ssh_port=port)

    assert len(known_hosts(hostile).splitlines()) <= 2
    assert [line for line in ssh_config(hostile).splitlines() if line.strip().startswith("User ")] in (
        [],
        [f"    User {user}"],
    )
    assert len(ssh_config(hostile).splitlines()) in (1, 14)


@pytest.mark.parametrize("path", ["/a b", "/a%h", "/a$HOME", '/a"', "/a'b", "/a{{b}}", "/a\nb", "/~x"])
def test_a_path_that_ssh_or_ansible_would_read_otherwise_is_refused(path: str) -> None:
    with pytest.raises(BadInput, match="cannot be used"):
        known_hosts_path(Path(path))


def test_an_empty_record_is_an_empty_file(tmp_path: Path) -> None:
    assert ssh_config() == known_hosts() == HEAD
    assert judged(ssh_config(), tmp_path)["hostname"] == "gpu-01"


def test_ssh_gets_in_with_the_pinned_key_and_writes_nothing(tmp_path: Path) -> None:
    with sshd(tmp_path / "server") as server:
        done = log_in("gpu-01", server, tmp_path, at(server))

        assert (done.returncode, done.stdout) == (0, "arrived\n"), done.stderr
        assert (tmp_path / "hosts").read_text() == known_hosts(at(server))
        assert not (tmp_path / ".ssh/known_hosts").exists()


def test_ssh_gets_in_by_a_pinned_rsa_key(tmp_path: Path) -> None:
    with sshd(tmp_path / "server", kind="rsa") as server:
        done = log_in("gpu-01", server, tmp_path, at(server))

        assert (done.returncode, done.stdout) == (0, "arrived\n"), done.stderr


def test_ssh_refuses_another_key_than_the_pinned_one(tmp_path: Path) -> None:
    with sshd(tmp_path / "server") as server:
        twin = at(server, "gpu-02")  # it has this key at this address, and may not pass for gpu-01 with it
        done = log_in("gpu-01", server, tmp_path, at(server, host_keys=(KEY,)), twin)

        assert (done.returncode, done.stdout) == (255, "")
        assert "Host key verification failed" in done.stderr
