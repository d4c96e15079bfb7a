"""site.yaml: what arrives, and what is refused with its place."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from inventory.document import loads
from inventory.errors import BadFile, BadInput
from provision.parts import NetworkPart, TagPart
from provision.spec import (
    Profile,
    ProfilePart,
    Site,
    load_site,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "site.yaml"
WHOLE = """\
proxmox: {url: "https://pve.example:8006", token_file: pve.token, ca_file: ca.pem}
profiles:
  small:
    template: 9000
    storage: local-lvm
    cores: 2
    memory_mib: 2048
    disk_gib: 8
    user: muster
    ssh_keys_file: keys.pub
    network: {bridge: vmbr0, address: dhcp}
"""


def site(text: str) -> Site:
    return loads(text, Site, name="site.yaml", base=Path("/etc/site"))


def faults(text: str) -> list[str]:
    with pytest.raises(BadFile) as caught:
        site(text)
    return [str(fault) for fault in caught.value.faults]


def test_every_key_of_the_example_arrives_with_its_value() -> None:
    found = load_site(EXAMPLE)
    beside = EXAMPLE.parent

    assert found.proxmox.url == "https://pve.example:8006"
    assert found.proxmox.token_file == beside / "pve.token"
    assert found.proxmox.ca_file == beside / "pve-root-ca.pem"
    assert found.proxmox.pool == "gpu"
    assert found.ticket is not None
    assert (found.ticket.signing_key, found.ticket.valid_h) == (beside / "id_infra", 48)
    assert found.receipt_signers == beside / "allowed_signers"
    assert found.vmids is not None
    assert (found.vmids.first, found.vmids.last) == (5000, 5999)
    small = found.profile("small")
    assert (small.template, small.node, small.storage) == (9000, "auto", "local-lvm")
    assert (small.cores, small.memory_mib, small.disk_gib) == (2, 2048, 8)
    assert (small.user, small.ssh_port, small.ssh_keys_file) == ("muster", 2222, beside / "login_keys.pub")
    assert (small.network.bridge, small.network.vlan) == ("vmbr0", 10)
    assert small.network.addresses is not None
    assert (small.network.addresses.first, small.network.addresses.last) == ("10.0.0.10/24", "10.0.0.99/24")
    assert small.network.addresses.gateway == "10.0.0.1"
    large = found.profile("h100x8")
    assert found.profiles["h100x8"].extends == "small"
    assert (large.template, large.node, large.storage) == ("debian-12-gpu", "pve1", "local-lvm")
    assert (large.sockets, large.cores, large.memory_mib, large.disk_gib) == (2, 32, 524288, 200)
    assert large.ssh_port == 2222
    network = {"bridge": "vmbr0", "vlan": 10, "queues": 8, "address": "dhcp"}
    assert large.network == NetworkPart.model_validate(network)
    assert (large.machine, large.bios, large.cpu) == ("q35", "ovmf", "host,flags=+pcid")
    numa = [(node.cpus, node.memory_mib, node.host_node) for node in large.numa]
    assert numa == [("0-31", 262144, 0), ("32-63", 262144, 1)]
    assert (large.hugepages_mib, large.affinity, large.secure_boot) == (1024, "0-31;64-95", False)
    assert large.gpus is not None
    assert (large.gpus.mapping, large.gpus.count) == ("h100", 8)
    fabric, passed = large.fabrics
    assert (fabric.name, fabric.bridge, fabric.mtu, fabric.rate_gbps) == ("fabric0", "vmbr1", 9000, 400)
    assert (fabric.vlan, fabric.queues, fabric.mapping) == (50, 16, None)
    assert (passed.name, passed.bridge, passed.mapping) == ("fabric1", None, "ib-vf")
    assert fabric.addresses is not None
    assert (fabric.addresses.first, fabric.addresses.last) == ("192.168.50.1/24", "192.168.50.200/24")
    quick, fresh, kept = (found.profile(name) for name in ("quick", "fresh", "kept"))
    assert (quick.template, quick.linked) == (TagPart(tag="muster-gpu"), True)
    assert fresh.image is not None
    assert str(fresh.image.url).endswith("/debian-12-genericcloud-amd64.qcow2")
    assert str(fresh.image.sha256).startswith("5f2c1a34")
    assert (fresh.template, fresh.secure_boot) == (None, True)
    assert kept.image is not None
    assert kept.image.volume == "local:import/debian-12.qcow2"
    assert found.nodes["gpu-07"].address == "10.0.0.7/24"
    assert found.nodes["gpu-07"].fabrics == {"fabric0": "192.168.50.7/24"}


def keys_of(model: type[BaseModel]) -> set[str]:
    """The keys of a model's file, at every depth."""
    keys = set()
    for name, field in model.model_fields.items():
        keys.add(field.alias or name)
        for part in parts_of(field.annotation):
            keys |= keys_of(part)
    return keys


