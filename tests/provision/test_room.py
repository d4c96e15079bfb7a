"""Storage that is too small, hosts that do not report, locks that others hold: each is told as what it is."""

import re
from dataclasses import replace
from typing import Any

import pytest

from inventory.errors import OtherSide, Refused
from inventory.model import State
from provision.config import wanted_config
from provision.plan import StorageFound
from provision.proxmox import Proxmox
from provision.room import room
from provision.tasks import Patience, past_locks
from provision.user_data import UserData
from provision.wanted import NodeSpec, WantedSeed
from tests.provision.kit import START, Place, failure, make, state
from tests.provision.test_plan import spec

GIB = 1024


def store(kind: str = "lvm", *, free_gib: float = 10, shared: bool = False) -> StorageFound:
    return StorageFound(
        active=True, images=True, shared=shared, discs=True, kind=kind, free_mib=int(free_gib * GIB)
    )


def other(name: str, **wants: Any) -> NodeSpec:
    return replace(spec(**wants), name=name)


def test_a_disk_larger_than_a_thick_storage_is_refused_and_on_a_thin_one_it_is_a_warning() -> None:
    wanted = spec(disk_gib=12)
    thick = room(wanted, {"local-lvm": store("lvm")}, host="pve1")
    thin = [
        room(wanted, {"local-lvm": store(kind)}, host="pve1") for kind in ("lvmthin", "dir", "rbd", "zfspool")
    ]

    told = "storage local-lvm on pve1 has 10 GiB free, and 12 GiB are wanted"
    assert (thick.faults, thick.warnings) == ((told,), ())
    assert [found.faults for found in thin] == [()] * 4
    assert all(found.warnings[0].startswith(told) for found in thin)


def test_what_fits_and_what_nobody_tells_is_no_matter() -> None:
    silent = StorageFound(active=True, images=True, shared=False, kind="lvm")

    assert room(spec(disk_gib=10), {"local-lvm": store("lvm")}, host="pve1").faults == ()
    assert room(spec(disk_gib=10), {"local-lvm": silent}, host="pve1").faults == ()
    assert room(spec(disk_gib=99, linked=True), {"local-lvm": store("lvm")}, host="pve1").faults == ()


def test_the_vms_of_one_run_share_the_room_of_a_host_or_of_shared_storage() -> None:
    beside = [("pve1", other("n2", disk_gib=3)), ("pve2", other("n3", disk_gib=4))]
    own = room(spec(disk_gib=8), {"local-lvm": store("lvm")}, host="pve1", others=beside)
    shared = room(spec(disk_gib=8), {"local-lvm": store("lvm", shared=True)}, host="pve1", others=beside)

    assert "beside 3 GiB for 1 other VM of this run" in own.faults[0]
    assert "beside 7 GiB for 2 other VMs of this run" in shared.faults[0]


def test_a_storage_for_the_disc_must_be_there_hold_isos_and_have_room() -> None:
    wanted = spec(seed=WantedSeed("isos", UserData("ud", "#!/bin/sh\n")))
    good = store("dir")
    faults = [
        "; ".join(room(wanted, {"local-lvm": good} | found, host="pve1").faults)
        for found in (
            {},
            {"isos": replace(good, active=False)},
            {"isos": replace(good, discs=False)},
            {"isos": replace(good, free_mib=1)},
            {"isos": good},
        )
    ]

    assert faults[0].startswith("seed_storage isos is not on pve1")
    assert faults[1].startswith("seed_storage isos is not active on pve1")
    assert faults[2].startswith(
        "seed_storage isos on pve1 holds no ISO images (content iso) (there are: local-lvm)"
    )
    assert faults[3].startswith("seed_storage isos on pve1 has 0.0009766 GiB free")
    assert faults[4] == ""


def test_both_storages_are_named_before_anything_is_written_and_asked_for_once(place: Place) -> None:
    place.pve.storages["local-lvm"] |= {"type": "lvm", "avail": 4 * 1024**3}
    (place.folder / "ud").write_text("#!/bin/sh\ntrue\n")
    place.write_site(profile_user_data_file="ud", profile_seed_storage="local-lvm")

    error = failure(place)

    assert isinstance(error, Refused)
    assert "storage local-lvm on pve1 has 4 GiB free, and 8 GiB are wanted" in error.why
    assert "seed_storage local-lvm on pve1 holds no ISO images" in error.why
    assert place.requests.writes == []
    assert sum(path.endswith("/nodes/pve1/storage") for _, path, _ in place.requests) == 1


