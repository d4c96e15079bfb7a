"""What the lab's API says of a VM's config, as a pure function of it."""

from urllib.parse import quote

import pytest

from lab import agent, cloudinit, hardware

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJlOvUDky8NTeASipca1DZOQg2oTHBSYmhgw0NNNkuGF holder@lab"
CONFIG: dict[str, object] = {
    "name": "gpu-01",
    "ciuser": "muster",
    "ciupgrade": 0,
    "sshkeys": quote(f"{KEY}\n{KEY}", safe=""),
    "net1": "virtio=02:00:00:00:00:02,bridge=vmbr1",
    "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
    "ipconfig0": "ip=127.20.1.10/24,gw=127.20.1.1",
    "nameserver": "127.20.1.1",
    "smbios1": "uuid=AB8F5C0A-0000-4000-8000-000000000000",
}


def test_the_user_data_is_that_of_a_real_host() -> None:
    assert cloudinit.seed(CONFIG, name="gpu-01.example").user == (
        "#cloud-config\nhostname: gpu-01\nmanage_etc_hosts: true\nfqdn: gpu-01.example\nuser: muster\n"
        f"ssh_authorized_keys:\n  - {KEY}\n  - {KEY}\nchpasswd:\n  expire: False\nusers:\n  - default\n"
    )


def test_an_upgrade_is_asked_for_unless_switched_off() -> None:
    assert "package_upgrade: true" in cloudinit.seed({**CONFIG, "ciupgrade": 1}, name="a").user
    assert "package_upgrade" not in cloudinit.seed(CONFIG, name="a").user


def test_the_network_data_names_each_nic_in_order() -> None:
    lines = cloudinit.seed(CONFIG, name="gpu-01").network.splitlines()

    assert [line.split()[-1] for line in lines if "mac_address" in line] == [
        "'bc:24:11:00:00:01'",
        "'02:00:00:00:00:02'",
    ]
    assert "        netmask: '255.255.255.0'" in lines
    assert "      - '127.20.1.1'" in lines


def test_the_instance_id_changes_with_the_data_and_only_then() -> None:
    first, same = cloudinit.seed(CONFIG, name="a"), cloudinit.seed({**CONFIG, "cores": 2}, name="a")
    other = cloudinit.seed({**CONFIG, "ipconfig0": "ip=dhcp"}, name="a")

    assert first.instance_id == same.instance_id
    assert first.instance_id != other.instance_id


def test_a_key_that_left_the_config_is_told_as_deleted() -> None:
    assert cloudinit.differences({"ciuser": "new", "cores": 2}, {"ciuser": "old", "nameserver": "ns"}) == [
        {"key": "ciuser", "value": "old", "pending": "new"},
        {"key": "nameserver", "value": "ns", "delete": 1},
    ]


@pytest.mark.parametrize("text", ["", "hello", f"{KEY}\nhello"])
def test_what_is_no_public_key_is_seen(text: str) -> None:
    assert not cloudinit.are_public_keys(quote(text, safe=""))
    assert cloudinit.are_public_keys(quote(KEY, safe=""))


def test_a_config_tells_its_uuid_and_its_address() -> None:
    assert cloudinit.machine_uuid(CONFIG) == "ab8f5c0a-0000-4000-8000-000000000000"
    assert cloudinit.static_address(CONFIG) == "127.20.1.10/24"
    assert cloudinit.static_address({}) is None


@pytest.mark.parametrize(
    ("size", "drive"),
    [
        ("8G", "s:d,discard=on,size=8G"),
        ("+512M", "s:d,discard=on,size=4608M"),
        ("4G", None),
        ("1.5T", "1536G"),
    ],
)
def test_a_disk_takes_an_absolute_or_a_relative_size(size: str, drive: str | None) -> None:
    change = hardware.resized("scsi0", "s:d,size=4G,discard=on", size=size)

    assert (change and change[0]) == (drive and (drive if ":" in drive else f"s:d,discard=on,size={drive}"))


@pytest.mark.parametrize(
    ("option", "meaning"),
    [
        (None, None),
        ("1", True),
        ("enabled=1,fstrim_cloned_disks=1", True),
        ("0", False),
        ("enabled=0", False),
    ],
)
def test_the_agent_option_is_read_in_each_spelling(option: str | None, meaning: object) -> None:
    assert agent.enabled(option) is meaning


def test_words_are_no_booleans() -> None:
    declared = {"onboot": {"type": "boolean"}, "name": {"type": "string"}}

    assert hardware.faults({}, declared, {"onboot": "yes", "name": "yes"}) == {
        "onboot": "type check ('boolean') failed - got 'yes'"
    }
    assert hardware.faults({}, declared, {"onboot": True}) == {}
    assert hardware.faults({}, declared, {"onboot": "1"}) == {}
