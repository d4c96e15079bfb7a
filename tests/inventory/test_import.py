"""Lists of nodes that were joined by hand: read with every fault in its place, put on record, believed in nothing."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory import show
from inventory.errors import BadFile, Refused
from inventory.importing import NodeEntry, is_list, is_table, read_list
from inventory.importing_record import Imported, compare, put, read_lists
from inventory.lifecycle import next_command, whose_turn
from inventory.model import Address, HostKey, Node, State
from inventory.store import Store
from inventory.ticket import sign_receipt
from tests.inventory.kit import KEY, keygen, receipt

UUID = "3b0f7c52-4a86-4d0e-9a37-51b2f0c6d921"
OTHER = "9e1d4c7a-2b35-4f68-8c90-d4e6a1b7f322"
EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = "a name is 1 to 63 of a-z, 0-9 and '-', and neither begins nor ends with '-'"
FULL = f"""\
nodes:
  - name: gpu-21
    uuid: {UUID}
    vmid: 121
    proxmox_node: pve1
    address: 10.0.0.121/24
    address_source: static
    ssh_port: 2222
    user: root
    macs: [BC:24:11:00:01:21]
    host_keys: [{KEY.line} root@gpu-21]
    machine_id: {"ab" * 16}
    fabrics: [{{name: fabric0, interface: eth1, mtu: 9000, rate_gbps: 400, address: 192.168.50.21/24}}]
    profile: small
    note: the pilot
"""
CSV = f"""\
name,uuid,vmid,address,macs,host_keys,note
gpu-21,{UUID},121,10.0.0.121/24,bc:24:11:00:01:21 bc:24:11:00:02:21,{KEY.line},"May, by hand"

gpu-22,{OTHER},,,,,
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(f"sqlite:///{tmp_path / 'record.db'}")


def take(store: Store, *texts: str, dry_run: bool = False) -> list[Imported]:
    entries = read_lists((f"list-{number}.yaml", text) for number, text in enumerate(texts))
    return list(put(entries, compare(entries, store), store, dry_run=dry_run))


def entry(**facts: Any) -> str:
    return json.dumps({"nodes": [{"name": "gpu-21", "uuid": UUID, **facts}]})


def on_record(store: Store, name: str = "gpu-21") -> Node:
    found = store.get(name)
    assert found is not None
    return found


def faults(text: str, name: str = "nodes.yaml") -> list[str]:
    with pytest.raises(BadFile) as refused:
        read_lists([(name, text)])
    return [str(fault) for fault in refused.value.faults]


def test_every_fact_of_a_list_is_on_record_and_the_history_says_where_it_came_from(store: Store) -> None:
    take(store, FULL)

    node = on_record(store)
    assert (node.state, node.uuid, node.vmid, node.proxmox_node) == (
        State.AWAITING_IDENTITY,
        UUID,
        121,
        "pve1",
    )
    assert (node.address, node.ssh_port, node.user) == (Address("10.0.0.121", 24, "static"), 2222, "root")
    assert (node.macs, node.host_keys, node.machine_id) == (("bc:24:11:00:01:21",), (KEY,), "ab" * 16)
    assert (node.fabrics[0].name, node.fabrics[0].address, node.profile) == (
        "fabric0",
        "192.168.50.21/24",
        "small",
    )
    (event,) = store.history("gpu-21")
    assert (event.before, event.after) == (None, State.AWAITING_IDENTITY)
    assert event.why == "imported from list-0.yaml: a machine joined by hand (the pilot)"


def test_an_imported_node_has_no_ticket_and_is_infras_to_adopt(store: Store) -> None:
    take(store, FULL)

    node = on_record(store)
    assert (node.ticket, node.receipt, node.spec_hash, node.journal) == (None, None, None, {})
    assert (whose_turn(node), next_command(node)) == ("infra", "provision-node gpu-21 --adopt")
    assert [each.unadopted for each in store.summaries()] == [True]
    assert ("host key", f"ssh-ed25519 {KEY.fingerprint} (from a list; nobody pins it)") in show.lines(node)
    with pytest.raises(Refused) as refused:
        show.need_ticket(node)
    assert "provision-node gpu-21 --adopt" in refused.value.next_step