def parts_of(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for member in getattr(annotation, "__args__", ()):
        yield from parts_of(member)


def test_the_example_holds_every_key_and_no_comment_names_one() -> None:
    text = EXAMPLE.read_text() + EXAMPLE.with_name("site-pinned.yaml").read_text()
    keys = keys_of(Site)
    comments = " ".join(line.partition("#")[2] for line in text.splitlines() if "#" in line)

    assert {"extends", "from", "to", "gateway", "rate_gbps", "token_file", "count", "valid_h"} <= keys
    assert [key for key in sorted(keys) if not re.search(rf"\b{key}:", text)] == []
    assert keys.isdisjoint(re.findall(r"[a-z_]+", comments.lower()))


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("proxmox:", "proxmxo:", "proxmxo: unknown key (did you mean proxmox?)"),
        ("token_file:", "token_fiel:", "proxmox.token_fiel: unknown key (did you mean token_file?)"),
        ("valid_h:", "valid_hours:", "ticket.valid_hours: unknown key (did you mean valid_h?)"),
        ("{from: 5000", "{form: 5000", "vmids.form: unknown key"),
        (
            "memory_mib: 2048",
            "memroy_mib: 2048",
            "profiles.small.memroy_mib: unknown key (did you mean memory_mib?)",
        ),
        ("vlan: 10\n", "vlna: 10\n", "profiles.small.network.vlna: unknown key (did you mean vlan?)"),
        ("gateway:", "gatway:", "profiles.small.network.address.gatway: unknown key"),
        ("{mapping:", "{maping:", "profiles.h100x8.gpus.maping: unknown key (did you mean mapping?)"),
        (
            "rate_gbps:",
            "rate_gbit:",
            "profiles.h100x8.fabrics[0].rate_gbit: unknown key (did you mean rate_gbps?)",
        ),
        ("{from: 192", "{frmo: 192", "profiles.h100x8.fabrics[0].addresses.frmo: unknown key"),
        ("    address: 10.0.0.7/24", "    adress: 10.0.0.7/24", "nodes.gpu-07.adress: unknown key"),
    ],
)
def test_a_misspelt_key_is_refused_at_every_depth_with_its_line(right: str, wrong: str, told: str) -> None:
    text = EXAMPLE.read_text()
    broken = text.replace(right, wrong, 1)
    line = next(
        number
        for number, (old, new) in enumerate(zip(text.splitlines(), broken.splitlines(), strict=True), start=1)
        if old != new
    )

    found = faults(broken)

    assert any(fault.startswith(f"site.yaml:{line}:") and told in fault for fault in found), found


def test_paths_are_relative_to_the_file() -> None:
    assert site(WHOLE).proxmox.token_file == Path("/etc/site/pve.token")


def test_a_profile_has_the_same_keys_as_the_part_it_is_made_of() -> None:
    assert set(Profile.model_fields) == set(ProfilePart.model_fields) - {"extends"}


def test_an_unknown_profile_is_refused_where_it_is_named() -> None:
    assert faults(WHOLE + "  big: {extends: smal}\n") == [
        "site.yaml:12:9: profiles.big.extends: there is no profile 'smal' (there are: small, big)"
    ]


def test_profiles_that_extend_each_other_are_refused() -> None:
    found = faults(WHOLE + "  a: {extends: b}\n  b: {extends: a}\n")

    assert found[0] == "site.yaml:12:7: profiles.a.extends: goes round in a circle: b -> a -> b"


def test_what_no_profile_of_a_chain_says_is_missing() -> None:
    text = WHOLE.replace("    cores: 2\n", "").replace("    user: muster\n", "")

    assert faults(text + "  big: {extends: small, cores: 4}\n") == [
        "site.yaml:3:3: profiles.small: cores, user: required, here or in a profile that this one extends",
        "site.yaml:10:3: profiles.big: user: required, here or in a profile that this one extends",
    ]


def test_a_profile_can_take_away_what_it_extends() -> None:
    text = WHOLE + "    gpus: {mapping: h100, count: 1}\n  plain: {extends: small, gpus: null}\n"

    assert site(text).profile("small").gpus is not None
    assert site(text).profile("plain").gpus is None


def test_of_a_template_and_an_image_the_nearer_one_counts() -> None:
    volume = "image: {volume: 'local:import/x.qcow2'}"
    text = WHOLE + f"  built: {{extends: small, {volume}}}\n  cloned: {{extends: built, template: gold}}\n"

    assert (site(text).profile("built").template, site(text).profile("cloned").image) == (None, None)
    assert "either from a template or from an image" in faults(WHOLE + f"    {volume}\n")[0]


