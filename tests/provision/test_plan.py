"""From wanted and found to steps; a plan that was carried out leaves nothing to plan."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.errors import Refused
from provision.config import is_ours, marker, wanted_config
from provision.plan import (
    Clone,
    Configure,
    MachineFound,
    ReadFacts,
    Resize,
    Start,
    Step,
    StorageFound,
    TemplateFound,
    drift,
    plan,
    start_timeout_s,
)
from provision.rules import check_rules
from provision.wanted import NodeSpec, WantedFabric, WantedNuma

UUID = "849c16bd-d2e0-4353-8864-40786249e732"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMrGV3NWpWGlAqnMX2BF+a1+EAiky2yw4nE3PP4qlAZI test@rig"
LOCAL = {"local-lvm": StorageFound(active=True, images=True, shared=False)}
SHARED = {"local-lvm": StorageFound(active=True, images=True, shared=True)}


def spec(**facts: Any) -> NodeSpec:
    wanted = NodeSpec(
        name="gpu-01", profile="small", template=9000, host=None, storage="local-lvm", pool=None, cores=2,
        memory_mib=2048, disk_gib=8, user="muster", ssh_port=22, ssh_keys=(KEY,), bridge="vmbr0",
    )  # fmt: skip
    return replace(wanted, **facts)


def template(**config: Any) -> TemplateFound:
    usual = {
        "scsi0": "local-lvm:base-9000-disk-0,size=8G",
        "ide2": "local-lvm:vm-9000-cloudinit,media=cdrom",
        "net0": "virtio=BC:24:11:4D:68:E9,bridge=vmbr0",
        "boot": "order=scsi0",
        "memory": "512",
        "cores": 1,
        "digest": "e6079377d1ee6c6fe5bebc15014bf989b9924cf2",
    }
    found = {key: value for key, value in (usual | config).items() if value is not None}
    return TemplateFound(9000, "debian-12", "pve1", found)


def machine(
    config: dict[str, Any] | None = None, *, running: bool = True, wants: NodeSpec | None = None
) -> MachineFound:
    """The VM as it is once everything was set, in the types that Proxmox answers with."""
    start = dict(template().config) | (config or {})
    for key, value in wanted_config(wants or spec(), start, UUID).items():
        start[key] = int(value) if key in {"cores", "ciupgrade", "balloon"} and value is not None else value
    return MachineFound(100, "pve1", start, running)


def steps(
    found: MachineFound | None = None, *, known: bool = False, of: TemplateFound | None = None, **facts: Any
) -> list[Any]:
    return list(plan(spec(**facts), template=of or template(), machine=found, uuid=UUID, known=known))


def changed(found: MachineFound, key: str, value: Any) -> MachineFound:
    return replace(found, config={**found.config, key: value})


def test_a_node_without_a_vm_gets_one() -> None:
    assert [type(step) for step in steps()] == [Clone, Configure, Start, ReadFacts]
    assert [type(step) for step in steps(disk_gib=20)] == [Clone, Configure, Resize, Start, ReadFacts]


def test_the_clone_stands_where_its_template_stands_unless_the_profile_names_a_host() -> None:
    assert steps()[0].host == "pve1"
    assert steps(host="pve2")[0].host == "pve2"


def test_a_vm_that_is_as_wanted_needs_no_step() -> None:
    assert steps(machine(), known=True) == []


def test_the_changes_carry_the_digest_they_were_made_from() -> None:
    (change,) = steps(changed(machine(), "cores", 7), known=True)

    assert [(each.key, each.before, each.after) for each in change.changes] == [("cores", "7", "2")]
    assert change.digest == template().config["digest"]


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("memory", "2048"),
        pytest.param("memory", 2048, id="memory as a number"),
        ("memory", "current=2048"),
        ("cores", "2"),
        ("agent", "1"),
        ("agent", "enabled=1"),
        ("tags", "muster"),
        (
            "sshkeys",
            KEY.replace(" ", "%20").replace("+", "%2B").replace("@", "%40").replace("/", "%2F") + "%0A",
        ),
        ("ciupgrade", "0"),
        pytest.param("ciupgrade", 0, id="ciupgrade as a number"),
        ("smbios1", f"uuid={UUID.upper()}"),
        ("net0", "bridge=vmbr0,virtio=bc:24:11:4d:68:e9"),
        ("net0", "model=virtio,macaddr=BC:24:11:4D:68:E9,bridge=vmbr0"),
        ("description", f"{marker('gpu-01', UUID)}\n"),
        ("description", f"our own words\n{marker('gpu-01', UUID)}\nand more"),
        ("ipconfig0", "ip=dhcp"),
    ],
)
def test_another_way_of_writing_the_same_is_no_change(key: str, written: Any) -> None:
    assert steps(changed(machine(), key, written), known=True) == []


def test_what_is_not_ours_stays() -> None:
    config = wanted_config(
        spec(vlan=7),
        {
            "net0": "virtio=BC:24:11:4D:68:E9,bridge=vmbr9,firewall=1,queues=8,mtu=1400",
            "smbios1": "uuid=11111111-2222-3333-4444-555555555555,serial=QUJD,base64=1",
            "agent": "1,fstrim_cloned_disks=1",
            "tags": "team;golden",
            "description": "made by hand",
        },
        UUID,
    )

    assert config["net0"] == "virtio=BC:24:11:4D:68:E9,bridge=vmbr0,firewall=1,queues=8,mtu=1400,tag=7"
    assert config["smbios1"] == f"uuid={UUID},serial=QUJD,base64=1"
    assert config["agent"] == "enabled=1,fstrim_cloned_disks=1"
    assert config["tags"] == "golden;muster;team"
    assert config["description"] == f"{marker('gpu-01', UUID)}\nmade by hand"
    assert "balloon" not in config


def test_a_template_without_nic_gets_one_with_a_mac_of_its_own() -> None:
    first, again = (wanted_config(spec(), {}, UUID)["net0"] for _ in range(2))

    assert first == again
    assert str(first).startswith("virtio=02:")
    assert str(first).endswith(",bridge=vmbr0")


def test_gpus_fill_free_slots_and_surplus_ones_go() -> None:
    theirs = {"hostpci0": "mapping=nic,pcie=1", "hostpci2": "mapping=h100"}

    two = wanted_config(spec(gpu_mapping="h100", gpu_count=2), theirs, UUID)
    none = wanted_config(
        spec(gpu_mapping="h100", gpu_count=1), theirs | {"hostpci3": "mapping=h100,pcie=1"}, UUID
    )

    assert {key: value for key, value in two.items() if key.startswith("hostpci")} == {
        "hostpci2": "mapping=h100,pcie=1",
        "hostpci1": "mapping=h100,pcie=1",
    }
    assert two["balloon"] == "0"
    assert none["hostpci3"] is None


def test_an_ipv6_address_is_written_with_its_own_keys() -> None:
    config = wanted_config(spec(address="2001:db8::7/64", gateway="2001:db8::1"), {}, UUID)

    assert config["ipconfig0"] == "ip6=2001:db8::7/64,gw6=2001:db8::1"


def test_a_stopped_vm_is_started_and_a_smaller_disk_grown() -> None:
    found = changed(machine(running=False), "scsi0", "local-lvm:vm-100-disk-0,size=3584M")

    assert [type(step) for step in steps(found, known=True)] == [Resize, Start]


def test_an_equal_or_larger_disk_is_left_alone() -> None:
    for size in ("8G", "8192M", "1T"):
        assert steps(changed(machine(), "scsi0", f"local-lvm:vm-100-disk-0,size={size}"), known=True) == []


def test_what_would_make_new_host_keys_is_drift_and_no_step_once_they_are_known() -> None:
    found = changed(changed(machine(), "ciuser", "other"), "ipconfig0", "ip=10.0.0.9/24")

    assert steps(found, known=True) == []
    assert [change.key for change in drift(spec(), found, UUID)] == ["ciuser", "ipconfig0"]
    assert [type(step) for step in steps(found, known=False)] == [Configure, ReadFacts]


def test_ownership_is_the_uuid_and_the_marker_only_before_it() -> None:
    line = marker("gpu-01", UUID)
    clone = {"description": line, "smbios1": "uuid=11111111-2222-3333-4444-555555555555"}

    assert is_ours({"smbios1": f"uuid={UUID.upper()}"}, "gpu-01", UUID, configured=True)
    assert is_ours(clone, "gpu-01", UUID, configured=False)
    assert not is_ours(clone, "gpu-01", UUID, configured=True)
    assert not is_ours({"description": marker("gpu-02", UUID)}, "gpu-01", UUID, configured=False)
    assert not is_ours({"description": f"x{line}"}, "gpu-01", UUID, configured=False)
    assert not is_ours({}, "gpu-01", UUID, configured=False)


@pytest.mark.parametrize(
    ("wants", "found", "told"),
    [
        ({"disk_gib": 3}, {"scsi0": "x:y,size=3584M"}, "asks for 3 GiB, and scsi0 of template 9000 'debian-12'"),
        ({}, {"scsi0": None}, "has no disk to boot from"),
        ({"gpu_mapping": "h100", "gpu_count": 1}, {"machine": "pc-i440fx-9.2"}, "has pc-i440fx-9.2"),
        ({"storage": "ceph"}, {}, "storage ceph is not on pve1"),
        ({"host": "pve2"}, {}, "a copy from host to host needs shared storage"),
    ],
)  # fmt: skip
def test_a_rule_that_does_not_hold_is_refused(
    wants: dict[str, Any], found: dict[str, Any], told: str
) -> None:
    with pytest.raises(Refused) as caught:
        check_rules(spec(**wants), template(**found), LOCAL)
    assert told in caught.value.why


def test_all_rules_are_told_at_once() -> None:
    with pytest.raises(Refused) as caught:
        check_rules(spec(disk_gib=1, gpu_mapping="h100", gpu_count=1, storage="x"), template(), LOCAL)
    assert len(caught.value.why.splitlines()) == 3


def test_rules_that_hold_say_nothing_and_a_missing_cloud_init_drive_is_a_warning() -> None:
    assert check_rules(spec(), template(), LOCAL) == []
    assert check_rules(spec(host="pve2"), template(), SHARED) == []
    assert (
        check_rules(spec(gpu_mapping="h100", gpu_count=8), template(machine="pc-q35-9.2+pve1"), LOCAL) == []
    )
    assert "no cloud-init drive" in check_rules(spec(), template(ide2=None), LOCAL)[0]


def test_the_start_may_take_as_long_as_proxmox_gives_it() -> None:
    fabrics = tuple(WantedFabric(f"f{index}", "vmbr1") for index in range(8))
    large = spec(memory_mib=1024 * 1024, gpu_mapping="h100", gpu_count=8, fabrics=fabrics)

    assert start_timeout_s(large, {"net0": ""}) == 4141
    assert start_timeout_s(spec(), {"net0": ""}) == 35
    assert start_timeout_s(spec(), {"net0": "", "hugepages": "1024"}) == 155
    assert start_timeout_s(spec(memory_mib=48 * 1024), {"net0": "", "net1": ""}) == 58


WORD = st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True)
OCTET = st.integers(2, 250)
SPECS = st.builds(
    spec,
    cores=st.integers(1, 512),
    memory_mib=st.integers(16, 4 * 1024**2),
    user=WORD,
    ssh_keys=st.lists(st.sampled_from([KEY, KEY + "+/x", "ssh-rsa AAAA a%b"]), min_size=1, unique=True).map(tuple),
    bridge=WORD,
    vlan=st.none() | st.integers(1, 4094),
    address=st.none() | OCTET.map(lambda octet: f"10.0.0.{octet}/24"),
    gateway=st.none() | st.just("10.0.0.1"),
    gpu_mapping=st.just("h100"),
    gpu_count=st.integers(0, 12),
    sockets=st.none() | st.integers(1, 4),
    queues=st.none() | st.integers(1, 64),
    machine=st.sampled_from([None, "q35", "pc-q35-9.2"]),
    bios=st.sampled_from([None, "seabios", "ovmf"]),
    cpu=st.sampled_from([None, "host", "host,flags=+pcid;-aes"]),
    hugepages_mib=st.sampled_from([None, 2, 1024]),
    affinity=st.sampled_from([None, "0-31;64-95"]),
    numa=st.lists(
        st.builds(WantedNuma, st.just("0-3;8-11"), st.integers(1, 4096), st.none() | st.just(1)),
        max_size=3,
    ).map(tuple),
    fabrics=st.lists(
        st.builds(
            WantedFabric,
            name=WORD,
            bridge=st.none() | WORD,
            mapping=st.just("vf"),
            vlan=st.none() | st.integers(1, 4094),
            queues=st.none() | st.integers(1, 64),
            mtu=st.none() | st.integers(576, 65520),
            address=st.none() | st.just("192.168.9.9/24"),
        ),
        max_size=4,
    ).map(tuple),
)  # fmt: skip
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "memory": st.sampled_from([512, "512", "current=512"]),
        "cores": st.integers(1, 8),
        "agent": st.sampled_from(["1", "0", "enabled=0,type=virtio", "1,fstrim_cloned_disks=1"]),
        "tags": st.sampled_from(["", "b;a", "Muster", "a,b c"]),
        "smbios1": st.sampled_from(["uuid=11111111-2222-3333-4444-555555555555", "serial=x", f"uuid={UUID.upper()}"]),
        "net0": st.sampled_from(["virtio=BC:24:11:4D:68:E9,bridge=vmbr0", "e1000,bridge=x", "model=virtio,tag=3"]),
        "net1": st.sampled_from(["virtio=BC:24:11:4D:68:EA,bridge=vmbr1,mtu=1500,tag=9"]),
        "hostpci0": st.sampled_from(["mapping=h100", "mapping=nic,pcie=1", "0000:81:00"]),
        "hostpci3": st.sampled_from(["mapping=h100,pcie=1"]),
        "sshkeys": st.sampled_from(["ssh-rsa%20AAAA%20me", ""]),
        "description": st.sampled_from(["", "words", "muster: gpu-01 of-old\nwords"]),
        "numa": st.sampled_from([0, 1, "1"]),
        "numa0": st.sampled_from(["cpus=0-3,memory=1024", "hostnodes=1,policy=bind,memory=1,cpus=0-3;8-11"]),
        "numa4": st.sampled_from(["cpus=0,memory=1"]),
        "hugepages": st.sampled_from([2, "1024", "any"]),
        "cpu": st.sampled_from(["cputype=host", "x86-64-v3"]),
        "machine": st.sampled_from(["q35", "type=pc-q35-9.2,viommu=virtio", "pc"]),
        "sockets": st.integers(1, 4),
        "scsi0": st.sampled_from(["local:x,size=4G", "local:x,size=8G", "local:x,size=9T"]),
    },
)  # fmt: skip


@given(SPECS, CONFIGS)
def test_a_second_run_changes_nothing(wanted: NodeSpec, config: dict[str, Any]) -> None:
    def planned(*, running: bool, known: bool) -> tuple[Step, ...]:
        found = MachineFound(100, "pve1", config, running)
        return plan(wanted, template=None, machine=found, uuid=UUID, known=known)

    for step in planned(running=False, known=False):
        match step:
            case Configure():
                for change in step.changes:
                    config.pop(change.key, None)
                    if change.after is not None:
                        config[change.key] = change.after
            case Resize():
                config[step.disk] = f"local:x,size={step.size_gib}G"

    assert planned(running=True, known=True) == ()
