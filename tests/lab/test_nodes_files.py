"""The files of a node: what is laid there, and how they are read without being led astray."""

import io
import json
import os
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lab import personalise
from lab.inside import read_inside
from lab.nodes import NodeSpec, interfaces_of, osinfo_of
from lab.ssh_server import new_host_keys

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def spec(**changes: object) -> NodeSpec:
    words: dict[str, object] = {
        "vmid": 100,
        "name": "gpu-01",
        "address": "127.20.1.10",
        "uuid": "11111111-2222-3333-4444-555555555555",
        "macs": ("BC:24:11:00:00:01",),
        "user": "muster",
        "ssh_keys": ("ssh-ed25519 AAAA one", "ssh-ed25519 BBBB two"),
        "cores": 1,
        "memory_mib": 512,
        "instance_id": "abc",
    }
    return NodeSpec(**{**words, **changes})  # type: ignore[arg-type] # one fact varies per test


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("outside")
    root = tmp_path / "root"
    (root / "etc/deep").mkdir(parents=True)
    (root / "etc/hostname").write_text("inside")
    (root / "secret").write_text("inside")
    return root


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("etc/a", "hostname"),
        ("etc/a", "/etc/hostname"),
        ("etc/a", "../../../../etc/hostname"),
        ("etc/deep/a", "../../secret"),
        ("etc/deep/a", "../../../../secret"),
        ("etc/deep/a", "/../secret"),
    ],
)
def test_a_symlink_is_followed_below_the_root(root: Path, link: str, target: str) -> None:
    (root / link).symlink_to(target)

    assert read_inside(root, f"/{link}") == b"inside"


def test_a_directory_that_is_a_symlink_is_followed_below_the_root(root: Path) -> None:
    (root / "away").symlink_to("/..")

    assert read_inside(root, "/away/secret") == b"inside"
    assert read_inside(root, "away/etc/../etc/./deep/../hostname") == b"inside"


def test_a_symlink_to_what_only_the_machine_has_leads_nowhere(root: Path, tmp_path: Path) -> None:
    (root / "a").symlink_to(tmp_path / "secret")

    with pytest.raises(FileNotFoundError):
        read_inside(root, "/a")


def test_symlinks_that_go_round_are_told(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")

    with pytest.raises(OSError, match="symbolic links"):
        read_inside(root, "/a")


def test_only_a_regular_file_of_reasonable_size_is_read(root: Path) -> None:
    os.mkfifo(root / "pipe")

    with pytest.raises(OSError, match="not a regular file"):
        read_inside(root, "/pipe")
    with pytest.raises(IsADirectoryError):
        read_inside(root, "/etc")
    with pytest.raises(NotADirectoryError):
        read_inside(root, "/secret/more")
    with pytest.raises(OSError, match="too large"):
        read_inside(root, "/secret", limit=5)


def test_cloud_inits_result_is_reached_from_run_as_on_a_real_machine() -> None:
    files = {file.path: file for file in personalise.every_boot(spec(), now=NOW)}
    result = json.loads(files["var/lib/cloud/data/result.json"].content or b"")

    assert files["run/cloud-init/result.json"].target == "../../var/lib/cloud/data/result.json"
    assert result["v1"]["errors"] == []
    assert result["v1"]["datasource"].startswith("DataSourceNoCloud")


def test_private_host_keys_are_packed_for_root_alone() -> None:
    keys = new_host_keys("gpu-01")
    packed = personalise.pack([*personalise.new_instance(spec(), keys), personalise.sshd_config(keys)])
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        entries = {entry.name: entry for entry in archive.getmembers()}
        config = archive.extractfile("etc/ssh/sshd_config")
        assert config is not None
        lines = config.read().decode().splitlines()

    private = [name for name in entries if "ssh_host" in name and not name.endswith(".pub")]
    assert len(private) == 2
    assert all((entries[name].mode, entries[name].uid) == (0o600, 0) for name in private)
    assert {f"HostKey /{name}" for name in private} <= set(lines)
    assert {"PasswordAuthentication no", "UsePAM no"} <= set(lines)


def test_two_machines_never_share_an_identity() -> None:
    first, second = new_host_keys("gpu-01"), new_host_keys("gpu-01")

    assert not {file.content for file in first} & {file.content for file in second}
    assert personalise.first_boot() != personalise.first_boot()


def test_further_network_devices_have_no_address() -> None:
    found = interfaces_of(spec(macs=("BC:24:11:00:00:01", "BC:24:11:00:00:02")))

    assert [(one["name"], "ip-addresses" in one) for one in found] == [
        ("lo", True),
        ("eth0", True),
        ("eth1", False),
    ]
    assert found[1]["hardware-address"] == "bc:24:11:00:00:01"


def test_the_system_is_told_in_the_agents_words() -> None:
    found = osinfo_of(
        '# a comment\nID=debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_ID="12"\n'
    )

    assert (found["id"], found["pretty-name"], found["version-id"]) == (
        "debian",
        "Debian GNU/Linux 12 (bookworm)",
        "12",
    )
    assert found["kernel-release"] == os.uname().release
