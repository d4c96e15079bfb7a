"""A VM that was made by hand is found, shown, asked about, and put on record with a ticket; Proxmox is only read."""

import json
import subprocess
from typing import Any

import pytest

from inventory.importing_record import compare, put, read_lists
from inventory.model import Address, HostKey, State
from inventory.store import utc_now
from inventory.ticket import peek_ticket, read_ticket
from tests.provision.kit import Place, public_line
from tests.provision.leaving import OTHER_UUID, record, vmids

UUID = "3b0f7c52-4a86-4d0e-9a37-51b2f0c6d921"
MAC = "bc:24:11:00:01:21"


def by_hand(place: Place, vmid: int = 121, uuid: str = UUID, **other: Any) -> Any:
    """A VM as a person clicks it together: Proxmox's own uuid, no tag, no name of ours, another user."""
    config = {
        "name": "trial", "cores": 4, "memory": 2048, "agent": "1", "smbios1": f"uuid={uuid.upper()}",
        "net0": f"virtio=BC:24:11:00:01:{vmid % 100:02d},bridge=vmbr0", "boot": "order=scsi0", "tags": "theirs",
        "scsi0": f"local-lvm:vm-{vmid}-disk-0,size=8G", "description": "made in May",
    }  # fmt: skip
    vm = place.pve.add_vm(vmid, "trial", config=config | other)
    vm.status = "running"
    place.requests.clear()
    return vm


def imported(place: Place, text: str) -> None:
    entries = read_lists([("nodes.yaml", text)])
    assert all(
        each.error is None for each in put(entries, compare(entries, place.store), place.store, dry_run=False)
    )


def adopt(place: Place, *more: str, name: str = "gpu-21") -> subprocess.CompletedProcess[str]:
    return place.run(name, "--adopt", *(more or ("--vmid", "121", "--yes")))


def only_read(place: Place) -> bool:
    return bool(place.requests) and {method for method, _, _ in place.requests} == {"GET"}


def test_it_becomes_a_node_like_every_other_and_proxmox_is_only_read(place: Place) -> None:
    vm = by_hand(place)
    before = dict(vm.config)

    done = adopt(place)

    node = record(place, "gpu-21")
    assert done.returncode == 0, done.stderr
    assert only_read(place)
    assert vm.config == before
    assert (node.state, node.uuid, node.vmid, node.proxmox_node) == (
        State.AWAITING_IDENTITY,
        UUID,
        121,
        "pve1",
    )
    assert (node.profile, node.user, node.macs) == ("small", "muster", (MAC,))
    assert node.address == Address("10.0.0.10", 24, "leased")
    assert [key.line for key in node.host_keys] == [
        vm.agent["files"]["/etc/ssh/ssh_host_ed25519_key.pub"].removesuffix(" root@guest")
    ]
    assert [(event.before, event.after) for event in place.store.history("gpu-21")] == [
        (None, State.AWAITING_IDENTITY)
    ]
    assert "adopted: VM 121 on pve1 was made by hand" in place.store.history("gpu-21")[0].why
    assert "next, for security: onboard-node gpu-21" in done.stderr


def test_its_ticket_is_believed_and_pins_what_the_guest_told(place: Place) -> None:
    by_hand(place)

    adopt(place, "--vmid", "121", "--yes", "--ticket-out", str(place.folder))

    text = (place.folder / "gpu-21.ticket").read_text()
    ticket = read_ticket(text, signers=place.folder / "allowed_signers", now=utc_now()).ticket
    node = record(place, "gpu-21")
    assert (ticket.vm_uuid, ticket.vmid, ticket.host_keys, ticket.macs) == (UUID, 121, node.host_keys, (MAC,))
    assert ticket.profile_hash == node.spec_hash


def test_what_is_adopted_is_shown_before_anybody_is_asked(place: Place) -> None:
    vm = by_hand(place)
    key = HostKey.from_line(vm.agent["files"]["/etc/ssh/ssh_host_ed25519_key.pub"])

    plan = adopt(place, "--vmid", "121", "--plan", "--detailed-exitcode")
    unasked = adopt(place, "--vmid", "121")

    assert plan.returncode == 10
    assert unasked.returncode == 2
    assert "--yes" in unasked.stderr
    for words in (
        "gpu-21: VM 121 'trial' on pve1 is to be adopted; nothing in Proxmox is changed", f"uuid      {UUID}",
        "theirs", MAC, "10.0.0.10", key.fingerprint, "running; its guest agent answers", "muster, port 22",
        "~ cores: 4 -> 2", "= name: trial -> gpu-21  # accepted with its ticket",
    ):  # fmt: skip
        assert words in plan.stdout
        assert words in unasked.stderr
    assert place.store.get("gpu-21") is None
    assert only_read(place)


