"""Where a VM goes: memory, CPUs and free devices, with what the same run has placed already."""

from dataclasses import replace
from typing import Any

import pytest

from inventory.errors import Refused
from provision.placement import Candidate, Devices, Load, gib, place
from tests.provision.cluster_kit import answers
from tests.provision.kit import Place, make
from tests.provision.test_plan import spec

GPU = {"gpu_mapping": "h100", "gpu_count": 2}


def candidate(host: str = "pve1", **facts: Any) -> Candidate:
    load = Load(online=True, memory_mib=8192, used_mib=2048, cpus=8)
    return replace(Candidate(host, load), **facts)


def load(**facts: Any) -> Load:
    return replace(candidate().load, **facts)


def test_the_host_with_the_most_memory_that_nobody_was_promised_is_taken() -> None:
    hosts = [
        candidate("pve1", promised_mib=6000),
        candidate("pve2", promised_mib=3000),
        candidate("pve3", load=load(used_mib=5000)),
    ]

    assert place(spec(), hosts).host == "pve2"


def test_of_equal_hosts_the_one_with_more_cpus_then_the_first_by_name_is_taken() -> None:
    assert place(spec(), [candidate("b"), candidate("a")]).host == "a"
    assert place(spec(), [candidate("a", promised_cpus=4), candidate("b")]).host == "b"


def test_what_this_run_placed_there_counts() -> None:
    full = candidate("pve1", waiting_mib=5120, promised_mib=5120)

    assert place(spec(), [full, candidate("pve2", load=load(used_mib=4096))]).host == "pve2"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (candidate(load=Load(online=False)), "it is offline"),
        (candidate(load=load(used_mib=7168)), "1 GiB of its 8 GiB of memory are free, and 2 GiB are wanted"),
        (candidate(load=load(cpus=1)), "it has 1 CPUs, and 2 are wanted"),
        (candidate(lacks="storage x is not active there"), "storage x is not active there"),
        (candidate(), "PCI mapping h100 is not there, or hidden from this token (it sees: none)"),
        (candidate(devices={"h100": Devices(2, "device 0000:81:00 is gone")}), "device 0000:81:00 is gone"),
        (candidate(devices={"h100": Devices(8)}, held={"h100": 7}), "1 of its 8 h100 are free, and 2 are wanted"),
    ],
)  # fmt: skip
def test_a_refusal_names_each_host_and_why(found: Candidate, reason: str) -> None:
    wants = spec(**GPU) if "h100" in reason or "81:00" in reason or "free" in reason else spec()
    other = candidate("pve9", load=Load(online=False))

    placed = place(wants, [found, other])

    assert placed.host is None
    (fault,) = placed.faults
    assert reason in fault
    assert "pve9: it is offline" in fault


def test_scarce_memory_on_the_only_host_is_a_warning_unless_all_of_it_is_pinned() -> None:
    scarce = candidate(load=load(used_mib=8000), devices={"h100": Devices(2)})

    shared, pinned = place(spec(), [scarce]), place(spec(**GPU), [scarce])

    assert (shared.host, pinned.host) == ("pve1", None)
    assert "192" not in shared.warnings[0]
    assert "0.1875 GiB of its 8 GiB of memory are free" in shared.warnings[0]
    assert place(spec(hugepages_mib=2), [scarce]).host is None


def test_a_host_that_the_token_may_not_look_into_is_not_refused_for_that() -> None:
    assert place(spec(), [candidate(load=Load(online=True))]).host == "pve1"


def test_sizes_are_told_in_gib() -> None:
    assert [gib(512), gib(1536), gib(1024**2)] == ["0.5 GiB", "1.5 GiB", "1024 GiB"]


def shared_cluster(place: Place, *hosts: str) -> None:
    """A template on shared storage, and more hosts."""
    place.pve.add_ceph_storage("ceph")
    place.pve.vm(9000).config["scsi0"] = "ceph:base-9000-disk-0,size=8G"
    place.pve.vm(9000).config["machine"] = "q35"
    for host in hosts:
        place.pve.add_node(host)


def placed(place: Place, *names: str) -> list[str]:
    road = place.road()
    steps = [road.prepare(name, profile=None).steps[0] for name in names]
    return [getattr(step, "host", "") for step in steps]


def test_a_run_spreads_its_nodes_over_the_hosts(place: Place) -> None:
    shared_cluster(place, "pve2", "pve3")
    place.write_site(profile_storage="ceph")

    assert placed(place, "gpu-01", "gpu-02", "gpu-03", "gpu-04") == ["pve1", "pve2", "pve3", "pve1"]


def test_gpus_in_use_and_in_flight_are_counted(place: Place) -> None:
    shared_cluster(place, "pve2")
    answers(place).mappings = {"h100": {"pve1": 4, "pve2": 2}}
    busy = place.pve.add_vm(
        300, "busy", node="pve1", config={"hostpci0": "mapping=h100,pcie=1", "memory": "512"}
    )
    busy.status = "running"
    place.write_site(
        profile_storage="ceph", profile_memory_mib="1024", profile_gpus="{mapping: h100, count: 2}"
    )

    road = place.road()
    hosts = [getattr(road.prepare(f"gpu-0{number}", profile=None).steps[0], "host", "") for number in (1, 2)]
    with pytest.raises(Refused) as caught:
        road.prepare("gpu-03", profile=None)

    assert sorted(hosts) == ["pve1", "pve2"]
    assert "pve1: 1 of its 4 h100 are free, and 2 are wanted" in caught.value.why
    assert "pve2: 0 of its 2 h100 are free, and 2 are wanted" in caught.value.why


def test_a_mapping_that_proxmox_calls_broken_is_refused_before_any_write(place: Place) -> None:
    place.pve.vm(9000).config["machine"] = "q35"
    answers(place).mappings = {"h100": {"pve1": 2}}
    answers(place).faults = {"h100": "Invalid configuration: pci device '0000:00:00.0' not found"}
    place.write_site(profile_node="pve1", profile_gpus="{mapping: h100, count: 2}")

    with pytest.raises(Refused, match=r"0000:00:00\.0' not found"):
        place.road().prepare("gpu-01", profile=None)


def test_a_clone_goes_to_the_chosen_host(place: Place) -> None:
    shared_cluster(place, "pve2")
    place.pve.vms[0].node = "pve1"
    place.write_site(profile_storage="ceph", profile_node="pve2")

    made = make(place.road())

    assert made.node.proxmox_node == "pve2"
    assert place.requests.body_of("POST", "/clone")["target"] == "pve2"


def test_a_host_that_is_offline_is_passed_over(place: Place) -> None:
    shared_cluster(place)
    place.pve.add_node("pve0", online=False)
    place.write_site(profile_storage="ceph")

    assert placed(place, "gpu-01") == ["pve1"]


def test_looking_at_many_nodes_asks_what_concerns_all_once(place: Place) -> None:
    shared_cluster(place, "pve2")
    place.write_site(profile_storage="ceph", profile_memory_mib="16")
    road = place.road()
    road.prepare("gpu-00", profile=None)
    before = len(place.requests)

    for number in range(1, 20):
        road.prepare(f"gpu-{number:02}", profile=None)

    assert len(place.requests) - before <= 2
