"""Every kind of node is a machine to whoever logs in, and tells the API the same that it tells him."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from inventory.errors import BadInput, OtherSide
from inventory.model import HostKey
from lab.nodes import Backend, LiveNode, NodeSpec
from tests.lab.nodes_kit import (
    REPOSITORY,
    Login,
    claimed_prefix,
    host_keys_of,
    log_in,
    machine_id_of,
    make_backend,
    make_login,
    node_spec,
    processes_with,
    said,
)
from tests.require import need_command

WALLED = ("sshd", "no sshd", "bwrap")
KINDS = (*WALLED, "plain")
MACHINE_UUID = "/sys/class/dmi/id/product_uuid"


@dataclass(slots=True)
class Site:
    """One backend, and one node that every test of a module finds running."""

    kind: str
    backend: Backend
    node: LiveNode
    login: Login
    prefix: str
    state_dir: Path

    def spec(self, vmid: int, *, instance_id: str = "first") -> NodeSpec:
        return node_spec(self.backend, self.login, self.prefix, vmid=vmid, instance_id=instance_id)


@pytest.fixture(scope="module", params=KINDS)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("lab")
    with claimed_prefix() as prefix:
        backend = make_backend(request.param, folder / "nodes", prefix)
        try:
            login = make_login(folder)
            node = backend.boot(node_spec(backend, login, prefix))
            yield Site(request.param, backend, node, login, prefix, folder)
        finally:
            backend.close()


behind_walls = pytest.mark.parametrize("site", WALLED, indirect=True, scope="module")
without_sshd = pytest.mark.parametrize("site", ["no sshd", "bwrap", "plain"], indirect=True, scope="module")
without_walls = pytest.mark.parametrize("site", ["plain"], indirect=True, scope="module")


def test_a_node_lets_in_its_key_under_the_host_keys_that_the_agent_tells(site: Site) -> None:
    with log_in(site.node, site.login.key_file) as session:
        user = said(session, "id -un")

    assert user == ("root" if site.kind == "bwrap" else site.backend.login_user)


def test_another_host_key_is_not_taken_for_the_nodes(site: Site) -> None:
    pins = (HostKey.from_line(site.login.public),)  # any key that is not the node's

    with pytest.raises(OtherSide, match="key"):
        log_in(site.node, site.login.key_file, host_keys=pins)


def test_a_key_that_the_config_does_not_name_is_refused(site: Site) -> None:
    with pytest.raises(OtherSide, match="refused the login"):
        log_in(site.node, site.login.stranger)


def test_a_user_that_the_config_does_not_name_is_refused(site: Site) -> None:
    with pytest.raises(OtherSide, match="refused the login"):
        log_in(site.node, site.login.key_file, user="stranger")


def test_a_command_gets_its_input_and_gives_both_streams_and_its_status(site: Site) -> None:
    sent = bytes(range(256)) * 1000
    with log_in(site.node, site.login.key_file) as session:
        result = session.run("cat; echo trouble >&2; exit 7", stdin=sent, timeout_s=120.0)

    assert (result.exit_status, result.stderr) == (7, b"trouble\n")
    assert result.stdout == sent


def test_a_command_is_fed_line_by_line(site: Site) -> None:
    with log_in(site.node, site.login.key_file) as session:
        remote = session.start("while read -r line; do echo got $line; done")
        answers = remote.lines(timeout_s=120.0)
        heard = []
        for word in (b"one", b"two"):
            remote.send(word + b"\n")
            heard.append(next(answers))
        remote.close_stdin()
        rest = list(answers)

    assert (heard, rest) == ([b"got one", b"got two"], [])


def test_a_cut_session_ends_the_input_of_its_command(site: Site) -> None:
    word = f"muster-eof-{site.prefix}-{site.kind.replace(' ', '-')}"
    with log_in(site.node, site.login.key_file) as session:
        remote = session.start(f"echo up; cat >/dev/null; : {word}")
        next(remote.lines(timeout_s=120.0))
        assert processes_with(word)

    assert gone(word)


@without_sshd
def test_a_closed_channel_kills_its_command_with_all_that_it_started(site: Site) -> None:
    word = (
        f"30{site.node.spec.vmid}.{site.prefix.rpartition('.')[2]}"  # an odd number of seconds, easy to find
    )
    with log_in(site.node, site.login.key_file) as session:
        remote = session.start(f"trap '' HUP TERM; sleep {word} & sleep {word} & echo up; wait")
        next(remote.lines(timeout_s=120.0))
        assert len(processes_with(f"sleep {word}")) >= 2

        remote.kill()

        assert gone(f"sleep {word}")


@without_walls
def test_what_a_command_leaves_in_a_session_of_its_own_ends_with_it(site: Site) -> None:
    word = f"31{site.node.spec.vmid}.{site.prefix.rpartition('.')[2]}"
    with log_in(site.node, site.login.key_file) as session:
        said(session, f"setsid sleep {word} >/dev/null 2>&1 </dev/null & echo up")

        assert gone(f"sleep {word}")


@behind_walls
def test_hostname_and_machine_id_are_the_nodes_own(site: Site) -> None:
    with log_in(site.node, site.login.key_file) as session:
        hostname = said(
            session, "uname -n; cat /etc/hostname; python3 -c 'import socket; print(socket.gethostname())'"
        )
        machine_id = said(session, "cat /etc/machine-id")

    assert hostname.split() == [site.node.spec.name] * 3
    assert machine_id == machine_id_of(site.node)
    assert len(machine_id) == 32
    here = Path("/etc/machine-id")
    assert not here.exists() or machine_id != here.read_text().strip()


@behind_walls
def test_the_machines_uuid_is_the_configs(site: Site) -> None:
    prefix = "sudo " if site.backend.login_user != "root" else ""
    with log_in(site.node, site.login.key_file) as session:
        found = said(session, f"{prefix}cat {MACHINE_UUID}; stat -c %a {MACHINE_UUID}")

    assert found.split() == [site.node.spec.uuid, "400"]
    assert site.node.read_file(MACHINE_UUID).decode().strip() == site.node.spec.uuid
    assert site.backend.machine_uuid == "required"


@behind_walls
def test_an_identity_can_be_installed_where_the_backend_says(site: Site) -> None:
    install = site.backend.install
    sudo = "sudo -n " if site.backend.login_user != "root" else ""
    command = (
        f"{sudo}install -d -m 0755 -o {install.owner} -g {install.group} {install.dir}/generations/1 && "
        f"{sudo}sh -c 'umask 077; openssl genpkey -algorithm ED25519 -out {install.dir}/generations/1/key.pem && "
        f"ln -sfn generations/1 {install.dir}/current' && {sudo}stat -c '%a %U %G' {install.dir}/current/key.pem"
    )
    with log_in(site.node, site.login.key_file) as session:
        found = said(session, command)

    assert found == "600 root root"
    assert not Path(install.dir, "generations/1").exists()


@without_walls
def test_without_walls_an_identity_can_be_installed_in_the_nodes_directory(site: Site) -> None:
    install = site.backend.install
    command = (
        f"install -d -o {install.owner} -g {install.group} {install.dir}/g && stat -c '%U %G' {install.dir}/g"
    )
    with log_in(site.node, site.login.key_file) as session:
        found = said(session, command)

    assert found == f"{install.owner} {install.group}"
    assert site.backend.machine_uuid == "optional"


@behind_walls
def test_the_machines_homes_and_the_labs_secrets_cannot_be_seen(site: Site) -> None:
    secret = site.state_dir / "nodes" / "secret"
    secret.write_text("secret")
    (Path.home() / "secret").write_text("secret")
    sudo = "sudo -n " if site.backend.login_user != "root" else ""
    places = (secret, Path.home() / "secret", REPOSITORY / "pyproject.toml", Path("/root/.profile"))
    with log_in(site.node, site.login.key_file) as session:
        for place in places:
            assert session.run(f"{sudo}cat {place}", timeout_s=120.0).exit_status != 0, place
            with pytest.raises(OSError, match=r"No such file|denied|Not a directory"):
                site.node.read_file(str(place))
        shadow = session.run(f"{sudo}cat /etc/shadow", timeout_s=120.0).stdout.decode()

    assert all(line.split(":")[1] == "*" for line in shadow.splitlines())


@behind_walls
def test_what_a_session_writes_is_there_for_the_next(site: Site) -> None:
    with log_in(site.node, site.login.key_file) as session:
        said(session, "echo kept >~/note")
    with log_in(site.node, site.login.key_file) as session:
        found = said(session, "cat ~/note")

    assert found == "kept"


def test_cloud_init_says_in_its_own_words_that_it_is_done(site: Site) -> None:
    result = json.loads(site.node.read_file("/run/cloud-init/result.json"))
    status = json.loads(site.node.read_file("/run/cloud-init/status.json"))

    assert result["v1"]["errors"] == []
    assert status["v1"]["stage"] is None
    assert status["v1"]["modules-final"]["finished"]


def test_a_file_that_is_not_there_is_told_as_the_guest_agent_would(site: Site) -> None:
    with pytest.raises(FileNotFoundError):
        site.node.read_file("/etc/no-such-file")
    with pytest.raises(IsADirectoryError):
        site.node.read_file("/etc")


@behind_walls
def test_a_symlink_of_the_node_leads_nowhere_but_into_the_node(site: Site) -> None:
    with log_in(site.node, site.login.key_file) as session:
        said(session, f"ln -sfn /etc/hostname ~/a; ln -sfn ../../../../../../..{site.login.key_file} ~/b")
        home = said(session, "cd; pwd")

    assert site.node.read_file(f"{home}/a").decode().strip() == site.node.spec.name
    with pytest.raises(FileNotFoundError):
        site.node.read_file(f"{home}/b")


def test_the_agent_tells_the_configs_network_and_the_machines_system(site: Site) -> None:
    interfaces = site.node.interfaces()
    system = site.node.osinfo()

    assert [(found["name"], found["hardware-address"]) for found in interfaces] == [
        ("lo", "00:00:00:00:00:00"),
        ("eth0", "bc:24:11:00:00:01"),
        ("eth1", "bc:24:11:00:00:02"),
    ]
    assert interfaces[1]["ip-addresses"] == [
        {"ip-address": site.node.spec.address, "ip-address-type": "ipv4", "prefix": 24}
    ]
    assert "ip-addresses" not in interfaces[2]
    assert system["id"] in Path("/etc/os-release").read_text()
    assert {"kernel-release", "machine", "pretty-name"} <= set(system)


@pytest.mark.parametrize("site", ["sshd", "no sshd"], indirect=True, scope="module")
def test_the_login_is_an_administrator_without_a_password(site: Site) -> None:
    need_command("sudo")
    with log_in(site.node, site.login.key_file) as session:
        assert said(session, "sudo -n id -u") == "0"
        assert said(session, "stat -c %a ~/.ssh/authorized_keys") == "600"


@pytest.mark.parametrize("site", ["sshd", "no sshd"], indirect=True, scope="module")
def test_root_in_a_node_cannot_change_the_machine(site: Site) -> None:
    need_command("sudo")
    attempts = (
        "umount /work /home",
        "mount -t tmpfs none /mnt",
        "mknod /tmp/disk b 8 0",
        "date -s 2001-01-01",
        "sh -c 'echo 1 >/proc/sys/vm/drop_caches'",
        "sh -c 'echo h >/proc/sysrq-trigger'",
        "python3 -c 'import socket; socket.sethostname(\"x\")'",
    )
    with log_in(site.node, site.login.key_file) as session:
        for attempt in attempts:
            assert session.run(f"sudo -n {attempt}", timeout_s=120.0).exit_status != 0, attempt


def test_a_key_that_is_taken_out_of_authorized_keys_opens_no_more(site: Site) -> None:
    with log_in(site.node, site.login.key_file) as session:
        said(session, "cp -p ~/.ssh/authorized_keys ~/kept; : >~/.ssh/authorized_keys")
        with pytest.raises(OtherSide):
            log_in(site.node, site.login.key_file)
        said(session, "cp -p ~/kept ~/.ssh/authorized_keys")

    log_in(site.node, site.login.key_file).close()


def test_a_stopped_node_keeps_its_disk_and_its_identity(site: Site) -> None:
    before = host_keys_of(site.node), machine_id_of(site.node)
    with log_in(site.node, site.login.key_file) as session:
        said(session, "echo kept >~/over-a-boot")

    site.node.stop()
    assert not site.node.alive()
    with pytest.raises(OtherSide):
        log_in(site.node, site.login.key_file, host_keys=before[0])
    site.node = site.backend.boot(site.node.spec)

    assert (host_keys_of(site.node), machine_id_of(site.node)) == before
    with log_in(site.node, site.login.key_file, host_keys=before[0]) as session:
        assert said(session, "cat ~/over-a-boot") == "kept"


def test_another_instance_id_makes_other_host_keys_and_keeps_the_disk(site: Site) -> None:
    before = host_keys_of(site.node), machine_id_of(site.node)
    with log_in(site.node, site.login.key_file) as session:
        said(session, "echo kept >~/over-an-instance")

    site.node.stop()
    site.node = site.backend.boot(site.spec(100, instance_id="second"))

    assert not set(host_keys_of(site.node)) & set(before[0])
    assert machine_id_of(site.node) == before[1]
    with log_in(site.node, site.login.key_file) as session:
        assert said(session, "cat ~/over-an-instance") == "kept"


@behind_walls
def test_a_destroyed_node_leaves_nothing_to_the_next_of_its_number(site: Site) -> None:
    first = site.backend.boot(site.spec(101))
    before = host_keys_of(first), machine_id_of(first)
    with log_in(first, site.login.key_file) as session:
        said(session, "echo gone >~/note")

    site.backend.destroy(101)
    assert not first.alive()
    second = site.backend.boot(site.spec(101))

    assert not set(host_keys_of(second)) & set(before[0])
    assert machine_id_of(second) != before[1]
    with log_in(second, site.login.key_file) as session:
        assert session.run("cat ~/note", timeout_s=120.0).exit_status != 0
    site.backend.destroy(101)


@behind_walls
def test_five_nodes_boot_at_once_and_differ(site: Site) -> None:
    specs = [site.spec(vmid) for vmid in range(110, 115)]
    with ThreadPoolExecutor(len(specs)) as threads:
        nodes = list(threads.map(site.backend.boot, specs))
    names = []
    for node in nodes:
        with log_in(node, site.login.key_file) as session:
            names.append(said(session, "uname -n"))

    assert names == [spec.name for spec in specs]
    assert len({machine_id_of(node) for node in nodes}) == len(nodes)
    assert len({key for node in nodes for key in host_keys_of(node)}) == 2 * len(nodes)
    for spec in specs:
        site.backend.destroy(spec.vmid)


@without_walls
def test_without_walls_a_second_node_is_refused(site: Site) -> None:
    with pytest.raises(OtherSide, match="room for one node"):
        site.backend.boot(site.spec(102))

    assert site.node.alive()


def test_a_taken_address_is_told_and_not_taken_for_the_node(site: Site) -> None:
    with pytest.raises(OtherSide, match=r"taken|in use|room for one"):
        site.backend.boot(replace(site.node.spec, vmid=103))

    assert site.node.alive()


def test_a_name_that_no_machine_takes_is_refused(site: Site) -> None:
    with pytest.raises(BadInput, match="not a name"):
        site.backend.boot(replace(site.node.spec, vmid=104, name="a; reboot"))


def gone(word: str, *, within_s: float = 60.0) -> bool:
    """Whether no process names the word any more, or soon does not."""
    deadline = time.monotonic() + within_s
    while processes_with(word) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not processes_with(word)