class Silent(Proxmox):
    """The adapter towards a cluster that knows of its VMs but what their ids are (pve1 does not report)."""

    def __init__(self, inner: Proxmox) -> None:
        self.__dict__.update(inner.__dict__)

    def _call(self, method: str, path: tuple[str | int, ...], **params: Any) -> Any:
        answer = super()._call(method, path, **params)
        if path == ("cluster", "resources"):
            kept = ("id", "type", "vmid", "node")
            answer["data"] = [
                {key: row[key] for key in kept} | {"status": "unknown"} for row in answer["data"]
            ]
        return answer


@pytest.mark.parametrize("template", ["9000", "debian-12", "{tag: golden}"])
def test_a_template_whose_host_does_not_report_is_not_called_absent(place: Place, template: str) -> None:
    place.write_site(profile_template=template)

    with pytest.raises(OtherSide) as caught:
        make(place.road(adapter=Silent))

    assert "pve1 does not report its VM 9000 (status unknown)" in caught.value.why
    assert "does not exist" not in caught.value.why
    assert "not a template" not in caught.value.why
    assert "pvestatd" in caught.value.next_step


class Locked(Proxmox):
    """The adapter towards a Proxmox where somebody else holds a lock for some calls of a kind."""

    def __init__(self, inner: Proxmox, ending: str, *, text: str, times: int = 1) -> None:
        self.__dict__.update(inner.__dict__)
        self._ending, self._text, self._left = ending, text, times

    def _call(self, method: str, path: tuple[str | int, ...], **params: Any) -> Any:
        if method != "GET" and path[-1] == self._ending and self._left:
            self._left -= 1
            raise OtherSide(f"Proxmox refused {method}", why=f"500 {self._text}", next_step="again")
        return super()._call(method, path, **params)


@pytest.mark.parametrize("ending", ["clone", "config", "resize", "start"])
@pytest.mark.parametrize(
    "text",
    ["VM is locked (clone)", "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout"],
)
def test_a_lock_of_somebody_elses_is_waited_for(place: Place, ending: str, text: str) -> None:
    place.write_site(profile_disk_gib="12")
    road = place.road(adapter=lambda inner: Locked(inner, ending, text=text))
    road._tools = replace(road._tools, sleep=lambda _s: None)  # noqa: SLF001 - time passed in

    make(road)

    assert state(place) is State.AWAITING_IDENTITY
    assert place.requests.writes.count(START) == 1


def test_a_lock_that_stays_is_the_error_in_the_end_and_a_backups_lock_at_once(place: Place) -> None:
    pauses: list[float] = []
    errors = {}
    for text in ("VM is locked (clone)", "VM is locked (backup)"):
        road = place.road(adapter=lambda inner, text=text: Locked(inner, "start", text=text, times=99))  # type: ignore[misc]  # a default
        road._tools = replace(road._tools, sleep=pauses.append)  # noqa: SLF001 - time passed in
        with pytest.raises(OtherSide) as caught:
            make(road)
        errors[text] = (caught.value.why, len([pause for pause in pauses if pause >= 1]))
        pauses.clear()

    assert errors == {
        "VM is locked (clone)": ("500 VM is locked (clone)", 4),
        "VM is locked (backup)": ("500 VM is locked (backup)", 0),
    }


def test_the_wait_for_a_lock_is_told(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    from inventory.console import Console

    tools = replace(
        place.road()._tools,  # noqa: SLF001 - the kit's tools
        console=Console(),
        sleep=lambda _s: None,
        patience=Patience(),
    )
    turns = iter([OtherSide("refused", why="500 VM is locked (clone)", next_step="again"), None])

    def act() -> str:
        if (error := next(turns)) is not None:
            raise error
        return "done"

    assert past_locks(tools, "the start of VM 100", act) == "done"
    assert "the start of VM 100 waits for a lock of somebody else's (VM is locked (clone))" in re.sub(
        r"\s+", " ", capsys.readouterr().err
    )


def test_ipv6_leases_are_asked_for_in_proxmoxs_words_and_only_their_family_counts(place: Place) -> None:
    said = {
        lease: wanted_config(spec(lease=lease), {}, None)["ipconfig0"] for lease in ("dhcp", "dhcp6", "auto")
    }
    assert said == {"dhcp": "ip=dhcp", "dhcp6": "ip6=dhcp", "auto": "ip6=auto"}
    place.write_site(profile_network="{bridge: vmbr0, address: auto}")
    assert "no IPv6 address on" in failure(place).why

    place.address = "2001:db8::10"
    node = make(place.road()).node

    assert node.address is not None
    assert (node.address.ip, node.address.source) == ("2001:db8::10", "leased")
    assert place.pve.vm(100).config["ipconfig0"] == "ip6=auto"
