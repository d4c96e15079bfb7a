"""The road of one node over a record on a real server, walked by two people with two logins."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from inventory.store.database import Database
from inventory.store.making import migrate
from inventory.store.place import place_of
from tests.e2e.labs import Lab, running_lab
from tests.postgres import Server
from tests.require import need_command

ANNA, HUGO = "road_anna", "road_hugo"


@dataclass(frozen=True)
class People:
    """Infra's Anna and the holder Hugo, who have a lab and the record."""

    infra: Lab
    holder: Lab
    server: Server
    database: str

    def sql(self, text: str) -> str:
        """What the database has, as its superuser sees it."""
        return self.server.psql(f"SET search_path = muster; {text}", database=self.database)


@pytest.fixture(scope="module")
def people(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    """The lab with its record on the server: made by its owner, and shared by what `grants` prints."""
    need_command("ssh-keygen")
    database = postgres.fresh_database()
    owners = postgres.url(database, user="muster")
    for name in (ANNA, HUGO):
        postgres.create_login(name)
    with running_lab(tmp_path_factory.mktemp("state")) as lab:
        owner = replace(lab, environ={**lab.environ, "MUSTER_INVENTORY": owners})
        made = owner.ask("node-inventory", "migrate")
        assert (made["from"], made["changed"]) == (None, True)
        script = done(
            owner.run("node-inventory", "grants", "--to", f"infra={ANNA}", "--to", f"holder={HUGO}")
        )
        postgres.psql(script.stdout, database=database)
        infra, holder = (
            replace(lab, environ={**lab.environ, "MUSTER_INVENTORY": postgres.url(database, user=name)})
            for name in (ANNA, HUGO)
        )
        done(infra.run("provision-node", "gpu-01", "--profile", "small", "--yes"))
        done(holder.run("onboard-node", "gpu-01", "--yes"))
        yield People(infra, holder, postgres, database)


def done(run: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """A command that did what it was asked for."""
    assert run.returncode == 0, run.stdout + run.stderr
    return run


def test_the_node_is_in_service_and_the_database_vouches_for_every_move(people: People) -> None:
    node: dict[str, Any] = people.infra.node("gpu-01")
    events = people.infra.ask("node-inventory", "history", "gpu-01")["events"]

    assert node["state"] == "in-service"
    assert node["not_after"] is not None
    assert node["verified_at"] is not None
    by = {event["after"]: (event["role"], event["db_user"]) for event in events}
    assert by["provisioning"] == by["awaiting-identity"] == ("infra", ANNA)
    assert by["onboarding"] == by["in-service"] == ("holder", HUGO)
    assert f"(holder: {HUGO})" in people.infra.run("node-inventory", "history", "gpu-01").stdout


def test_what_was_verified_is_kept_with_its_time_line(people: People) -> None:
    report = json.loads(people.sql("SELECT document FROM reports"))

    assert report["ok"] is True
    assert len(report["verification"]["time_line"]) == 8
    assert people.sql("SELECT db_user, passed FROM reports") == f"{HUGO}|t"


def test_no_lease_is_left_behind(people: People) -> None:
    assert people.sql("SELECT count(*) FROM leases") == "0"


def test_infra_cannot_take_the_holders_receipt_into_the_record(people: People, tmp_path: Path) -> None:
    receipt = tmp_path / "gpu-01.receipt"
    receipt.write_text(people.holder.node("gpu-01")["receipt"])
    signers = people.infra.folder / "site.yaml"
    people.sql("DELETE FROM receipts")  # as if the holder had not been able to write it

    refused = people.infra.run("node-inventory", "import", str(receipt), "--site", str(signers))

    assert refused.returncode == 3, refused.stderr
    assert f"does not let {ANNA} do this" in refused.stderr
    done(people.holder.run("verify-node", "gpu-01"))
    assert people.infra.node("gpu-01")["receipt"]


def test_every_command_typed_again_changes_nothing(people: People) -> None:
    before = people.sql("TABLE nodes; TABLE events; TABLE receipts")
    again = people.infra.ask("provision-node", "gpu-01", "--profile", "small", "--yes")["nodes"][0]
    held = people.holder.ask("onboard-node", "gpu-01", "--yes", "--no-verify")["nodes"][0]

    assert (again["changed"], held["changed"]) == (False, False)
    assert people.sql("TABLE nodes; TABLE events; TABLE receipts") == before


def test_two_who_make_one_node_at_once_make_one_vm(people: People) -> None:
    words = ("provision-node", "gpu-02", "--profile", "small", "--yes", "--json")
    both = [people.infra.start(*words) for _ in range(2)]
    ended = [(run.communicate(timeout=600), run.returncode) for run in both]

    codes = sorted(code for _, code in ended)
    assert codes[0] == 0, ended
    assert codes[1] in {0, 3}, ended
    assert people.sql("SELECT count(*) FROM events WHERE node = 'gpu-02' AND before IS NULL") == "1"
    status = people.infra.ask("node-lab", "status")
    assert [vm["name"] for vm in status["vms"]].count("gpu-02") == 1
    assert people.infra.node("gpu-02")["state"] == "awaiting-identity"


def test_a_run_that_was_killed_is_gone_on_with_by_the_same_command_and_told(people: People) -> None:
    words = ("provision-node", "gpu-03", "--profile", "small", "--yes")
    with people.infra.start(*words) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if "start of VM" in line:
                break
        run.kill()
    assert people.sql("SELECT node FROM leases") == "gpu-03"

    again = done(people.infra.run(*words))

    assert "gpu-03 was left by provision-node of" in again.stderr
    assert "which has died: it is taken over" in again.stderr
    assert people.infra.node("gpu-03")["state"] == "awaiting-identity"
    assert people.sql("SELECT count(*) FROM leases") == "0"


def test_a_node_that_the_holder_works_on_is_not_touched_by_infra(people: People) -> None:
    before = people.sql("TABLE nodes; TABLE events")
    holding = [sys.executable, "-m", "tests.inventory.leasing", people.holder.environ["MUSTER_INVENTORY"]]
    with subprocess.Popen(
        [*holding, "gpu-03", "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "held\n"
        refused = people.infra.run("provision-node", "gpu-03", "--reissue-ticket", "--yes")
        run.kill()

    assert refused.returncode == 3, refused.stderr
    assert "gpu-03 is being worked on" in refused.stderr
    assert people.sql("TABLE nodes; TABLE events") == before
    # the dead run was of the other role: what the server knows of it is its lease alone
    still = people.infra.run("provision-node", "gpu-03", "--reissue-ticket", "--yes")
    assert still.returncode == 3
    assert "its lease runs out by itself in" in still.stderr


def test_a_record_that_is_away_keeps_no_identity_alive(people: People) -> None:
    away = replace(
        people.holder, environ={**people.holder.environ, "MUSTER_INVENTORY": "postgresql:///x?host=/no"}
    )
    done = away.run("onboard-node", "gpu-01", "--decommission", "--yes")

    assert done.returncode == 4
    assert "next: to end the certificate at once: node-ca revoke NAME" in done.stderr


def test_the_node_leaves_by_both_hands_each_writing_its_own(people: People) -> None:
    early = people.infra.run("provision-node", "gpu-01", "--retire", "--yes")
    assert early.returncode == 3
    done(people.holder.run("onboard-node", "gpu-01", "--decommission", "--yes"))
    done(people.infra.run("provision-node", "gpu-01", "--retire", "--yes"))

    events = people.infra.ask("node-inventory", "history", "gpu-01")["events"]
    assert people.infra.node("gpu-01")["state"] == "retired"
    assert {event["after"]: event["db_user"] for event in events[-4:]} == {
        "decommissioning": HUGO,
        "awaiting-retirement": HUGO,
        "retiring": ANNA,
        "retired": ANNA,
    }


def test_the_record_that_the_commands_used_is_at_its_newest_form(people: People) -> None:
    owners = Database(place_of(people.server.url(people.database, user="muster")))

    assert migrate(owners)[0] == migrate(owners)[1]
