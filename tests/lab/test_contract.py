"""The lab's API answers as a recorded Proxmox VE 9.2 did; each accepted difference is listed, and is one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.recorded.answers import ANSWERS
from tests.lab.recorded.compare import differences, plain
from tests.lab.recorded.differences import ACCEPTED
from tests.lab.recorded.replay import Replay
from tests.lab.recorded.scenes import SCENES
from tests.lab.recorded.world import SECRET, SEPARATE, USER, World, world

CLONE = "/nodes/pve1/qemu/9000/clone"
DOCS = Path(__file__).parents[2] / "docs/lab.md"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[World]:
    """A host with one template, which the token may clone."""
    with world(tmp_path) as found:
        replay = Replay(found)
        replay.arrange("template")
        replay.arrange("granted")
        yield found


@pytest.mark.parametrize("name", SCENES)
def test_every_recorded_answer_is_given(name: str, tmp_path: Path) -> None:
    accepted = {number: where for difference in ACCEPTED for number, where in difference.where.items()}
    with world(tmp_path) as found:
        answers = list(Replay(found).run(SCENES[name]))

    assert answers
    assert {
        number: differing for number, differing in answers if differing != accepted.get(number, frozenset())
    } == {}


def test_every_recorded_answer_is_of_some_use() -> None:
    played = {number for text in SCENES.values() for number in Replay.numbers(text)}
    listed = {number for difference in ACCEPTED for number in difference.where}

    assert listed <= played
    assert len(played & ANSWERS.keys()) > 380


def test_every_accepted_difference_is_named_in_the_docs() -> None:
    section = " ".join(DOCS.read_text().partition("### Where it still differs")[2].split())

    assert [difference.told for difference in ACCEPTED if difference.told not in section] == []


def test_an_answer_says_how_it_is_to_be_read(lab: World) -> None:
    heads = lab.heads("token", "/version")

    assert heads["Content-Type"] == "application/json;charset=UTF-8"
    assert heads["Server"] == "pve-api-daemon/3.0"
    assert heads["Cache-Control"] == "max-age=0"


def test_a_long_log_is_given_by_pages_of_fifty_lines(lab: World) -> None:
    upid = lab.call("token", "POST", CLONE, {"newid": 100, "full": 1}).data
    lab.settled()
    log = f"/nodes/pve1/tasks/{upid}/log"
    first, all_of_it = lab.call("token", "GET", log).body, lab.call("token", "GET", log, {"limit": 0}).body
    last = lab.call("token", "GET", log, {"start": 100, "limit": 500}).body
    beyond = lab.call("token", "GET", log, {"start": 1000}).body

    assert first is not None
    assert all_of_it is not None
    assert last is not None
    assert [row["n"] for row in first["data"]] == list(range(1, 51))
    assert len(all_of_it["data"]) == first["total"] == last["total"] > 100
    assert last["data"][0]["n"] == 101
    assert last["data"][-1] == {"n": first["total"], "t": "TASK OK"}
    assert beyond == {"data": [], "total": first["total"]}


def test_a_task_that_has_written_nothing_yet_says_so(lab: World) -> None:
    lab.pve.copy_s = 1.0
    assert lab.call("token", "POST", CLONE, {"newid": 100, "full": 1}).status == 200
    waits = lab.call("token", "POST", "/nodes/pve1/qemu/100/status/shutdown").data
    lab.do(lambda: lab.pve.tasks[waits]["log"].clear())
    body = lab.call("token", "GET", f"/nodes/pve1/tasks/{waits}/log").body

    assert body == ANSWERS[158]["body"]


@pytest.mark.parametrize("broken", ["gone", "full", "full at once"])
def test_a_clone_that_fails_leaves_nothing(lab: World, broken: str) -> None:
    store = {"type": "dir", "files": set(), "path": "/mnt/tiny", "content": "images", "active": 1}
    store["avail"] = 0 if broken == "full at once" else 40 << 20
    lab.do(lambda: lab.pve.storages.update(tiny=store))
    lab.do(lambda: lab.pve.grant(USER, "/storage/tiny", "Datastore.AllocateSpace"))
    if broken == "gone":
        lab.do(lambda: lab.pve.storages["tiny"].update(active=0))
    upid = lab.call("token", "POST", CLONE, {"newid": 100, "full": 1, "storage": "tiny"}).data
    lab.settled()
    outcome = lab.call("token", "GET", f"/nodes/pve1/tasks/{upid}/status").data["exitstatus"]
    config = lab.call("token", "GET", "/nodes/pve1/qemu/100/config")
    again = lab.call("token", "GET", "/cluster/nextid").data

    assert outcome.startswith("clone failed: ")
    assert config.reason == "Configuration file 'nodes/pve1/qemu-server/100.conf' does not exist"
    assert not lab.pve.storages["tiny"].get("volumes")
    assert lab.pve.storages["tiny"]["avail"] == store["avail"]
    assert lab.pve.vm(9000).lock_holder is None
    assert again == "100"


def test_a_vm_has_no_name_in_the_cluster_until_the_host_has_counted_it(lab: World) -> None:
    before = lab.call("token", "GET", "/cluster/resources", {"type": "vm"}).data
    lab.call("token", "POST", CLONE, {"newid": 301, "name": "p0"})
    lab.settled()
    fresh = lab.call("token", "GET", "/cluster/resources", {"type": "vm"}).data
    lab.pve.counted_every_s = 0
    counted = lab.call("token", "GET", "/cluster/resources", {"type": "vm"}).data
    real = next(row for row in ANSWERS[433]["body"]["data"] if row["vmid"] == 301)

    assert [row["vmid"] for row in before] == [9000]
    assert [row for row in fresh if row["vmid"] == 301] == [real]
    assert [row["name"] for row in counted] == ["debian12-tpl", "p0"]


def test_a_separated_token_has_what_both_it_and_its_user_have(lab: World) -> None:
    lab.do(lambda: lab.pve.add_token(SEPARATE, SECRET, {}))
    lab.do(lambda: lab.pve.grant(SEPARATE, "/vms", "VM.Audit", "VM.Console"))
    held = lab.call("sep", "GET", "/access/permissions").data
    user = lab.call("root", "GET", "/access/permissions", {"userid": USER, "path": "/vms/9000"}).data

    assert held == {"/vms": {"VM.Audit": 1}}
    assert "VM.Clone" in user["/vms/9000"]
    refused = lab.call("sep", "POST", CLONE, {"newid": 100})
    assert (refused.status, refused.reason) == (403, "Permission check failed (/vms/9000, VM.Clone)")


def test_what_is_granted_deeper_replaces_what_comes_from_above(lab: World) -> None:
    lab.do(lambda: lab.pve.grant(USER, "/vms/9000", "VM.Audit"))
    refused = lab.call("token", "POST", CLONE, {"newid": 100})

    assert refused.reason == "Permission check failed (/vms/9000, VM.Clone)"


def test_a_config_shows_what_waits_unless_only_the_current_one_is_asked_for(lab: World) -> None:
    lab.call("token", "POST", CLONE, {"newid": 100})
    lab.settled()
    lab.call("token", "POST", "/nodes/pve1/qemu/100/status/start")
    lab.settled()
    lab.call("token", "PUT", "/nodes/pve1/qemu/100/config", {"memory": 1024, "delete": "tags"})
    merged = lab.call("token", "GET", "/nodes/pve1/qemu/100/config").data
    current = lab.call("token", "GET", "/nodes/pve1/qemu/100/config", {"current": 1}).data

    assert (merged["memory"], current["memory"]) == ("1024", "768")
    assert "tags" not in merged


def test_the_comparison_sees_a_type_that_is_not_the_same() -> None:
    assert list(differences(plain({"memory": "768"}), plain({"memory": 768}))) == ["memory"]
    assert list(differences(plain({"a": True}), plain({"a": 1}))) == ["a"]
    assert list(differences(plain({"a": [{"n": 1}]}), plain({"a": []}))) == ["a.[1] missing"]
    assert list(differences(plain({"pid": 1}), plain({"pid": 2}))) == []
