"""The record against a real API of Proxmox: each kind of disagreement, few requests, and no write at all."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from inventory.checking import Asked, Disagreement, NotChecked, Offer, Severity, run_checks
from inventory.console import Console
from inventory.errors import BadInput, ExitCode, OtherSide
from inventory.model import Node, State
from provision import compare
from provision.checker import ProxmoxChecker
from tests.inventory.check_kit import typed
from tests.provision.kit import Place, make

UUID = "0e1a2b3c-0000-4000-8000-0000000000ff"


def asked(place: Place, *names: str, nodes: Sequence[Node] | None = None) -> Asked:
    """A run over the record, or over these nodes in its place."""
    chosen = frozenset(names) if names else None

    def everyone() -> Iterator[Node]:
        return iter(nodes) if nodes is not None else place.store.each()

    return Asked(
        nodes=lambda: (node for node in everyone() if chosen is None or node.name in chosen),
        everyone=everyone,
        history=place.store.history,
        held=lambda _name: False,
        now=datetime.now(UTC),
        console=Console(quiet=True),
        names=chosen,
        site=place.site_file,
    )


def check(
    place: Place, *names: str, nodes: Sequence[Node] | None = None
) -> tuple[list[Disagreement], list[NotChecked]]:
    told = list(ProxmoxChecker().check(asked(place, *names, nodes=nodes)))
    return (
        [each for each in told if isinstance(each, Disagreement)],
        [each for each in told if isinstance(each, NotChecked)],
    )


def found(place: Place, *names: str, nodes: Sequence[Node] | None = None) -> list[tuple[str, str]]:
    told, untold = check(place, *names, nodes=nodes)
    assert untold == []
    return [(each.node, each.about) for each in told]


def the_node(place: Place) -> Node:
    node = place.store.get("gpu-01")
    assert node is not None
    return node


@pytest.fixture
def made(place: Place) -> Place:
    """gpu-01, as provision-node made it."""
    make(place.road())
    return place


def smbios(uuid: str) -> str:
    return f"uuid={uuid}"


def copied(place: Place, **config: object) -> None:
    """A second VM with the config of gpu-01's, as a restored copy."""
    place.pve.add_vm(300, "gpu-01", status="stopped", config={**place.pve.vm(100).config, **config})


def gone(place: Place) -> None:
    place.pve.vms.remove(place.pve.vm(100))


def under_another_id(place: Place) -> None:
    copied(place)
    gone(place)


def on_another_host(place: Place) -> None:
    place.pve.add_node("pve2")
    place.pve.vm(100).node = "pve2"


def setting(key: str, value: object) -> Callable[[Place], None]:
    return lambda place: place.pve.vm(100).config.update({key: value})


def without_the_profile(place: Place) -> None:
    place.site_file.write_text(place.site_file.read_text().replace("  small:", "  large:"))


def orphaned(place: Place) -> None:
    place.pve.add_vm(300, "forgotten", config={"tags": "x;muster", "smbios1": smbios(UUID)})


def stopped(place: Place) -> None:
    place.pve.vm(100).status = "stopped"


def waiting(place: Place) -> None:
    place.pve.vm(100).config["cores"] = 7
    place.pve.vm(100).pending["cores"] = 2


@dataclass(frozen=True)
class Case:
    """What is done to the VM behind our back, whose name it is told under, and what the mend names."""

    change: Callable[[Place], None]
    mend: str
    node: str = "gpu-01"
    state: State | None = None


CASES: dict[str, Case] = {
    "vm-gone": Case(gone, "provision-node gpu-01 --retire"),
    "vm-another": Case(setting("smbios1", smbios(UUID)), "leave VM 100 alone"),
    "vm-other-id": Case(under_another_id, "back VM 300 up on pve1 and restore it as 100"),
    "vm-double": Case(copied, "qm destroy 300"),
    "vm-stopped": Case(stopped, "provision-node gpu-01"),
    "vm-name": Case(setting("name", "gpu-99"), "on pve1: qm set 100 --name gpu-01"),
    "vm-mac": Case(
        setting("net0", "virtio=02:00:00:00:00:01,bridge=vmbr0,firewall=1"), "set the MAC of VM 100"
    ),
    "vm-drift": Case(setting("cores", 7), "provision-node gpu-01"),
    "vm-pending": Case(waiting, "on pve1: qm shutdown 100, then qm start 100"),
    "vm-drift-kept": Case(setting("ciuser", "somebody"), "provision-node gpu-01 --reissue-ticket"),
    "profile-unknown": Case(without_the_profile, "write profile small into the site file again"),
    "vm-orphan": Case(orphaned, "on pve1: qm destroy 300", node="forgotten"),
    "vm-of-retired": Case(lambda _place: None, "qm destroy 100 --purge", state=State.RETIRED),
    "vm-moved": Case(on_another_host, "on pve2: qm migrate 100 pve1"),
}


