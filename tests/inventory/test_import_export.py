"""What one record exported is imported into another: the facts of its nodes, and no state, ticket or receipt."""

import io
import json
from dataclasses import replace
from pathlib import Path

from inventory.export.plain import write_json
from inventory.importing_record import compare, put, read_lists
from inventory.model import State
from inventory.store import Store
from tests.inventory.kit import NOW
from tests.inventory.test_import import CSV, FULL, OTHER, faults, on_record, take


def test_an_export_can_be_imported_elsewhere_and_its_states_and_tickets_count_for_nothing(
    tmp_path: Path,
) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'record.db'}")
    take(store, FULL, CSV.partition("\n")[0] + f"\ngpu-22,{OTHER},,,,,\n")
    signed = store.save(replace(on_record(store), ticket="signed", spec_hash="00"))
    assert signed.ticket is not None
    out = io.StringIO()
    write_json(store.all(), out, now=NOW)
    other = Store.open(f"sqlite:///{tmp_path / 'other.db'}")

    entries = read_lists([("fleet.json", out.getvalue())])
    list(put(entries, compare(entries, other), other, dry_run=False))

    found = on_record(other)
    assert (found.state, found.ticket, found.spec_hash) == (State.AWAITING_IDENTITY, None, None)
    same = (
        "uuid",
        "vmid",
        "address",
        "ssh_port",
        "user",
        "macs",
        "host_keys",
        "machine_id",
        "fabrics",
        "profile",
    )
    assert [getattr(found, key) for key in same] == [getattr(signed, key) for key in same]
    assert compare(entries, store).keys() == {"gpu-21", "gpu-22"}


def test_faults_of_an_export_name_the_node_and_its_key() -> None:
    told = json.dumps({"schema": 1, "exported_at": "now", "nodes": [{"name": "gpu-21", "vmid": 1}, 7]})

    assert faults(told, "fleet.json") == [
        "fleet.json:nodes[0]:uuid: uuid: required",
        "fleet.json:nodes[0]:vmid: vmid: should be greater than or equal to 100",
        "fleet.json:nodes[1]: should be a mapping",
    ]