def test_a_node_with_a_ticket_is_the_holders_as_ever() -> None:
    node = Node("gpu-21", State.AWAITING_IDENTITY, uuid=UUID)

    assert whose_turn(replace(node, ticket="signed")) == "security"
    assert next_command(replace(node, spec_hash="00")) == "onboard-node gpu-21"
    assert whose_turn(replace(node, state=State.IN_SERVICE)) == "nobody"


def test_a_list_in_csv_says_the_same(store: Store) -> None:
    take(store, CSV)

    first, second = on_record(store), on_record(store, "gpu-22")
    assert (first.vmid, first.macs) == (121, ("bc:24:11:00:01:21", "bc:24:11:00:02:21"))
    assert (first.host_keys, first.address) == ((KEY,), Address("10.0.0.121", 24, "leased"))
    assert store.history("gpu-21")[0].why.endswith("(May, by hand)")
    assert (second.vmid, second.macs, second.ssh_port) == (None, (), 22)


def test_a_spreadsheets_mark_and_line_ends_are_no_part_of_a_list() -> None:
    text = "\N{ZERO WIDTH NO-BREAK SPACE}" + CSV.replace("\n", "\r\n")

    assert [each.told.name for each in read_list(text, name="nodes.csv")] == ["gpu-21", "gpu-22"]


def test_every_fault_of_every_entry_is_told_at_once_with_its_place() -> None:
    text = f"""\
nodes:
  - name: GPU
    uuid: {UUID}
    vmid: 7
  - name: gpu-22
    uuid: {UUID.replace("-", "")}
    vmdi: 122
    host_keys: [nonsense]
  - name: gpu-23
"""

    assert faults(text) == [
        f"nodes.yaml:2:5: nodes[0].name: 'GPU' cannot name a node: {NAMES}",
        "nodes.yaml:4:5: nodes[0].vmid: should be greater than or equal to 100",
        f"nodes.yaml:6:5: nodes[1].uuid: '{UUID.replace('-', '')}' should be written {UUID}",
        "nodes.yaml:7:5: nodes[1].vmdi: unknown key (did you mean vmid?)",
        "nodes.yaml:8:17: nodes[1].host_keys[0]: not a public key line: type and key are needed",
        "nodes.yaml:9:5: nodes[2].uuid: required key is missing",
    ]


def test_faults_in_csv_name_line_and_column() -> None:
    text = f"name,uuid,vmdi,ssh_port,macs\ngpu-21,{UUID},1,ssh,xx\n\n,{OTHER},,99999,\ngpu-23,{OTHER}\n"

    assert faults(text, "nodes.csv") == [
        "nodes.csv:1:vmdi: vmdi: unknown column (did you mean vmid?)",
        "nodes.csv:2:ssh_port: ssh_port: should be a valid integer",
        "nodes.csv:2:macs: macs: 'xx' is not a MAC address in lower case with colons",
        "nodes.csv:4:name: name: required, and the cell is empty",
        "nodes.csv:4:ssh_port: ssh_port: should be less than or equal to 65535",
        "nodes.csv:5:macs: 2 cells, and the header row has 5",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"Name,UUID\ngpu-21,{UUID}\n", "nodes.csv:1:UUID: UUID: unknown column (did you mean uuid?)"),
        ("sep=;\nname;uuid\n", "nodes.csv:1:1: neither a receipt nor a list of nodes"),
        ("name,vmid\ngpu-21,121\n", "nodes.csv:1:uuid: uuid: required column is missing"),
        ("name,uuid,name\n", "nodes.csv:1:name: name: the column is there twice"),
        ("name,uuid,fabrics\n", "nodes.csv:1:fabrics: fabrics: CSV has no room for it; write the list as YAML"),
        ("name,uuid\n", "nodes.csv:1:name: there is no node below the header row"),
        (f'name,uuid\n"gpu-21,{UUID}\n', "nodes.csv:2: not CSV: unexpected end of data"),
        ("just some words\n", "nodes.csv:1:1: neither a receipt nor a list of nodes"),
        ("node: []\n", "nodes.csv:1:1: node: unknown key (did you mean nodes?)"),
        ("nodes: []\n", "nodes.csv:1:1: nodes: there is no node in it"),
        ("", "nodes.csv:1:1: the file is empty"),
        ("nodes: [", "nodes.csv:1:"),
        (entry(uuid="00000000-0000-0000-0000-000000000000"), "is no machine's uuid"),
        (entry(address="224.0.0.1"), "224.0.0.1 is not the address of a host"),
        (entry(address="10.0.0.0/24"), "10.0.0.0 is not the address of a host"),
        (entry(address="10.0.0.255/24"), "10.0.0.255 is not the address of a host"),
        (entry(note="a\x1b[2Jb"), "only what can be printed"),
        (entry(ticket="x"), "nodes[0].ticket: unknown key"),
        (entry(receipt="x"), "nodes[0].receipt: unknown key"),
        (entry(state="in-service"), "nodes[0].state: unknown key"),
    ],
)  # fmt: skip
def test_what_is_no_list_says_why(text: str, fault: str) -> None:
    assert any(fault in told for told in faults(text, "nodes.csv"))


