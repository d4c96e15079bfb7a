"""The inventories as real Ansible reads them, and a real node as it reaches one."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.export.ansible import write_host, write_list, write_yaml
from inventory.export.openssh import write_known_hosts
from inventory.model import Fabric, HostKey, Node, State
from tests.inventory.exports import BIN, NOW, node, record, run, text_of
from tests.inventory.kit import KEY
from tests.inventory.test_export_openssh import at
from tests.require import need_command
from tests.sshd import Sshd, sshd

SCRIPT = Path(__file__).parents[2] / "examples/ansible/muster-inventory"
ECHO = "echo arr''ived"  # an error may repeat what was asked for
CARELESS = {
    "ANSIBLE_HOST_KEY_CHECKING": "False",
    "ANSIBLE_SSH_ARGS": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null",
}
TEMPLATE = "{{ lookup('pipe', 'touch %s') }}"
HOSTILE = [
    "a: \"b\" 'c' # d",
    "- x\n  y: z",
    "!!python/object:os.system",
    "\\ \t\r\x01\x7f\x85\u2028\ufeff\ufffe",
    "ü 😀 \U0010ffff",
    "{{ 1 + 1 }}",
    "{% raw %}",
    "[::1]",
    "*alias",
    "&anchor",
    "yes",
    "~",
    "0x10",
    "",
]


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose name is short enough for the sockets of ssh."""
    folder = Path(tempfile.mkdtemp(prefix="ans", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def ansible(
    *command: str, folder: Path, url: str = "", check: bool = True, **environ: str
) -> subprocess.CompletedProcess[str]:
    """One of Ansible's commands, without the settings of the person who runs the tests."""
    need_command("ansible", "ansible-inventory")
    (folder / "ansible.cfg").touch()
    own = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env={
            **own,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
            "ANSIBLE_HOME": str(folder / "ansible"),
            "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp"),
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
            "ANSIBLE_SSH_USETTY": "False",  # a server that is not root gives no terminal
            "MUSTER_INVENTORY": url,
            **environ,
        },
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def told_by_ansible(inventory: Path, folder: Path, *, url: str = "") -> dict[str, Any]:
    """What `ansible-inventory --list` makes of an inventory, in which it finds nothing to warn of."""
    done = ansible("ansible-inventory", "-i", str(inventory), "--list", folder=folder, url=url)
    assert done.stderr == ""
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def as_yaml(*nodes: Node, known_hosts: Path | None = None) -> str:
    return text_of(lambda out: write_yaml(nodes, out, known_hosts=known_hosts))


def as_list(*nodes: Node, known_hosts: Path | None = None) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(text_of(lambda out: write_list(nodes, out, known_hosts=known_hosts)))
    return told


def as_host(each: Node) -> str:
    return text_of(lambda out: write_host(each, out, known_hosts=None))


FLEET = (
    node("gpu-01", not_after=NOW, verified_at=NOW),
    node("gpu-02", State.VERIFY_FAILED, site="pve-1", reason="no NVLink: {{ 1 }}", ssh_port=2222),
    node("gpu-03", State.AWAITING_IDENTITY, site="pve.1", profile=None, user=None, fabrics=()),
    node("gpu-04", State.RETIRED),
    node("gpu-05", address=None),
)


def groups(told: dict[str, Any]) -> dict[str, list[str]]:
    return {name: group["hosts"] for name, group in told.items() if group.get("hosts")}


def test_ansible_reads_both_inventories_alike_and_every_text_for_what_it_is(tmp_path: Path) -> None:
    hostile = [
        node(f"odd-{number:02}", reason=text, profile=text, site=text, fabrics=(Fabric(text or "x"),))
        for number, text in enumerate(HOSTILE)
    ]
    static = tmp_path / "hosts.yaml"
    static.write_text(as_yaml(*FLEET, *hostile))
    url = record(tmp_path, *FLEET, *hostile)
    told, dynamic = (told_by_ansible(inventory, tmp_path, url=url) for inventory in (static, SCRIPT))

    first, second, third = (told["_meta"]["hostvars"][name] for name in ("gpu-01", "gpu-02", "gpu-03"))
    assert (first["ansible_host"], first["ansible_port"], first["ansible_user"]) == ("10.0.0.7", 22, "muster")
    assert (first["muster_state"], first["muster_next"], first["muster_vmid"]) == (
        "in-service",
        "nobody",
        5000,
    )
    assert first["muster_certificate_not_after"] == "2026-11-30T12:00:00Z"
    assert first["muster_fabrics"][0]["mtu"] == 9000
    assert (second["ansible_port"], second["muster_reason"]) == (
        2222,
        {"__ansible_unsafe": "no NVLink: {{ 1 }}"},
    )
    assert not {"ansible_user", "muster_profile", "muster_fabrics"} & set(third)
    assert groups(dynamic) == groups(told)
    for name in {*told["_meta"]["hostvars"]} - {
        "gpu-01"
    }:  # its times are the receipt's, which this record has not
        assert dynamic["_meta"]["hostvars"][name] == told["_meta"]["hostvars"][name]
    for number, text in enumerate(HOSTILE):
        known = told["_meta"]["hostvars"][f"odd-{number:02}"]["muster_reason"]
        assert (known["__ansible_unsafe"] if isinstance(known, dict) else known) == text


def test_groups_are_by_state_site_profile_and_proxmox_node_and_never_shared_by_two() -> None:
    told = groups(as_list(*FLEET))

    assert told == {
        "muster": ["gpu-01", "gpu-02", "gpu-03"],
        "muster_state_in_service": ["gpu-01"],
        "muster_state_verify_failed": ["gpu-02"],
        "muster_state_awaiting_identity": ["gpu-03"],
        "muster_site_lab_example": ["gpu-01"],
        "muster_site_pve_1_c5a44159": ["gpu-02"],
        "muster_site_pve_1_cf0d4d32": ["gpu-03"],
        "muster_profile_h100x8": ["gpu-01", "gpu-02"],
        "muster_proxmox_pve1": ["gpu-01", "gpu-02", "gpu-03"],
    }


def test_an_empty_record_is_an_inventory_without_hosts(tmp_path: Path) -> None:
    static = tmp_path / "hosts.yaml"
    static.write_text(as_yaml())

    for inventory in (static, SCRIPT):
        told = told_by_ansible(inventory, tmp_path, url=record(tmp_path))
        assert (told["_meta"]["hostvars"], groups(told)) == ({}, {})


def test_what_host_prints_is_what_list_says_of_it() -> None:
    listed = as_list(*FLEET)["_meta"]["hostvars"]

    for each in FLEET:
        assert json.loads(as_host(each)) == listed.get(each.name, {})


def test_ansible_never_runs_what_a_reason_says(short: Path) -> None:
    mark = short / "mark"
    one = node(reason=TEMPLATE % mark, profile=TEMPLATE % mark, fabrics=(Fabric(TEMPLATE % mark),))
    static = short / "hosts.yaml"
    static.write_text(as_yaml(one))
    url = record(short, one)

    for inventory in (static, SCRIPT):
        done = ansible(
            *("ansible", "-i", str(inventory), "gpu-01", "-c", "local", "-m", "debug"),
            *("-a", "msg={{ muster_reason }}{{ muster_profile }}{{ muster_fabrics }}"),
            folder=short,
            url=url,
        )
        assert "lookup(" in done.stdout
        assert not mark.exists()


@given(st.lists(st.text(max_size=20), max_size=3))
def test_group_names_are_ones_that_ansible_takes(sites: list[str]) -> None:
    nodes = [node(f"gpu-{number}", site=site, profile=site) for number, site in enumerate(sites)]
    told = groups(as_list(*nodes))

    assert all(name.isascii() and name.isidentifier() for name in told)
    of_sites = [members for name, members in told.items() if name.startswith("muster_site_")]
    assert len(of_sites) == len({site for site in sites if site})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("server") / "s", options="Subsystem sftp internal-sftp") as running:
        yield running


