"""Privileges: what each step needs, asked as the token before any write, and the lines that grant what is missing."""

import json
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import Refused
from provision.allowance import allowance
from provision.grants import Need, check_grants, commands, grants, holds, needs
from provision.plan import Clone, Configure, ReadFacts, plan
from provision.spec import load_site
from provision.wanted import WantedFabric
from tests.provision.cluster_kit import answers
from tests.provision.kit import TOKEN_ID, Place, failure, make
from tests.provision.test_plan import UUID, spec, template

EXAMPLE = Path(__file__).parents[2] / "examples" / "site.yaml"
USER = TOKEN_ID.partition("!")[0]


def needed(found: dict[str, Any] | None = None, *, version: int = 9, **wants: Any) -> set[tuple[str, str]]:
    source = template(**found or {})
    steps = plan(spec(**wants), template=source, machine=None, uuid=UUID, known=False)
    return {
        (need.path, need.privilege) for need in needs(spec(**wants), steps, source.config, version=version)
    }


def test_a_plain_node_needs_this_and_no_more() -> None:
    assert needed(disk_gib=20) == {
        ("/vms/9000", "VM.Clone"),
        ("/vms/9000", "VM.Audit"),
        ("/vms", "VM.Allocate"),
        ("/vms", "VM.Audit"),
        ("/vms", "VM.Config.CPU"),
        ("/vms", "VM.Config.Memory"),
        ("/vms", "VM.Config.Cloudinit"),
        ("/vms", "VM.Config.Options"),
        ("/vms", "VM.Config.HWType"),
        ("/vms", "VM.Config.Disk"),
        ("/vms", "VM.PowerMgmt"),
        ("/vms", "VM.GuestAgent.Audit"),
        ("/vms", "VM.GuestAgent.FileRead"),
        ("/storage/local-lvm", "Datastore.AllocateSpace"),
        ("/sdn/zones/localnetwork/vmbr0", "SDN.Use"),
    }


def test_the_guest_agent_needs_another_privilege_on_proxmox_8() -> None:
    eight, nine = needed(version=8), needed(version=9)

    assert eight - nine == {("/vms", "VM.Monitor")}
    assert nine - eight == {("/vms", "VM.GuestAgent.Audit"), ("/vms", "VM.GuestAgent.FileRead")}
    assert needed(version=10) == nine


def test_with_a_pool_the_rights_on_the_vm_are_asked_for_there() -> None:
    paths = {path for path, _ in needed(pool="gpu")}

    assert paths == {"/vms/9000", "/pool/gpu", "/storage/local-lvm", "/sdn/zones/localnetwork/vmbr0"}


def test_the_networks_of_the_template_count_too_and_a_vlan_has_its_own_path() -> None:
    found = needed({"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr3,tag=10"}, vlan=20)

    assert {path for path, privilege in found if privilege == "SDN.Use"} == {
        "/sdn/zones/localnetwork/vmbr3/10",
        "/sdn/zones/localnetwork/vmbr0/20",
    }


def test_mapped_devices_need_their_mapping() -> None:
    passed = (WantedFabric("f0", None, mapping="vf"),)
    found = needed(
        {"machine": "q35", "hostpci5": "mapping=nvme"}, gpu_mapping="h100", gpu_count=2, fabrics=passed
    )

    assert {path for path, privilege in found if privilege == "Mapping.Use"} == {
        "/mapping/pci/h100", "/mapping/pci/vf", "/mapping/pci/nvme",
    }  # fmt: skip


def test_only_the_steps_of_this_plan_count() -> None:
    found = needs(spec(), [ReadFacts()], {}, version=9, vmid=100)

    assert {need.privilege for need in found} == {"VM.GuestAgent.Audit", "VM.GuestAgent.FileRead"}
    (audit,) = needs(spec(), [Configure((), None)], {}, version=9, vmid=100)
    assert audit == Need("/vms", "VM.Audit", ("/vms/100",))


@pytest.mark.parametrize(
    ("held", "answer"),
    [
        ({"/vms/7": {"VM.Audit": 1}}, True),
        ({"/vms/7": {"VM.Audit": 0}}, True),
        ({"/vms": {"VM.Audit": 1}}, True),
        ({"/vms": {"VM.Audit": 0}}, False),
        ({"/": {"VM.Audit": 1}}, True),
        ({"/": {"VM.Audit": 1}, "/vms": {"VM.Clone": 1}}, False),
        ({"/vms/70": {"VM.Audit": 1}}, False),
        ({}, False),
    ],
)
def test_the_nearest_path_decides_and_must_hold_below(
    held: dict[str, dict[str, int]], *, answer: bool
) -> None:
    assert holds(held, "/vms/7", "VM.Audit") is answer


