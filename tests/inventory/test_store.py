import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from inventory.errors import BadInput, Damaged, Refused
from inventory.lifecycle import MOVES, next_command, whose_move
from inventory.model import Address, Fabric, Node, State
from inventory.store import Store
from tests.inventory.records import KEY, NOW, node, store


def test_what_is_saved_is_read_back_whole(url: str) -> None:
    record = store(url)
    added = record.add(
        node(
            vmid=5000,
            address=Address("10.0.0.7", 24, "static"),
            macs=("bc:24:11:00:00:01",),
            host_keys=(KEY,),
            fabrics=(Fabric("fabric0", mac="bc:24:11:00:00:02", mtu=9000, rate_gbps=400.0),),
            journal={"upid": "UPID:x", "steps": [1, 2]},
        ),
        why="asked for",
    )

    assert record.get("gpu-01") == added
    assert record.all() == (added,)


def test_the_record_and_its_folder_are_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store(f"sqlite:///{tmp_path / 'record' / 'inventory.db'}")
    finally:
        os.umask(old)

    assert stat.S_IMODE((tmp_path / "record" / "inventory.db").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "record").stat().st_mode) == 0o700


def test_a_writer_with_an_old_version_is_refused_and_changes_nothing(url: str) -> None:
    record = store(url)
    read = record.add(node(), why="asked for")
    record.save(replace(read, vmid=100))

    with pytest.raises(Refused, match="changed it meanwhile"):
        record.save(replace(read, vmid=200))
    assert record.get("gpu-01") == replace(read, vmid=100, version=2)


def test_of_many_writers_at_once_none_loses_an_update(url: str) -> None:
    record = store(url)
    record.add(node(journal={"count": 0}), why="asked for")
    program = (
        "import sys; from dataclasses import replace; from inventory.store import Store\n"
        "from inventory.errors import Refused\n"
        "store = Store.open(sys.argv[1]); done = 0\n"
        "while done < 10:\n"
        "    node = store.get('gpu-01')\n"
        "    try: store.save(replace(node, journal={'count': node.journal['count'] + 1}))\n"
        "    except Refused: continue\n"
        "    done += 1\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, url]) for _ in range(3)]
    ended = [writer.wait(timeout=600) for writer in writers]

    counted = record.get("gpu-01")
    assert ended == [0, 0, 0]
    assert counted is not None
    assert counted.journal["count"] == 30
    assert counted.version == 31


def test_every_move_appends_an_event_with_who_when_and_why(url: str) -> None:
    record = store(url)
    added = record.add(node(), why="asked for")
    record.save(replace(added, state=State.PROVISION_FAILED, reason="full"), why="storage is full")

    first, second = record.history("gpu-01")
    assert (first.before, first.after, first.why) == (None, State.PROVISIONING, "asked for")
    assert (second.before, second.after) == (State.PROVISIONING, State.PROVISION_FAILED)
    assert second.at == NOW
    assert second.actor
    assert second.host


def test_a_move_that_a_nodes_life_does_not_have_is_refused(url: str) -> None:
    record = store(url)
    added = record.add(node(), why="asked for")

    with pytest.raises(Refused, match="awaiting-identity, provision-failed"):
        record.save(replace(added, state=State.IN_SERVICE), why="a short cut")
    assert record.get("gpu-01") == added
    assert len(record.history("gpu-01")) == 1


def test_a_name_and_a_uuid_are_on_record_once(url: str) -> None:
    record = store(url)
    record.add(node(), why="asked for")

    with pytest.raises(Refused, match="on record already"):
        record.add(node(), why="again")
    with pytest.raises(Refused, match="on record already"):
        record.add(node("gpu-02", uuid="uuid-of-gpu-01"), why="a clone")


def test_a_uuid_of_another_node_is_refused_when_it_is_saved_too(url: str) -> None:
    record = store(url)
    record.add(node(), why="asked for")
    other = record.add(node("gpu-02"), why="asked for")

    with pytest.raises(Refused, match="on record for another node"):
        record.save(replace(other, uuid="uuid-of-gpu-01"))
    assert record.get("gpu-02") == other


def test_what_no_database_can_hold_comes_back_as_what_it_can(url: str) -> None:
    record = store(url)
    added = record.add(node(reason="a\0b", profile="half \udcff"), why="\0")
    record.keep_report("gpu-01", {"seconds": float("nan"), "ms": [float("inf"), 1.5]}, passed=False)

    assert (added.reason, added.profile) == ("a\\x00b", "half \\udcff")
    assert record.get("gpu-01") == added
    assert record.get("\udcff") is None
    assert next(record.summaries(names=["\udcff", "gpu-01"])).name == "gpu-01"
    assert [*record.claimants(ips=["10.0.0.7"], site="\udcff")] == []
    assert record.reports("gpu-01")[0].document == {"seconds": None, "ms": [None, 1.5]}
    with pytest.raises(Refused, match="not on record"):
        record.keep_report("gpu-02", {}, passed=True)


def test_a_host_key_or_machine_id_of_another_vm_is_found(url: str) -> None:
    record = store(url)
    record.add(node(host_keys=(KEY,), machine_id="ab" * 16), why="asked for")

    found = record.find_machine(host_keys=(KEY,), machine_id=None, other_than_uuid="another")
    assert found is not None
    assert found.name == "gpu-01"
    assert record.find_machine(host_keys=(), machine_id="ab" * 16, other_than_uuid="another")
    assert record.find_machine(host_keys=(KEY,), machine_id=None, other_than_uuid="uuid-of-gpu-01") is None
    assert record.find_machine(host_keys=(), machine_id=None, other_than_uuid="another") is None


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("nonsense", "not a database URL"),
        ("postgresql://muster:secret@db/fleet", "no place for a password"),
        ("mysql://db/fleet", "sqlite"),
        ("sqlite://", "sqlite"),
    ],
)
def test_a_url_that_is_not_ours_is_refused_without_telling_its_password(url: str, word: str) -> None:
    with pytest.raises(BadInput, match=word) as refused:
        Store.open(url)
    assert "secret" not in f"{refused.value}{refused.value.next_step}"


def test_a_file_that_is_no_record_is_damage_not_a_traceback(tmp_path: Path) -> None:
    file = tmp_path / "inventory.db"
    file.write_bytes(b"this is no database" * 100)

    with pytest.raises(Damaged, match="not a database"):
        Store.open(f"sqlite:///{file}")
    assert file.read_bytes().startswith(b"this is no database")


def test_every_state_has_its_moves_its_mover_and_a_way_on() -> None:
    assert set(MOVES) == set(State)
    for state in State:
        command = next_command(Node("gpu-01", state))
        assert (command is None) == (whose_move(state) == "nobody")


def test_every_moving_state_has_a_failed_twin_from_which_it_can_be_tried_again() -> None:
    for moving, failed in [
        (State.PROVISIONING, State.PROVISION_FAILED),
        (State.ONBOARDING, State.ONBOARD_FAILED),
        (State.VERIFYING, State.VERIFY_FAILED),
        (State.DECOMMISSIONING, State.DECOMMISSION_FAILED),
        (State.RETIRING, State.RETIRE_FAILED),
    ]:
        assert failed in MOVES[moving]
        assert moving in MOVES[failed]