def test_the_plan_as_json_is_one_document(place: Place) -> None:
    by_hand(place)

    (node,) = json.loads(adopt(place, "--vmid", "121", "--plan", "--json").stdout)["nodes"]

    assert (node["changed"], node["state"], node["adopts"]["uuid"]) == (False, None, UUID)
    differs = node["adopts"]["differs"]
    assert {"name", "ciuser"} <= {entry["key"] for entry in differs["accepted"]}
    assert "cores" in {change["key"] for step in differs["mendable"] for change in step["changes"]}


def test_the_same_again_changes_nothing(place: Place) -> None:
    by_hand(place)
    adopt(place)
    before = record(place, "gpu-21")

    again = adopt(place, "--no-input")

    assert again.returncode == 0, again.stderr
    assert "nothing was changed" in again.stderr
    assert record(place, "gpu-21") == before
    assert only_read(place)


def test_its_drift_is_accepted_and_what_can_be_mended_is_mended_when_somebody_says_so(place: Place) -> None:
    vm = by_hand(place)
    adopt(place)

    plan = place.run("gpu-21", "--plan")
    done = place.run("gpu-21", "--yes")

    assert plan.returncode == 0, plan.stderr
    assert "name       differs, and was accepted with the ticket" in plan.stdout
    assert done.returncode == 0, done.stderr
    assert (vm.config["name"], vm.pending["cores"], vm.config["tags"]) == ("trial", "2", "muster;theirs")
    assert place.run("gpu-21", "--reissue-ticket").returncode == 0


def test_an_imported_node_is_found_by_its_uuid(place: Place) -> None:
    by_hand(place)
    by_hand(place, 122, OTHER_UUID)
    place.address = "10.0.0.11"
    imported(place, f"nodes: [{{name: gpu-21, uuid: {UUID}, user: root, ssh_port: 2222, note: from May}}]")

    done = adopt(place, "--yes")

    node = record(place, "gpu-21")
    assert done.returncode == 0, done.stderr
    assert (node.vmid, node.user, node.ssh_port, node.profile) == (121, "root", 2222, "small")
    assert peek_ticket(str(node.ticket)).user == "root"
    assert [event.after for event in place.store.history("gpu-21")] == [State.AWAITING_IDENTITY] * 2


def test_host_keys_of_a_list_are_never_pinned_and_a_strange_one_is_told(place: Place) -> None:
    vm = by_hand(place)
    forged = HostKey.from_line(public_line())
    imported(
        place,
        f"nodes: [{{name: gpu-21, uuid: {UUID}, vmid: 120, macs: ['{MAC}'], host_keys: [{forged.line}]}}]",
    )

    done = adopt(place, "--yes")

    real = HostKey.from_line(vm.agent["files"]["/etc/ssh/ssh_host_ed25519_key.pub"])
    assert f"the list that it was imported from has another host key: {forged.fingerprint}" in done.stderr
    assert "the list has it as VM 120" in done.stderr
    assert record(place, "gpu-21").host_keys == (real,)
    assert peek_ticket(str(record(place, "gpu-21").ticket)).host_keys == (real,)


def test_all_that_a_list_was_wrong_in_is_told_before_anybody_is_asked(place: Place) -> None:
    vm = by_hand(place)
    machine_id = vm.agent["files"]["/etc/machine-id"].strip()
    told = f"name: gpu-21, uuid: {UUID}, proxmox_node: pve1, address: 10.0.0.10/24, machine_id: {machine_id}"
    imported(place, f"nodes: [{{{told}}}]")
    right = adopt(place, "--plan")
    assert place.run("gpu-21", "--retire", "--yes").returncode == 0
    strange = "ab" * 16
    imported(
        place,
        f"nodes: [{{name: gpu-22, uuid: {UUID}, proxmox_node: pve9, address: 10.0.0.99, machine_id: {strange}}}]",
    )

    wrong = adopt(place, "--plan", name="gpu-22")

    assert "the list has" not in right.stdout
    for words in ("it on pve9", "address 10.0.0.99, and it has not", f"another machine-id: {strange}"):
        assert f"! the list has {words}" in wrong.stdout


@pytest.mark.parametrize("mode", [["--yes"], ["--reissue-ticket"], ["--plan"], ["--drift"]])
def test_nothing_else_is_done_with_a_node_that_was_only_told_of(place: Place, mode: list[str]) -> None:
    by_hand(place)
    imported(place, f"nodes: [{{name: gpu-21, uuid: {UUID}, vmid: 121, proxmox_node: pve1, profile: small}}]")

    done = place.run("gpu-21", *mode)

    assert done.returncode == 3
    assert "next: provision-node gpu-21 --adopt" in done.stderr
    assert place.requests.writes == []
    assert record(place, "gpu-21").ticket is None