@pytest.mark.parametrize(
    ("image", "told"),
    [
        ("{}", "either a url with its sha256, or a volume"),
        ("{url: 'https://h/x.qcow2'}", "an image that nobody checked is not started"),
        ("{url: 'https://h/x.qcow2', sha256: 12ab}", "is not a SHA-256"),
        ("{url: 'https://h/x.iso', sha256: 12ab}", "does not end in .qcow2, .raw, .img or .vmdk"),
        ("{url: 'https://u:p@h/x.raw', sha256: 12ab}", "without a password in it"),
        ("{url: 'file:///x.raw', sha256: 12ab}", "is not of the form https://"),
        ("{volume: /dev/sda}", "is not a volume of a storage"),
    ],
)
def test_an_image_that_cannot_be_meant_is_refused(image: str, told: str) -> None:
    text = WHOLE.replace("template: 9000", f"image: {image}")

    assert any(told in fault for fault in faults(text)), faults(text)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("fabrics: [{name: f}]", "needs either a bridge or a mapping"),
        ("fabrics: [{name: f, bridge: b, mapping: m}]", "needs either a bridge or a mapping"),
        ("fabrics: [{name: f, mapping: m, vlan: 4}]", "a passed function has the host's"),
        ("numa: [{cpus: all, memory_mib: 4}]", "is not a set of CPUs"),
        ("numa: [{cpus: 0-3, memory_mib: 4, host_node: 10}]", "less than or equal to 9"),
        ("hugepages_mib: 4", "should be 2 or 1024"),
        ("bios: uefi", "should be 'seabios' or 'ovmf'"),
        ("machine: q35;args", "is not a machine type"),
        ("cpu: 'host,hidden=1 -args'", "is not a CPU type"),
        ("network: {bridge: b, queues: 65, address: dhcp}", "less than or equal to 64"),
    ],
)
def test_hardware_that_cannot_be_meant_is_refused(line: str, told: str) -> None:
    text = WHOLE.replace("    network: {bridge: vmbr0, address: dhcp}\n", "") if "network" in line else WHOLE

    assert any(told in fault for fault in faults(f"{text}    {line}\n")), faults(f"{text}    {line}\n")


def test_all_faults_are_told_at_once() -> None:
    text = (
        WHOLE.replace("https:", "http:")
        .replace("cores: 2", 'cores: "2"')
        .replace("user: muster", "user: root;rm")
    )

    found = faults(text)

    assert [fault.split(":")[1] for fault in found] == ["1", "6", "9"]


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("https://pve.example:8006", "https://pve.example:8006/api2", "holds more than https://host:port"),
        ("https://pve.example:8006", "https://u:p@pve.example", "holds more than https://host:port"),
        ("https://pve.example:8006", "https://pve.example:x", "has no valid port"),
        ("template: 9000", "template: 7", "7 is not between 100"),
        ("template: 9000", "template: true", "by its VM id, by its name, or"),
        ("template: 9000", 'template: " "', "name is empty"),
        ("cores: 2", "cores: 0", "greater than 0"),
        ("bridge: vmbr0", "bridge: 'vmbr0,tag=1'", "is not a bridge's name"),
        ("address: dhcp", "address: static", "should be dhcp, dhcp6 or auto, or a mapping with"),
        ("address: dhcp", "address: {from: 10.0.0.9/24, to: 10.0.0.8/24}", "is above to"),
        ("address: dhcp", "address: {from: 10.0.0.9/24, to: 10.0.1.8/24}", "not in one network"),
        ("address: dhcp", "address: {from: 10.0.0.9, to: 10.0.0.8/24}", "lacks the prefix length"),
        (
            "address: dhcp",
            "address: {from: 10.0.0.0/24, to: 10.0.0.8/24}",
            "is the network or the broadcast address",
        ),
        (
            "address: dhcp",
            "address: {from: 10.0.0.2/24, to: 10.0.0.8/24, gateway: 10.9.0.1}",
            "is outside of",
        ),
        ("address: dhcp", "address: {from: x/24, to: 10.0.0.8/24, gateway: y}", "'y' is not an IP address"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(right: str, wrong: str, told: str) -> None:
    assert any(told in fault for fault in faults(WHOLE.replace(right, wrong)))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("vmids: {from: 200, to: 100}\n", "vmids: from 200 is above to 100"),
        ("nodes: {GPU_1: {}}\n", "'GPU_1' cannot name a node"),
        ("nodes: {a: {fabrics: {fabric9: 10.0.0.1/24}}}\n", "no profile has a fabric called fabric9"),
        ("nodes: {a: {address: 10.0.0.7/24}, b: {address: 10.0.0.7/24}}\n", "a and b both have 10.0.0.7"),
        ("    fabrics: [{name: f, bridge: b}, {name: f, bridge: b}]\n", "two fabrics are called f"),
    ],
)
def test_a_rule_that_does_not_hold_is_told(more: str, told: str) -> None:
    assert any(told in fault for fault in faults(WHOLE + more))


def test_a_lone_profile_needs_no_flag_and_of_two_one_must_be_chosen() -> None:
    one, two = site(WHOLE), site(WHOLE + "  big: {extends: small}\n")

    assert one.profile_for(asked=None, recorded=None) == "small"
    assert two.profile_for(asked=None, recorded="big") == "big"
    with pytest.raises(BadInput, match="not clear which profile"):
        two.profile_for(asked=None, recorded=None)
    with pytest.raises(BadInput, match="no profile 'huge'"):
        two.profile("huge")