@pytest.mark.parametrize(
    ("facts", "key"),
    [
        ({"name": "gpu-21"}, "name"),
        ({"uuid": UUID}, "uuid"),
        ({"vmid": 121}, "vmid"),
        ({"address": "10.0.0.21/16"}, "address"),
        ({"host_keys": [KEY.line]}, "host_keys"),
        ({"macs": ["bc:24:11:00:01:21"]}, "macs"),
        ({"machine_id": "ab" * 16}, "machine_id"),
    ],
)
def test_what_two_entries_claim_is_told_with_both_places(facts: dict[str, Any], key: str) -> None:
    first = entry(
        vmid=121, address="10.0.0.21", host_keys=[KEY.line], macs=["bc:24:11:00:01:21"], machine_id="ab" * 16
    )
    second = json.dumps({"nodes": [{"name": "gpu-22", "uuid": OTHER, **facts}]})

    with pytest.raises(BadFile) as refused:
        read_lists([("one.yaml", first), ("two.yaml", second)])

    (fault,) = refused.value.faults
    assert fault.place.startswith("two.yaml:1:")
    assert fault.text.startswith(f"{key}: ")
    assert "is there twice, the first is gpu-21's at one.yaml:1:" in fault.text


@pytest.mark.parametrize(
    ("facts", "key"),
    [
        ({"uuid": OTHER}, "uuid"),
        ({"vmid": 300}, "vmid"),
        ({"address": "10.0.0.9"}, "address"),
        ({"host_keys": [KEY.line]}, "host_keys"),
        ({"macs": ["bc:24:11:00:00:09"]}, "macs"),
    ],
)
def test_a_machine_of_another_node_is_refused_and_nothing_is_imported(
    store: Store, facts: dict[str, Any], key: str
) -> None:
    store.add(
        Node(
            "gpu-09", State.AWAITING_IDENTITY, uuid=OTHER, vmid=300, address=Address("10.0.0.9", 24, "leased"),
            host_keys=(KEY,), macs=("bc:24:11:00:00:09",),
        ),
        why="a test",
    )  # fmt: skip

    with pytest.raises(Refused) as refused:
        take(store, json.dumps({"nodes": [{"name": "gpu-20", "uuid": UUID[:-1] + "0"}]}), entry(**facts))

    assert f"{key}: " in refused.value.why
    assert "is on record as gpu-09's, which is awaiting-identity" in refused.value.why
    assert [node.name for node in store.all()] == ["gpu-09"]


def test_the_same_list_again_changes_nothing(store: Store) -> None:
    take(store, FULL)
    before = on_record(store)

    again = take(store, FULL)

    assert [done.changed for done in again] == [False]
    assert on_record(store) == before
    assert len(store.history("gpu-21")) == 1


