"""A node with user-data of its own: its disc is made, read back by isoinfo, attached, and gone after the first boot."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from inventory.errors import MusterError
from inventory.model import State
from provision.allowance import allowance
from provision.hypervisor import Unanswered
from provision.journal import Journal
from provision.proxmox import Proxmox
from provision.retire import Retiring
from provision.road import Road
from provision.rollback import Rollback
from provision.seeding import Seeding
from provision.spec import load_site
from tests.provision.kit import CLONE, CONFIG, START, TOKEN_ID, Place, failure, make, state
from tests.provision.leaving import record
from tests.provision.seed_kit import SECRET_WORD, discs, on_the_disc, parts, read
from tests.provision.test_killed import both, every_death, nothing

UPLOAD = ("POST", "/nodes/pve1/storage/local/upload")


def test_the_disc_is_there_for_the_first_boot_and_gone_after_it(seeded: Place) -> None:
    slots: list[str] = []
    seeded.requests.on_next = lambda method, path: (
        slots.append(seeded.pve.vm(100).config["ide2"])
        if path.endswith("/start") and method == "POST"
        else None
    )

    made = make(seeded.road())

    name = f"muster-{made.node.uuid}.iso"
    assert slots == [f"local:iso/{name},media=cdrom"]
    assert seeded.requests.writes == [
        CLONE, CONFIG, UPLOAD, CONFIG, START, CONFIG, ("DELETE", f"/nodes/pve1/storage/local/content/local:iso/{name}"),
    ]  # fmt: skip
    assert seeded.pve.vm(100).config["ide2"] == "local-lvm:cloudinit,media=cdrom"
    assert discs(seeded) == []
    assert dict(made.node.journal) == {}


def test_a_second_run_has_nothing_to_do_and_no_drift(seeded: Place) -> None:
    make(seeded.road())
    seeded.requests.clear()

    road = seeded.road()
    prepared = road.prepare("gpu-01", profile=None)
    again = road.carry_out(prepared)

    assert (prepared.steps, prepared.drift, again.changed) == ((), (), False)
    assert road.drift(prepared).lines() == []
    assert seeded.requests.writes == []


def test_the_token_needs_these_rights_for_the_disc_and_no_others(seeded: Place) -> None:
    def rights() -> set[tuple[str, str]]:
        given = allowance(load_site(seeded.site_file), version=9)
        return {(grant.path, privilege) for grant in given for privilege in grant.privileges}

    with_disc = rights()
    seeded.write_site()

    assert with_disc - rights() == {
        ("/storage/local", "Datastore.Allocate"),
        ("/storage/local", "Datastore.AllocateTemplate"),
        ("/storage/local", "Datastore.Audit"),
        ("/vms", "VM.Config.CDROM"),
    }


def test_without_the_right_on_its_storage_nothing_is_written(seeded: Place) -> None:
    site = load_site(seeded.site_file)
    for grant in allowance(site, version=9):
        names = set(grant.privileges) - ({"Datastore.Allocate"} if grant.path == "/storage/local" else set())
        for who in (TOKEN_ID, TOKEN_ID.partition("!")[0]):
            seeded.pve.grant(who, grant.path, *names)

    error = failure(seeded)

    assert f"the token {TOKEN_ID} lacks Datastore.Allocate on /storage/local" in error.why
    assert seeded.requests.writes == []


def test_user_data_is_in_no_output_record_or_error(seeded: Place) -> None:
    planned = seeded.run("gpu-01", "--plan")
    told = [planned, seeded.run("gpu-02", "--plan", "--json"), seeded.run("gpu-01", "-v", "--json", "--yes")]

    assert [run.returncode for run in told] == [0, 0, 0], told[-1].stderr
    assert "+ upload     local:iso/muster-(uuid).iso" in planned.stdout
    assert "~ attach     ide2:" in planned.stdout
    assert "- remove     local:iso/muster-(uuid).iso" in planned.stdout
    assert '"step": "upload-seed"' in json.dumps(json.loads(told[1].stdout))
    assert not [run for run in told if SECRET_WORD in run.stdout + run.stderr]
    assert SECRET_WORD not in (seeded.folder / "inventory.db").read_bytes().decode(errors="replace")
    spec = seeded.road().prepare("gpu-03", profile=None).spec
    assert SECRET_WORD not in repr(spec)


@both
def test_a_making_with_a_disc_that_dies_anywhere_is_finished_and_leaves_none(
    seeded: Place, *, after: bool
) -> None:
    def go(road: Road, name: str) -> None:
        make(road, name)
        assert record(seeded, name).state is State.AWAITING_IDENTITY

    died = every_death(seeded, after=after, begin=nothing, go=go)

    assert died > 25
    assert discs(seeded) == []
    for vm in seeded.pve.vms[1:]:
        assert vm.config["ide2"] == "local-lvm:cloudinit,media=cdrom"
    starts = [path for method, path in seeded.requests.writes if path.endswith("/status/start")]
    assert len(set(starts)) == died + 1


def dies_at(kind: str, *, after: bool) -> Callable[[Proxmox], Proxmox]:
    """The adapter of a process that is killed at its first request of one kind."""

    class Dies(Proxmox):
        def __init__(self, inner: Proxmox) -> None:
            self.__dict__.update(inner.__dict__)

        def _call(self, method: str, path: tuple[str | int, ...], **params: Any) -> Any:
            hit = method != "GET" and str(path[-1]).endswith(kind)
            if hit and not after:
                raise KeyboardInterrupt
            answer = super()._call(method, path, **params)
            if hit:
                raise KeyboardInterrupt
            return answer

    return Dies


@pytest.mark.parametrize("at", ["upload", "start", ".iso"])
def test_a_rollback_takes_a_left_over_disc_along(seeded: Place, at: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        make(seeded.road(adapter=dies_at(at, after=at != ".iso")))
    assert len(discs(seeded)) == 1

    road = seeded.road()
    rollback = Rollback(seeded.store, road._tools)  # noqa: SLF001 - the kit's tools
    node = rollback.look("gpu-01")
    assert node is not None
    rollback.carry_out(node)

    assert discs(seeded) == []
    assert [vm.vmid for vm in seeded.pve.vms] == [9000]


@both
def test_a_rollback_with_a_disc_that_dies_anywhere_is_finished(seeded: Place, *, after: bool) -> None:
    def begin(name: str) -> None:
        with pytest.raises(KeyboardInterrupt):
            make(seeded.road(adapter=dies_at("start", after=True)), name)

    def go(road: Road, name: str) -> None:
        rollback = Rollback(seeded.store, road._tools)  # noqa: SLF001 - the kit's tools
        node = rollback.look(name)
        assert node is not None
        rollback.carry_out(node)

    every_death(seeded, after=after, begin=begin, go=go)

    assert discs(seeded) == []
    assert [vm.vmid for vm in seeded.pve.vms] == [9000]


def test_a_retirement_takes_a_left_over_disc_along(seeded: Place) -> None:
    seeded.pve.vms.agent_for = lambda _vm: None
    assert failure(seeded).what.startswith("VM 100 did not tell its address")
    assert (state(seeded), len(discs(seeded))) == (State.PROVISION_FAILED, 1)
    road = seeded.road()

    retiring = Retiring(load_site(seeded.site_file), seeded.store, road._tools)  # noqa: SLF001 - the kit's tools
    parting = retiring.look("gpu-01", orphan=False)
    assert parting is not None
    retiring.carry_out(parting)

    assert discs(seeded) == []
    assert state(seeded) is State.RETIRED


def test_no_disc_but_the_nodes_own_is_ever_deleted(seeded: Place) -> None:
    node = make(seeded.road()).node
    seeded.pve.storages["local"]["files"] |= {"debian.iso", f"x-muster-{node.uuid}.iso"}
    seeded.requests.clear()
    seeding = Seeding(seeded.road()._tools, Journal(seeded.store, node))  # noqa: SLF001 - the kit's tools

    for volume in ("local:iso/debian.iso", f"local:iso/x-muster-{node.uuid}.iso", "local-lvm:vm-100-disk-0"):
        with pytest.raises(MusterError) as caught:
            seeding.delete([volume])
        assert "does not carry gpu-01's uuid" in caught.value.why

    assert seeded.requests.writes == []


def test_a_profile_mended_after_a_failed_start_uploads_its_new_user_data(seeded: Place) -> None:
    with pytest.raises(KeyboardInterrupt):
        make(seeded.road(adapter=dies_at("start", after=False)))
    (seeded.folder / "user-data").write_text("#cloud-config\nruncmd: [true]\n")

    make(seeded.road())

    assert "runcmd" in read(parts(on_the_disc(seeded.pve.uploaded["data"], "user-data", seeded.folder))[0])
    assert [path for method, path in seeded.requests.writes if path.endswith("/clone")] == [CLONE[1]]


def test_a_disc_on_a_storage_of_a_former_try_goes_too(seeded: Place) -> None:
    seeded.pve.storages["isos"] = {"type": "dir", "active": 1, "content": "iso", "files": set(), "path": "/i"}
    with pytest.raises(KeyboardInterrupt):
        make(seeded.road(adapter=dies_at("start", after=False)))
    seeded.write_site(profile_user_data_file="user-data", profile_seed_storage="isos")

    make(seeded.road())

    assert (discs(seeded), sorted(seeded.pve.storages["isos"]["files"])) == ([], [])


def test_user_data_that_left_the_profile_leaves_no_disc_attached(seeded: Place) -> None:
    with pytest.raises(KeyboardInterrupt):
        make(seeded.road(adapter=dies_at("start", after=False)))
    seeded.write_site()

    make(seeded.road())

    assert seeded.pve.vm(100).config["ide2"] == "local-lvm:cloudinit,media=cdrom"
    assert discs(seeded) == []


def test_a_vm_that_somebody_started_before_its_disc_was_in_it_is_refused(seeded: Place) -> None:
    with pytest.raises(KeyboardInterrupt):
        make(seeded.road(adapter=dies_at("upload", after=False)))
    seeded.pve.vm(100).status = "running"

    error = failure(seeded)

    assert error.what == "VM 100 runs without its user-data"
    assert "--rollback" in error.next_step


class LosesOnce(Proxmox):
    """The adapter of a process that does not hear the answer to its first write of one kind."""

    def __init__(self, inner: Proxmox, kind: str) -> None:
        self.__dict__.update(inner.__dict__)
        self._kind, self._lost = kind, False

    def _call(self, method: str, path: tuple[str | int, ...], **params: Any) -> Any:
        answer = super()._call(method, path, **params)
        if method != "GET" and str(path[-1]).endswith(self._kind) and not self._lost:
            self._lost = True
            raise Unanswered("the answer was lost", why="the connection broke", next_step="run it again")
        return answer


@pytest.mark.parametrize("kind", ["upload", ".iso"])
def test_a_lost_answer_about_the_disc_costs_nothing(seeded: Place, kind: str) -> None:
    road = seeded.road(adapter=lambda inner: LosesOnce(inner, kind))

    make(road)

    assert state(seeded) is State.AWAITING_IDENTITY
    assert discs(seeded) == []