@pytest.mark.parametrize("about", CASES)
def test_each_kind_is_found_and_nothing_else(made: Place, about: str) -> None:
    case = CASES[about]
    nodes = [the_node(made)]
    if case.state is not None:
        nodes = [replace(nodes[0], state=case.state)]
    else:
        assert found(made, nodes=nodes) == []

    case.change(made)
    (told,), untold = check(made, nodes=nodes)

    assert (told.node, told.about, told.source) == (case.node, about, "proxmox")
    assert case.mend in told.mend
    assert untold == []


@pytest.mark.parametrize("about", ["vm-stopped", "vm-drift", "vm-drift-kept"])
def test_a_mend_that_is_a_command_mends(made: Place, about: str) -> None:
    CASES[about].change(made)
    (told,), _ = check(made)

    done = made.run(*told.mend.rpartition("provision-node ")[2].split(), "--yes")

    assert done.returncode == 0, done.stderr
    assert [each for each in check(made)[0] if each.severity is Severity.WRONG] == []


def test_every_kind_has_its_case() -> None:
    assert [kind.about for kind in ProxmoxChecker.kinds] == list(CASES)


def test_only_a_vm_that_moved_or_waits_for_its_restart_is_no_fault() -> None:
    notices = [kind.about for kind in ProxmoxChecker.kinds if kind.severity is Severity.NOTICE]

    assert notices == ["vm-pending", "vm-moved"]


def test_another_value_that_waits_for_the_restart_is_drift_all_the_same(made: Place) -> None:
    made.pve.vm(100).config.update(cores=7, memory=1024)
    made.pve.vm(100).pending.update(cores=2, memory=512)

    assert found(made) == [("gpu-01", "vm-drift"), ("gpu-01", "vm-pending")]


@pytest.mark.parametrize("state", [State.AWAITING_RETIREMENT, State.RETIRING, State.DECOMMISSIONING])
def test_a_node_on_its_way_out_may_be_stopped_and_differ(made: Place, state: State) -> None:
    stopped(made)
    made.pve.vm(100).config["cores"] = 7

    assert found(made, nodes=[replace(the_node(made), state=state)]) == []


@pytest.mark.parametrize("state", [State.PLANNED, State.PROVISIONING, State.PROVISION_FAILED])
def test_a_vm_that_is_not_made_yet_is_not_missed(made: Place, state: State) -> None:
    gone(made)

    assert found(made, nodes=[replace(the_node(made), state=state)]) == []


def test_a_retired_node_whose_vm_is_gone_or_whose_id_another_vm_has_is_at_rest(made: Place) -> None:
    retired = [replace(the_node(made), state=State.RETIRED)]
    made.pve.vm(100).config.update(smbios1=smbios(UUID), tags="golden")
    assert found(made, nodes=retired) == []

    gone(made)
    assert found(made, nodes=retired) == []


def test_a_copy_of_a_retired_nodes_vm_is_found_under_its_new_id(made: Place) -> None:
    retired = [replace(the_node(made), state=State.RETIRED)]
    under_another_id(made)

    (told,), _ = check(made, nodes=retired)

    assert (told.about, told.found) == ("vm-of-retired", "VM 300 on pve1")


def test_drift_that_its_ticket_has_accepted_is_no_disagreement(made: Place) -> None:
    made.pve.vm(100).config.update(ciuser="somebody", name="gpu-99")
    (name, kept), _ = check(made)
    assert (name.about, kept.about) == ("vm-name", "vm-drift-kept")

    made.run("gpu-01", "--reissue-ticket", "--yes")

    assert found(made) == []


def test_what_is_found_names_the_keys_that_differ(made: Place) -> None:
    made.pve.vm(100).config.update(cores=7, memory=1024)

    (told,), _ = check(made)

    assert told.found == "cores: 7 -> 2; memory: 1024 -> 2048"
    assert told.recorded == "profile small"


def test_orphans_are_told_only_where_no_node_was_named(made: Place) -> None:
    orphaned(made)

    assert found(made, "gpu-01") == []
    assert found(made) == [("forgotten", "vm-orphan")]


def test_a_template_with_our_tag_is_no_orphan(made: Place) -> None:
    made.pve.add_vm(301, "golden", template=True, config={"tags": "muster"})

    assert found(made) == []


def test_nodes_of_another_site_are_told_as_not_checked_and_their_vms_are_not_missed(made: Place) -> None:
    node = replace(the_node(made), site="pve.elsewhere:8006", vmid=4711)

    told, (untold,) = check(made, nodes=[node, the_node(made)])

    assert told == []
    assert "1 nodes are of the site pve.elsewhere:8006" in untold.why
    assert untold.exit_code is ExitCode.DONE


def many(place: Place, count: int) -> list[Node]:
    """So many nodes like gpu-01, each with its VM."""
    nodes = [the_node(place)]
    for number in range(2, count + 1):
        name, uuid = f"gpu-{number:02}", f"0e1a2b3c-0000-4000-8000-{number:012}"
        config = {**place.pve.vm(100).config, "smbios1": smbios(uuid), "name": name}
        config["description"] = f"muster: {name} {uuid}"
        place.pve.add_vm(1000 + number, name, status="running", config=config)
        nodes.append(replace(nodes[0], name=name, uuid=uuid, vmid=1000 + number))
    return nodes