@contextmanager
def pinned(server: Sshd, folder: Path, host_key: HostKey) -> Iterator[tuple[str, Path]]:
    """A record of one node with this pin, and the known_hosts file; connections that ssh shares end with the block."""
    one = at(server, host_keys=(host_key,))
    (folder / "hosts").write_text(text_of(lambda out: write_known_hosts([one], out)))
    try:
        yield record(folder, one), folder / "hosts"
    finally:
        for socket in (folder / "cp").glob("*"):
            subprocess.run(
                ["ssh", "-O", "exit", "-S", str(socket), "x"], check=False, capture_output=True, timeout=600
            )


def ping(
    server: Sshd, folder: Path, url: str, hosts: Path, *arguments: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    """A module on gpu-01 through the script, with the pins in `hosts`."""
    return ansible(
        *("ansible", "-i", str(SCRIPT), "--private-key", str(server.login_key), "gpu-01", *arguments),
        folder=folder,
        url=url,
        check=False,
        MUSTER_KNOWN_HOSTS=str(hosts),
        **environ,
    )


def test_ansible_reaches_a_node_by_its_pinned_key(server: Sshd, short: Path) -> None:
    with pinned(server, short, server.host_key) as (url, hosts):
        done = ping(server, short, url, hosts, "-m", "ping")

    assert '"ping": "pong"' in done.stdout, done.stdout + done.stderr
    assert done.stderr == ""
    assert not (Path(os.environ["HOME"]) / ".ssh/known_hosts").exists()


@pytest.mark.parametrize("settings", [{}, CARELESS], ids=["as they come", "careless"])
def test_ansible_refuses_a_node_with_another_key_however_careless_its_settings(
    server: Sshd, short: Path, settings: dict[str, str]
) -> None:
    with pinned(server, short, KEY) as (url, hosts):
        done = ping(server, short, url, hosts, "-m", "raw", "-a", ECHO, **settings)

    assert done.returncode != 0
    assert "Host key verification failed" in done.stdout
    assert "arrived" not in done.stdout


def test_the_static_inventory_has_the_same_pins(server: Sshd, short: Path) -> None:
    with pinned(server, short, server.host_key) as (url, hosts):
        made = run(
            *("export", "--format", "ansible", "--known-hosts", str(hosts), "-o", str(short / "hosts.yaml")),
            url=url,
        )
        done = ansible(
            *("ansible", "-i", str(short / "hosts.yaml"), "--private-key", str(server.login_key)),
            *("muster_state_in_service", "-m", "raw", "-a", ECHO),
            folder=short,
            check=False,
        )

    assert made.returncode == 0, made.stderr
    assert "arrived" in done.stdout, done.stdout + done.stderr