def test_a_node_set_is_adopted_with_one_question_if_each_is_on_record(place: Place) -> None:
    for number, vmid in enumerate((121, 122), start=1):
        by_hand(place, vmid, f"0000000{number}-0000-4000-8000-000000000001")
    imported(
        place,
        "nodes:\n"
        + "".join(f"- {{name: gpu-2{n}, uuid: 0000000{n}-0000-4000-8000-000000000001}}\n" for n in (1, 2)),
    )

    done = place.run("gpu-[21-23]", "--adopt", "--yes", "--json")

    first, second, third = json.loads(done.stdout)["nodes"]
    assert done.returncode == 2
    assert [(node["state"], node["changed"]) for node in (first, second)] == [("awaiting-identity", True)] * 2
    assert "--vmid N or --uuid U" in third["error"]["next"]
    assert only_read(place)


def test_a_static_address_must_be_the_one_that_the_vm_has(place: Place) -> None:
    by_hand(place)
    place.write_site(profile_network="{bridge: vmbr0, address: {from: 10.0.0.20/24, to: 10.0.0.99/24}}")

    strange = adopt(place)
    place.address = "10.0.0.42"
    place.pve.vm(121).agent = place.new_agent(place.pve.vm(121))
    done = adopt(place)

    assert strange.returncode == 3
    assert (
        "it has fe80::1/64, 10.0.0.10/24 on net0, and not one that profile small has a range for:"
        " 10.0.0.20/24 to 10.0.0.99/24" in strange.stderr
    )
    assert done.returncode == 0, done.stderr
    assert record(place, "gpu-21").address == Address("10.0.0.42", 24, "static")
    assert place.run("gpu-21", "--reissue-ticket").returncode == 0


def test_host_keys_that_change_after_they_were_shown_are_refused(place: Place) -> None:
    vm = by_hand(place)

    def asked(_method: str, path: str) -> None:
        if path.endswith("/pending"):  # the last thing that the look asks
            vm.agent["files"]["/etc/ssh/ssh_host_ed25519_key.pub"] = public_line()

    place.requests.on_next = asked
    done = adopt(place)

    assert done.returncode == 3
    assert "its SSH host keys are not those that were shown any more" in done.stderr
    assert place.store.get("gpu-21") is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("gpu-21", "--vmid", "121"),
        ("gpu-21", "--uuid", UUID),
        ("gpu-[21-22]", "--adopt", "--vmid", "121"),
        ("gpu-21", "--adopt", "--retire"),
        ("gpu-21", "--adopt", "--uuid", "nonsense"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_asked(
    place: Place, arguments: tuple[str, ...]
) -> None:
    by_hand(place)

    assert place.run(*arguments, "--yes").returncode == 2
    assert place.requests == []


def test_without_a_key_for_tickets_nothing_is_adopted(place: Place) -> None:
    by_hand(place)
    place.write_site(ticket=False)

    assert adopt(place).returncode == 2
    assert adopt(place, "--vmid", "121", "--plan").returncode == 0
    assert place.store.get("gpu-21") is None


def test_killed_while_the_guest_is_read_it_is_finished_by_the_same_command(place: Place) -> None:
    by_hand(place)
    process = subprocess.Popen(
        place.command("gpu-21", "--adopt", "--vmid", "121", "--yes"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    reads = 0

    def asked(_method: str, path: str) -> None:
        nonlocal reads
        reads += path.partition("?")[0].endswith("/agent/network-get-interfaces")
        if reads == 2:  # the first is the look
            process.kill()

    place.requests.on_next = asked
    assert process.wait(60) == -9
    place.requests.on_next = None
    assert place.store.get("gpu-21") is None

    assert adopt(place).returncode == 0
    assert record(place, "gpu-21").ticket is not None
    assert only_read(place)


def test_to_retire_an_adopted_vm_asks_as_for_any_other(place: Place) -> None:
    by_hand(place)
    adopt(place)

    unasked = place.run("gpu-21", "--retire")
    done = place.run("gpu-21", "--retire", "--yes")

    assert unasked.returncode == 2
    assert "asks for the name of gpu-21" in unasked.stderr
    assert done.returncode == 0, done.stderr
    assert vmids(place) == [9000]
    assert record(place, "gpu-21").state is State.RETIRED


def test_to_retire_a_node_that_was_only_told_of_leaves_its_vm_alone(place: Place) -> None:
    by_hand(place)
    imported(place, f"nodes: [{{name: gpu-21, uuid: {UUID}, vmid: 121, proxmox_node: pve1}}]")

    done = place.run("gpu-21", "--retire", "--yes")

    assert done.returncode == 0, done.stderr
    assert "VM 121, uuid" in done.stderr
    assert "stays as it is: it was made by hand, and never adopted" in done.stderr
    assert vmids(place) == [9000, 121]
    assert place.requests.writes == []
    assert record(place, "gpu-21").state is State.RETIRED
    assert adopt(place, "--uuid", UUID, "--yes").returncode == 0
