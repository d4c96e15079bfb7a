"""Directory nodes with OpenSSH's server run by the lab's user, and behind walls made without bubblewrap."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from inventory.errors import OtherSide
from lab.nodes import Backend, LiveNode
from lab.personalise import NodeFile
from lab.plain import login_user
from lab.scenarios import Image
from lab.trial import try_out
from tests.lab.api import banner
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
from tests.lab.processes import descendants, mounts, with_text

KINDS = ("bwrap with sshd", "unshare", "unshare with sshd", "plain with sshd")
WALLED = KINDS[:3]
_YEAR_S = 365 * 86400


@dataclass(slots=True)
class Site:
    """One backend, its node, and who may log in."""

    kind: str
    backend: Backend
    node: LiveNode
    login: Login
    prefix: str
    folder: Path


@pytest.fixture(scope="module", params=KINDS)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("lab")
    with claimed_prefix() as prefix:
        backend = make_backend(request.param, folder / "nodes", prefix)
        try:
            try_out(backend, f"{prefix}.250")
            login = make_login(folder)
            node = backend.boot(node_spec(backend, login, prefix))
            yield Site(request.param, backend, node, login, prefix, folder)
        finally:
            backend.close()


behind_walls = pytest.mark.parametrize("site", WALLED, indirect=True, scope="module")
with_sshd = pytest.mark.parametrize("site", [k for k in KINDS if "sshd" in k], indirect=True, scope="module")


def test_a_node_lets_in_its_key_alone_and_runs_what_it_is_told(site: Site) -> None:
    with log_in(site.node, site.login.key_file) as session:
        echoed = said(session, "printf '%s|' \"$(cat)\" 'a  b' \"it's\"", stdin=b"in put")
        status = session.run("exit 7", timeout_s=120.0).exit_status
        user = said(session, "id -un")
        given = said(session, "env")
    with pytest.raises(OtherSide, match="refused the login"):
        log_in(site.node, site.login.stranger)

    assert (echoed, status) == ("in put|a  b|it's|", 7)
    assert user == site.backend.login_user
    assert "PYTEST_RUN" not in given  # the lab's environment stays outside


@with_sshd
def test_the_login_is_whom_sshd_can_let_in(site: Site) -> None:
    assert site.backend.login_user == login_user()
    assert b"OpenSSH" in banner(site.node.spec.address, site.node.ssh_port)


@behind_walls
def test_behind_walls_it_is_a_machine_of_its_own(site: Site) -> None:
    with log_in(site.node, site.login.key_file) as session:
        told = said(session, "id -u; cat /proc/sys/kernel/hostname; cat /etc/machine-id").split()
        uuid = said(session, "cat /sys/class/dmi/id/product_uuid")
        processes = said(session, "ls -d /proc/[0-9]* | wc -l")
        here = session.run(f"ls {REPOSITORY}", timeout_s=120.0)
        outside = session.run("touch /usr/of-the-node", timeout_s=120.0)
        capabilities = said(session, "grep CapEff /proc/self/status").split()[1]

    assert told == ["0", site.node.spec.name, machine_id_of(site.node)]
    assert uuid == site.node.spec.uuid
    assert int(processes) < 10
    assert here.exit_status != 0
    assert outside.exit_status != 0
    assert not Path("/usr/of-the-node").exists()
    assert int(capabilities, 16) == 0


@behind_walls
def test_files_stay_and_processes_go_with_their_session(site: Site) -> None:
    word = f"31{os.getpid()}"
    with log_in(site.node, site.login.key_file) as session:
        said(session, f"echo kept >/root/file; setsid sleep {word} >/dev/null 2>&1 & echo started")
    with log_in(site.node, site.login.key_file) as session:
        kept = said(session, "cat /root/file")

    assert kept == "kept"
    assert processes_with(word) == []


@behind_walls
def test_a_clone_has_what_its_template_was_left_with(site: Site) -> None:
    names = [f"ssh_host_{kind}_key{end}" for kind in ("ed25519", "ecdsa") for end in ("", ".pub")]
    keys = tuple(
        NodeFile(f"etc/ssh/{name}", site.node.read_file(f"/etc/ssh/{name}"), 0o600) for name in names
    )
    spec = replace(
        node_spec(site.backend, site.login, site.prefix, vmid=101),
        image=Image(machine_id="c" * 32, host_keys=keys),
        clock_offset_s=-_YEAR_S,
    )
    node = site.backend.boot(spec)
    shared, machine_id = host_keys_of(node) == host_keys_of(site.node), machine_id_of(node)
    with log_in(node, site.login.key_file) as session:
        told, real = (int(said(session, f"{date} +%s")) for date in ("date", "/usr/bin/date"))
    site.backend.destroy(101)

    assert (shared, machine_id) == (True, "c" * 32)
    assert abs(real - told - _YEAR_S) < 20
    assert site.node.alive()


def test_a_node_that_is_stopped_leaves_nothing_running_and_boots_again(site: Site) -> None:
    before = mounts(site.folder)
    word = f"32{os.getpid()}"
    with log_in(site.node, site.login.key_file) as session:
        session.start(f"sleep {word}")
        while not processes_with(word):
            time.sleep(0.02)
        running = descendants(os.getpid())
        site.node.stop()
        stopped = processes_with(word), with_text(str(site.folder)), site.node.alive()
    site.node = site.backend.boot(site.node.spec)

    assert any(running)
    assert stopped == ([], [], False)
    assert mounts(site.folder) == before
    assert site.node.alive()
