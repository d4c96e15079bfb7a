import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ca.record import Standing
from inventory.agent_config import AgentConfig
from inventory.document import load
from inventory.errors import OtherSide, Refused
from inventory.model import State
from onboard.farewell import decommission
from onboard.named import expiring, holding_older
from onboard.refresh import refresh
from onboard.renewal import renew
from tests.onboard.kit import Bench, bench, openssl
from tests.onboard.node import Node, node
from tests.onboard.upkeep_kit import onboarded, policy_with, with_lists


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with node(tmp_path_factory.mktemp("node") / "sshd") as running:
        yield running


@pytest.fixture
def holder(tmp_path: Path, there: Node) -> Bench:
    there.forget()
    return bench(tmp_path, there.server)


def list_number(holder: Bench) -> int:
    shown = openssl("crl", "-in", holder.current("crl.pem"), "-noout", "-crlnumber")
    return int(shown.strip().partition("=")[2], 16)


def test_a_refreshed_node_has_the_list_that_is_due_and_the_same_key_and_certificate(
    holder: Bench, there: Node
) -> None:
    onboarded(holder)
    key, chain = (holder.current(name).read_bytes() for name in ("key.pem", "chain.pem"))
    number = with_lists(holder)
    there.forget()
    outcome = refresh("gpu-01", holder.desk())

    assert outcome.changed
    assert list_number(holder) == number
    assert (holder.current("key.pem").read_bytes(), holder.current("chain.pem").read_bytes()) == (key, chain)
    assert stat.S_IMODE(holder.current("key.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE(holder.current(".").resolve().stat().st_mode) == 0o750
    assert holder.current(".").resolve().name == "2"
    assert load(holder.current("agent.yaml"), AgentConfig).identity.crl_file == holder.current("crl.pem")
    assert holder.authority().holding_older_crl(datetime.now(UTC)) == ()
    assert key.splitlines()[1] not in there.heard
    found = holder.store().get("gpu-01")
    assert found is not None
    assert found.state is State.IN_SERVICE
    assert holder.store().history("gpu-01")[-1].why.startswith(f"refreshed: install revocation list {number}")
    assert holder.unlocked == 1  # for the onboarding: nothing is signed here


def test_a_second_refresh_changes_nothing_and_asks_nobody(holder: Bench) -> None:
    onboarded(holder)
    with_lists(holder)
    refresh("gpu-01", holder.desk())
    before = (holder.authority().head, holder.store().get("gpu-01"), holder.current(".").resolve())
    agreed = len(holder.agreed)

    assert not refresh("gpu-01", holder.desk()).changed
    assert before == (
        holder.authority().head,
        holder.store().get("gpu-01"),
        holder.current(".").resolve(),
    )
    assert len(holder.agreed) == agreed


def test_a_dry_run_of_a_refresh_changes_nothing(holder: Bench) -> None:
    onboarded(holder)
    with_lists(holder)
    head = holder.authority().head
    outcome = refresh("gpu-01", holder.desk(dry_run=True))

    assert "revocation list" in outcome.steps[0]
    assert (holder.authority().head, holder.current(".").resolve().name) == (head, "1")


def test_a_list_lower_than_the_nodes_is_refused_by_refresh_and_by_renewal(holder: Bench) -> None:
    onboarded(holder)
    with_lists(holder)
    refresh("gpu-01", holder.desk())
    held = holder.current("crl.pem").read_bytes()
    newer = with_lists(holder)
    holder.current("crl.pem").write_bytes(holder.authority().due_list(datetime.now(UTC))[1])
    # The folder of before, as from an old backup.
    audit = holder.folder / "ca" / "audit.jsonl"
    lines = audit.read_bytes().splitlines(keepends=True)
    audit.write_bytes(b"".join(lines[:-2]))
    (holder.folder / "ca" / "index.db").unlink(missing_ok=True)
    for file in (holder.folder / "ca" / "crls").iterdir():
        file.unlink()
    slot = holder.authority().lists
    assert slot is not None
    holder.authority().list_file(slot.due(datetime.now(UTC))).write_bytes(held)

    for attempt in (refresh, renew):
        with pytest.raises(Refused, match=f"it has list {newer}, and ours is"):
            attempt("gpu-01", holder.desk())
    assert list_number(holder) == newer


def test_a_list_that_has_ended_is_brought_to_nobody(holder: Bench) -> None:
    onboarded(holder)
    with_lists(holder, days=1)
    desk = holder.desk(clock=lambda: datetime.now(UTC) + timedelta(days=2))

    with pytest.raises(Refused, match="it ended at"):
        refresh("gpu-01", desk)


def test_a_failed_check_or_reload_leaves_the_node_as_it_was(holder: Bench) -> None:
    onboarded(holder)
    with_lists(holder)
    flag = holder.folder / "reloads"
    for install in (
        {"check_command": "echo no such key; exit 3"},
        {"reload_command": f"echo x >> {flag}; test $(wc -l < {flag}) -gt 1"},
    ):
        policy_with(holder, **install)
        with pytest.raises(OtherSide, match="keeps what it had"):
            refresh("gpu-01", holder.desk())
        assert [folder.name for folder in (holder.install_dir / "generations").iterdir()] == ["1"]
        assert holder.current(".").resolve().name == "1"
    assert flag.read_text() == "x\nx\n"
    policy_with(holder)
    assert refresh("gpu-01", holder.desk()).changed


def test_a_node_with_another_certificate_than_ours_is_not_refreshed(holder: Bench) -> None:
    onboarded(holder)
    with_lists(holder)
    holder.current("chain.pem").write_bytes(holder.current("bundle.pem").read_bytes())

    with pytest.raises(Refused, match="in force"):
        refresh("gpu-01", holder.desk())


def test_refresh_without_names_chooses_the_nodes_that_hold_an_older_list(holder: Bench) -> None:
    onboarded(holder)
    assert holding_older(holder.desk()) == ()
    with_lists(holder)
    assert holding_older(holder.desk()) == ("gpu-01",)
    refresh("gpu-01", holder.desk())
    assert holding_older(holder.desk()) == ()


def test_expiring_chooses_those_whose_certificate_ends_within_that_time(holder: Bench) -> None:
    onboarded(holder)
    desk = holder.desk()

    assert expiring(desk, (), within=timedelta(days=29)) == ()
    assert expiring(desk, (), within=timedelta(days=31)) == ("gpu-01",)
    assert expiring(desk, ("gpu-01",), within=timedelta(days=29)) == ()
    assert expiring(desk, ("gpu-02",), within=timedelta(days=29)) == ("gpu-02",)
    decommission("gpu-01", holder.desk())
    assert expiring(holder.desk(), (), within=timedelta(days=31)) == ()


def test_a_node_that_lets_nobody_in_when_its_identity_ends_is_wiped_later_by_the_same_command(
    holder: Bench,
) -> None:
    onboarded(holder)
    allowed = holder.server.authorized_keys.read_text()
    holder.server.authorized_keys.write_text("")
    try:
        assert decommission("gpu-01", holder.desk())
        assert holder.authority().records("gpu-01")[0].standing is Standing.REVOKED
        assert holder.current("key.pem").exists()
        with pytest.raises(OtherSide):
            decommission("gpu-01", holder.desk())
    finally:
        holder.server.authorized_keys.write_text(allowed)

    assert decommission("gpu-01", holder.desk())
    assert not list(holder.install_dir.rglob("key.pem"))
    assert "was wiped" in holder.store().history("gpu-01")[-1].why
    assert not decommission("gpu-01", holder.desk())