def test_a_virtual_network_of_the_sdn_has_its_rights_in_its_own_zone() -> None:
    need = Need("/sdn/zones/localnetwork/vnet7/10", "SDN.Use")

    assert need.met({"/sdn/zones/lab/vnet7": {"SDN.Use": 1}})
    assert need.met({"/sdn/zones/lab": {"SDN.Use": 1}})
    assert not need.met({"/sdn/zones/lab/vnet8": {"SDN.Use": 1}})


@pytest.mark.parametrize(
    ("privilege", "instead"),
    [
        ("VM.Config.Cloudinit", "VM.Config.Network"),
        ("VM.GuestAgent.FileRead", "VM.GuestAgent.Unrestricted"),
        ("Datastore.Audit", "Datastore.AllocateSpace"),
    ],
)
def test_what_proxmox_takes_instead_is_enough_and_is_not_asked_for(privilege: str, instead: str) -> None:
    assert Need("/vms", privilege).met({"/vms": {instead: 1}})
    assert not Need("/vms", instead).met({"/vms": {privilege: 1}})


def test_rights_on_each_single_id_of_a_range_are_enough() -> None:
    need = Need("/vms", "VM.Allocate", ids=range(5000, 5003))

    assert need.met({f"/vms/{vmid}": {"VM.Allocate": 1} for vmid in (5000, 5001, 5002)})
    assert not need.met({f"/vms/{vmid}": {"VM.Allocate": 1} for vmid in (5000, 5002, 5003)})
    assert Need("/pool/gpu", "VM.Allocate", ("/vms",)).met({"/vms": {"VM.Allocate": 1}})


def test_the_lines_grant_to_the_user_and_to_the_token() -> None:
    lines = commands(grants([Need("/mapping/pci/h100", "Mapping.Use")]), token=TOKEN_ID, user=USER)

    change = "pveum role modify MusterDevice --append 1 --privs Mapping.Use"
    assert lines == [
        f"pveum role add MusterDevice --privs Mapping.Use || {change}",
        "pveum acl modify /mapping/pci/h100 --users muster@pve --roles MusterDevice",
        "pveum acl modify /mapping/pci/h100 --tokens 'muster@pve!t' --roles MusterDevice",
    ]


def test_a_line_for_a_missing_right_repeats_what_the_path_had() -> None:
    wanted = [
        Need("/vms/9000", "VM.Clone"),
        Need("/vms/9000", "VM.Audit"),
        Need("/storage/s", "Datastore.Audit"),
    ]

    with pytest.raises(Refused) as caught:
        check_grants("gpu-01", wanted, {"/": {"VM.Audit": 1, "Datastore.Audit": 1}}, token=TOKEN_ID)

    assert caught.value.why == f"the token {TOKEN_ID} lacks VM.Clone on /vms/9000"
    assert "--privs VM.Audit,VM.Clone" in caught.value.next_step
    assert "/storage/s" not in caught.value.next_step


def test_two_sets_of_privileges_are_two_roles() -> None:
    given = grants([Need("/storage/a", "X"), Need("/storage/b", "Y"), Need("/storage/c", "X")])

    assert [(grant.path, grant.role) for grant in given] == [
        ("/storage/a", "MusterStorage"), ("/storage/b", "MusterStorage2"), ("/storage/c", "MusterStorage"),
    ]  # fmt: skip


def granted(place: Place, *, but: tuple[str, str] | None = None) -> None:
    """Exactly what --grants prints, to the user and to the token."""
    for grant in allowance(load_site(place.site_file), version=9):
        names = [name for name in grant.privileges if (grant.path, name) != but]
        for who in (USER, TOKEN_ID):
            place.pve.grant(who, grant.path, *names)


def test_a_token_with_exactly_the_printed_grants_makes_a_node(place: Place) -> None:
    place.write_site(profile_disk_gib="12", profile_network="{bridge: vmbr0, vlan: 10, address: dhcp}")
    granted(place)

    assert make(place.road()).node.vmid == 100


def all_grants() -> list[tuple[str, str]]:
    source = template()
    wants = spec(disk_gib=12)
    steps = plan(wants, template=source, machine=None, uuid=None, known=False)
    found = {(need.path, need.privilege) for need in needs(wants, steps, source.config, version=9)}
    # Without these two the template or the storage is not seen at all, which is told in its own way; and the
    # right to set the network covers cloud-init too.
    unseen = {("/vms/9000", "VM.Audit"), ("/storage/local-lvm", "Datastore.AllocateSpace")}
    return sorted(found - unseen - {("/vms", "VM.Config.Cloudinit")})


