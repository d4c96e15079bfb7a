"""What is on a node's cloud-init disc: read back by isoinfo, and by what reads mail; as Proxmox would have said it."""

import hashlib
import json
import subprocess
from dataclasses import replace

import pytest

from inventory.errors import MusterError
from lab import cloudinit
from provision import seed
from provision.user_data import UserData
from tests.provision.cluster_kit import answers
from tests.provision.kit import Place, failure, make
from tests.provision.seed_kit import USER_DATA, on_the_disc, parts, read, with_user_data
from tests.require import need_command


def test_another_program_reads_on_the_disc_what_proxmox_would_have_said(seeded: Place) -> None:
    (seeded.folder / "user-data").write_text(USER_DATA + "users: [default, {name: ops}]\n")
    seeded.write_site(
        profile_user_data_file="user-data",
        profile_seed_storage="local",
        profile_network="{bridge: vmbr0, address: {from: 10.0.0.10/24, to: 10.0.0.20/24, gateway: 10.0.0.1}}",
        profile_fabrics='[{name: f0, bridge: vmbr1, addresses: {from: "fd00::1/64", to: "fd00::9/64"}}]',
    )

    answers(seeded).dns = {**answers(seeded).dns, "cipassword": "$5$of$template"}

    make(seeded.road())

    fields = seeded.pve.uploaded
    assert fields["content"] == "iso"
    assert (fields["checksum-algorithm"], fields["checksum"]) == (
        "sha256",
        hashlib.sha256(fields["data"]).hexdigest(),
    )
    need_command("isoinfo")
    (seeded.folder / "label.iso").write_bytes(fields["data"])
    told = subprocess.run(
        ["isoinfo", "-d", "-i", str(seeded.folder / "label.iso")], check=True, capture_output=True, text=True
    ).stdout
    assert "Volume id: cidata" in told
    assert "Joliet with UCS level 3 found" in told
    vm = seeded.pve.vm(100)
    meta = json.loads(on_the_disc(fields["data"], "meta-data", seeded.folder))
    assert meta == {"instance-id": proxmox_would_say(seeded)}
    network = json.loads(on_the_disc(fields["data"], "network-config", seeded.folder))
    dns = {"addresses": ["10.0.0.53"], "search": ["lab.example"]}
    macs = [vm.config[f"net{index}"].split(",")[0].split("=")[1].lower() for index in (0, 1)]
    assert network == {
        "version": 2,
        "ethernets": {
            "eth0": {
                "match": {"macaddress": macs[0]}, "set-name": "eth0", "addresses": ["10.0.0.10/24"],
                "routes": [{"to": "0.0.0.0/0", "via": "10.0.0.1"}], "nameservers": dns,
            },
            "eth1": {
                "match": {"macaddress": macs[1]}, "set-name": "eth1", "addresses": ["fd00::1/64"],
                "nameservers": dns,
            },
        },
    }  # fmt: skip
    theirs, ours = parts(on_the_disc(fields["data"], "user-data", seeded.folder))
    assert (theirs.get_content_type(), ours.get_content_type()) == ("text/cloud-config", "text/cloud-config")
    assert read(theirs).startswith(USER_DATA)
    header, _, rest = read(ours).partition("\n")
    assert header == "#cloud-config"
    own = json.loads(rest)
    keys = [line for line in (seeded.folder / "login_keys.pub").read_text().splitlines() if line[0] != "#"]
    assert own == {
        "hostname": "gpu-01", "fqdn": "gpu-01.lab.example", "manage_etc_hosts": True, "user": "muster",
        "password": "$5$of$template", "ssh_authorized_keys": keys, "chpasswd": {"expire": False},
    }  # fmt: skip


def proxmox_would_say(place: Place) -> str:
    vm = place.pve.vm(100)
    dns = answers(place).dns
    return cloudinit.seed({**vm.config, **dns}, name=vm.config["name"]).instance_id


def test_addresses_are_said_in_version_2_as_proxmox_means_them() -> None:
    config = {
        "net0": "virtio=02:00:00:00:00:01,bridge=vmbr0", "ipconfig0": "ip=dhcp,ip6=auto",
        "net1": "virtio=02:00:00:00:00:02,bridge=vmbr1", "ipconfig1": "ip6=dhcp",
        "net2": "virtio=02:00:00:00:00:03,bridge=vmbr1",
        "net3": "virtio=02:00:00:00:00:04,bridge=vmbr1", "ipconfig3": "ip6=fd00::5/64,gw6=fd00::1",
    }  # fmt: skip

    found = seed.network_config(config, seed.Dns())["ethernets"]

    assert {
        name: {k: v for k, v in nic.items() if k not in {"match", "set-name"}} for name, nic in found.items()
    } == {
        "eth0": {"dhcp4": True, "accept-ra": True},
        "eth1": {"dhcp6": True},
        "eth3": {"addresses": ["fd00::5/64"], "routes": [{"to": "::/0", "via": "fd00::1"}]},
    }


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"meta": '{"uuid": "x"}'}, "meta-data"),
        ({"meta": "a: ["}, "meta-data"),
        ({"network": "version: 2\nethernets: {}\n"}, "network-config"),
        ({"user": "#!/bin/sh\n"}, "user-data"),
        ({"user": "#cloud-config\nuser: other\n"}, "user-data"),
    ],
)
def test_files_of_proxmox_that_are_not_understood_make_no_disc(changed: dict[str, str], told: str) -> None:
    good = seed.ProxmoxFiles("#cloud-config\nuser: muster\n", "instance-id: i\n", "version: 1\nconfig: []\n")
    config, mine = {"ciuser": "muster"}, UserData("ud", "#!/bin/sh\n")
    assert seed.disc(config, mine, good)

    with pytest.raises(MusterError) as caught:
        seed.disc(config, mine, replace(good, **changed))

    assert f"the {told} that Proxmox writes" in caught.value.what


@pytest.mark.parametrize(
    "key", ["cicustom: user=local:snippets/x.yml", "citype: configdrive2", "ostype: win11"]
)
def test_a_template_that_takes_its_data_otherwise_is_refused(seeded: Place, key: str) -> None:
    name, _, value = key.partition(": ")
    seeded.pve.vm(9000).config[name] = value

    assert "user_data_file" in failure(seeded).why
    assert seeded.requests.writes == []


def test_a_script_is_carried_as_a_script_beside_our_part(seeded: Place) -> None:
    with_user_data(seeded, "#!/bin/sh\necho é > /run/said\n")

    make(seeded.road())

    theirs, ours = parts(on_the_disc(seeded.pve.uploaded["data"], "user-data", seeded.folder))
    assert (theirs.get_content_type(), ours.get_content_type()) == ("text/x-shellscript", "text/cloud-config")
    assert read(theirs) == "#!/bin/sh\necho é > /run/said\n"
    assert json.loads(read(ours).partition("\n")[2])["users"] == ["default"]