def test_other_facts_are_refused_with_the_difference_and_never_overwritten(store: Store) -> None:
    take(store, FULL)
    before = on_record(store)

    with pytest.raises(Refused) as refused:
        take(store, entry(vmid=122, user="admin", address="10.0.0.5", host_keys=[], machine_id="cd" * 16))

    assert [line.partition(": gpu-21 is on record: ")[2] for line in refused.value.why.splitlines()] == [
        f"machine_id is {'ab' * 16} there, and {'cd' * 16} here",
        "user is root there, and admin here",
        "vmid is 121 there, and 122 here",
        "address is 10.0.0.121 there, and 10.0.0.5 here",
    ]
    assert on_record(store) == before


@pytest.mark.parametrize("state", [state for state in State if state not in {State.PLANNED, State.RETIRED}])
def test_no_state_of_a_node_is_moved_by_a_list(store: Store, state: State) -> None:
    store.add(Node("gpu-21", state, uuid=UUID, ticket="signed"), why="a test")
    before = on_record(store)

    take(store, entry())
    with pytest.raises(Refused):
        take(store, entry(uuid=OTHER))

    assert on_record(store) == before


def test_a_name_that_was_retired_is_free_and_nothing_of_its_former_machine_stays(store: Store) -> None:
    node = store.add(Node("gpu-21", State.PLANNED, uuid=OTHER, vmid=300, host_keys=(KEY,)), why="a test")
    for state in (State.RETIRING, State.RETIRED):
        node = store.save(replace(node, state=state), why="a test")

    take(store, entry(vmid=300))

    assert (on_record(store).uuid, on_record(store).host_keys) == (UUID, ())
    assert "its name is used again; it was VM 300" in store.history("gpu-21")[-2].why


def test_a_dry_run_tells_and_changes_nothing(store: Store) -> None:
    (done,) = take(store, FULL, dry_run=True)

    assert (done.changed, done.to_json()["state"]) == (True, "awaiting-identity")
    assert store.all() == ()


def test_receipts_and_lists_are_told_apart_by_what_is_in_them(tmp_path: Path) -> None:
    signed = sign_receipt(receipt(), key_file=keygen(tmp_path, "holder"))

    assert not is_list(signed)
    assert not is_list(signed.partition("\n")[0])  # without its signature it is a faulty receipt, not a list
    assert not is_list(signed.replace('"kind"', '"nodes"'))  # whatever is signed is no list
    assert all(map(is_list, (FULL, CSV, entry(), "nonsense")))


def test_the_examples_are_lists_and_the_csv_shows_every_column(store: Store) -> None:
    texts = [(file, (EXAMPLES / file).read_text()) for file in ("nodes.yaml", "nodes.csv")]
    rows = list(csv.DictReader(io.StringIO(texts[1][1])))

    first = read_lists(texts)[2]

    assert set(rows[0]) == set(NodeEntry.model_fields) - {"fabrics"}
    told = first.told.model_dump()
    for column, cell in rows[0].items():
        arrived = told[column]
        assert cell == (
            {"macs": " ", "host_keys": ";"}[column].join(arrived)
            if isinstance(arrived, tuple)
            else str(arrived)
        )
    assert len(take(store, *(text for _, text in texts))) == 4


@pytest.mark.parametrize(
    "first", ["# who has a name, name, and so on", "profiles: {name, uuid}", "[name, uuid]"]
)
def test_a_line_of_yaml_is_no_header_row(first: str) -> None:
    assert not is_table(f"{first}\n")


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(st.one_of(WORDS, WORDS.map("name,uuid,vmid\n{}".format), WORDS.map("nodes:\n- name: {}".format)))
def test_whatever_is_in_a_file_it_is_a_list_or_faults_with_places(text: str) -> None:
    places = ["any"]
    try:
        read_list(text, name="any")
    except BadFile as error:
        places = [fault.place for fault in error.faults]

    assert all(place.startswith("any") for place in places)


def test_a_receipt_cannot_be_forged_by_a_list(store: Store) -> None:
    take(store, FULL)

    assert on_record(store).receipt is None
    assert HostKey.from_line(KEY.line) in on_record(store).host_keys
    assert on_record(store).ticket is None