@pytest.mark.parametrize("missing", all_grants(), ids=lambda grant: " ".join(grant))
def test_each_grant_that_is_missing_is_named_before_any_write(place: Place, missing: tuple[str, str]) -> None:
    place.write_site(profile_disk_gib="12")
    granted(place, but=missing)
    path, privilege = missing

    error = failure(place)

    assert isinstance(error, Refused)
    assert f"lacks {privilege} on {path}" in error.why
    assert f"pveum acl modify {path} --tokens 'muster@pve!t'" in error.next_step
    assert place.requests.writes == []
    assert place.store.get("gpu-01") is None


def test_a_token_without_any_right_sees_nothing_and_is_told(place: Place) -> None:
    place.pve.grant("somebody@pve", "/", "VM.Audit")

    error = failure(place)

    assert "this token may not see it" in error.why
    assert place.requests.writes == []


def test_version_and_rights_are_asked_once_a_run_and_not_when_nothing_is_to_do(place: Place) -> None:
    road = place.road()
    for name in ("gpu-01", "gpu-02"):
        road.carry_out(road.prepare(name, profile=None))
    asked = [path for method, path, _ in place.requests if path.endswith(("/version", "/permissions"))]
    assert len(asked) == 2
    before = len(place.requests)

    place.road().prepare("gpu-01", profile=None)

    assert not [path for _, path, _ in place.requests[before:] if path.endswith(("/version", "/permissions"))]


def test_grants_are_printed_without_a_question_to_anybody(place: Place) -> None:
    done = place.run("--grants")

    assert done.returncode == 0, done.stderr
    assert place.requests == []
    assert done.stdout.splitlines()[0] == "# Proxmox VE 9"
    assert "pveum acl modify /vms/9000 --tokens 'muster@pve!t' --roles MusterTemplate" in done.stdout
    assert "VM.GuestAgent.FileRead" in done.stdout
    assert "# Proxmox VE 8" in done.stdout
    assert "VM.Monitor" in done.stdout


def test_grants_as_json_hold_roles_paths_and_lines(place: Place) -> None:
    found = json.loads(place.run("--grants", "--json").stdout)

    assert (found["schema"], found["ok"], found["token"], found["user"]) == (1, True, TOKEN_ID, USER)
    nine = found["proxmox"]["9"]
    assert {"path": "/vms/9000", "role": "MusterTemplate", "privileges": ["VM.Audit", "VM.Clone"]} in nine[
        "grants"
    ]
    assert all(line.startswith("pveum ") for line in nine["commands"])


def test_grants_need_no_token_yet_and_tell_what_the_file_does_not(place: Place) -> None:
    (place.folder / "pve.token").unlink()
    place.write_site(profile_template="debian-12")

    out = place.run("--grants").stdout

    assert "'<user@realm!name>'" in out
    assert "--users '<user@realm>'" in out
    assert "'/vms/<template debian-12>'" in out


def test_the_example_needs_no_right_over_the_whole_of_proxmox() -> None:
    given = allowance(load_site(EXAMPLE), version=9)

    held = {privilege for grant in given for privilege in grant.privileges}
    assert "/" not in {grant.path for grant in given}
    # Without it no token may delete an ISO image, so its own small storage should hold these.
    assert {grant.path for grant in given if "Datastore.Allocate" in grant.privileges} == {"/storage/discs"}
    assert held.isdisjoint(
        {
            "Sys.Modify",
            "Sys.Console",
            "Permissions.Modify",
            "VM.GuestAgent.Unrestricted",
        }
    )
    assert {"/pool/gpu", "/mapping/pci/h100", "/mapping/pci/ib-vf"} <= {grant.path for grant in given}


@pytest.mark.parametrize("arguments", [["--grants", "gpu-01"], ["--grants", "--plan"], []])
def test_grants_are_for_a_site_and_all_else_for_nodes(place: Place, arguments: list[str]) -> None:
    done = place.run(*arguments)

    assert done.returncode == 2
    assert done.stdout == ""


def test_a_gpu_node_with_printed_grants_is_made(place: Place) -> None:
    place.pve.vm(9000).config["machine"] = "q35"
    answers(place).mappings = {"h100": {"pve1": 2}}
    place.write_site(profile_gpus="{mapping: h100, count: 2}")
    granted(place)

    assert make(place.road()).node.vmid == 100


def test_a_clone_is_the_first_step_of_what_is_asked_for() -> None:
    assert isinstance(plan(spec(), template=template(), machine=None, uuid=UUID, known=False)[0], Clone)