def test_fifty_nodes_cost_one_look_at_the_cluster_and_one_at_each_vm_and_no_write(made: Place) -> None:
    nodes = many(made, 50)
    made.requests.clear()

    assert found(made, nodes=nodes) == []

    assert made.requests.writes == []
    assert len(made.requests) == 51


def test_no_case_writes_anything_to_proxmox_or_to_the_record(made: Place) -> None:
    before = Path(made.folder / "inventory.db").read_bytes()
    orphaned(made)
    made.pve.add_vm(301, "copy", config=dict(made.pve.vm(100).config))
    made.pve.vm(100).config.update(cores=7, ciuser="somebody", name="x")
    made.requests.clear()

    told, _ = check(made)

    assert len(told) == 5
    assert made.requests
    assert {method for method, _, _ in made.requests} == {"GET"}
    assert Path(made.folder / "inventory.db").read_bytes() == before


def test_a_crowd_of_strangers_is_listed_without_a_look_at_each(made: Place) -> None:
    for number in range(compare.MOST_STRANGERS + 20):
        made.pve.add_vm(2000 + number, f"x{number}", config={"tags": "muster"})
    made.requests.clear()

    assert len(found(made)) == compare.MOST_STRANGERS + 20
    assert len(made.requests) == 2 + compare.MOST_STRANGERS


def test_a_host_out_of_reach_is_asked_once_and_its_nodes_are_not_checked(made: Place) -> None:
    nodes = many(made, 3)
    made.pve.add_node("pve2")
    for node in nodes[1:]:
        made.pve.vm(int(node.vmid or 0)).node = "pve2"
    nodes = [nodes[0], *(replace(node, proxmox_node="pve2") for node in nodes[1:])]
    made.pve.fail("GET", "/config", 595, "No route to host")
    made.requests.clear()

    told, untold = check(made, "gpu-02", "gpu-03", nodes=nodes)

    assert told == []
    assert [(each.node, each.exit_code) for each in untold] == [("gpu-02", 4), ("gpu-03", 4)]
    assert sum(path.endswith("/config") for _, path, _ in made.requests) == 1


def test_a_vm_that_the_token_may_not_see_is_not_checked_and_the_others_are(made: Place) -> None:
    nodes = many(made, 2)
    made.pve.fail("GET", "/qemu/1002/config", 403, "Permission check failed (/vms/1002, VM.Audit)")
    made.pve.vm(100).config["cores"] = 7

    (told,), (untold,) = check(made, nodes=nodes)

    assert (told.node, told.about) == ("gpu-01", "vm-drift")
    assert (untold.node, untold.exit_code) == ("gpu-02", 4)
    assert "provision-node --grants" in untold.how


def test_a_profile_whose_keys_cannot_be_read_is_told_of_each_node_and_hides_nothing_else(made: Place) -> None:
    (made.folder / "login_keys.pub").unlink()
    stopped(made)

    (told,), (untold,) = check(made)

    assert told.about == "vm-stopped"
    assert (untold.node, untold.exit_code) == ("gpu-01", 2)


def test_a_site_file_that_is_not_there_is_told_with_what_gives_it(place: Place) -> None:
    with pytest.raises(BadInput) as caught:
        list(ProxmoxChecker().check(replace(asked(place), site=None)))

    assert caught.value.next_step == "give --site FILE"
    assert not ProxmoxChecker().was_asked(replace(asked(place), site=None))
    assert ProxmoxChecker().was_asked(asked(place))


def test_a_proxmox_out_of_reach_is_not_checked_and_ends_with_4(made: Place) -> None:
    text = made.site_file.read_text()
    made.site_file.write_text(text.replace(made.pve.url, "https://127.0.0.1:9"))

    outcome = run_checks([Offer("proxmox", lambda: ProxmoxChecker)], asked(made))

    assert outcome.exit_code is ExitCode.OTHER_SIDE
    assert outcome.checked == []
    assert [each.source for each in outcome.not_checked] == ["proxmox"]


def test_the_command_shows_the_drift_and_ends_with_3_and_with_4_where_nobody_answers(made: Place) -> None:
    made.pve.vm(100).config["cores"] = 7
    record = f"sqlite:///{made.folder / 'inventory.db'}"
    arguments = ["gpu-01", "--only", "proxmox", "--site", str(made.site_file), "--inventory", record]

    done = typed(*arguments)
    made.site_file.write_text(made.site_file.read_text().replace(made.pve.url, "https://127.0.0.1:9"))
    away = typed(*arguments)

    assert done.returncode == 3
    assert done.stdout.splitlines()[1] == (
        "gpu-01\tproxmox\tvm-drift\twrong\tcores: 7 -> 2\tprofile small\tprovision-node gpu-01"
    )
    assert (away.returncode, away.stdout) == (4, "")
    assert "not checked: proxmox: " in away.stderr


def test_a_refused_token_is_not_checked(made: Place) -> None:
    (made.folder / "pve.token").write_text("muster@pve!t=00000000-0000-0000-0000-000000000000\n")

    with pytest.raises(OtherSide):
        check(made)
