"""Which tickets onboard-node takes: not a void one, not an older one, not a revoked signer's, none for this host."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from inventory.errors import BadInput, Refused
from inventory.model import Node, State
from inventory.ticket import sign_ticket
from onboard.service import onboard
from tests.onboard.kit import Bench, bench
from tests.sshd import Sshd, keygen, sshd


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def holder(tmp_path: Path, server: Sshd) -> Bench:
    return bench(tmp_path, server)


def test_a_ticket_that_a_later_one_replaced_is_refused_by_the_authority(holder: Bench) -> None:
    former = holder.signed(id="aa")
    onboard(holder.signed(id="bb", supersedes=("aa",)), holder.desk())

    with pytest.raises(Refused, match="ticket bb was issued in its place"):
        onboard(former, holder.desk())
    assert holder.agreed == ["gpu-01"]


def test_the_later_ticket_still_finds_its_work_done(holder: Bench) -> None:
    text = holder.signed(id="bb", supersedes=("aa",))
    onboard(text, holder.desk())

    assert not onboard(text, holder.desk()).changed


@pytest.mark.parametrize("how", ["named", "later"])
def test_a_file_is_refused_where_the_record_has_a_later_ticket(holder: Bench, how: str) -> None:
    now = datetime.now(UTC)
    later = holder.signed(id="bb", made_at=now, supersedes=("aa",) if how == "named" else ())
    holder.store().add(Node("gpu-01", State.AWAITING_IDENTITY, ticket=later), why="infra made it")
    earlier = holder.signed(id="aa", made_at=now if how == "named" else now - timedelta(minutes=1))

    with pytest.raises(Refused, match="not its newest"):
        onboard(earlier, holder.desk(dry_run=True))
    assert onboard(later, holder.desk(dry_run=True)).steps


def test_a_ticket_on_record_that_nobody_vouches_for_stops_no_one(holder: Bench, tmp_path: Path) -> None:
    later = sign_ticket(
        holder.ticket(id="bb", made_at=datetime.now(UTC) + timedelta(minutes=1), supersedes=("aa",)),
        key_file=keygen(tmp_path / "mallory"),
    )
    holder.store().add(Node("gpu-01", State.AWAITING_IDENTITY, ticket=later), why="somebody wrote it")

    assert onboard(holder.signed(id="aa"), holder.desk(dry_run=True)).steps


def test_a_ticket_by_a_revoked_key_is_refused(holder: Bench) -> None:
    revoked = holder.folder / "revoked"
    holder.set_policy(ticket_revoked_keys=str(revoked))
    with pytest.raises(BadInput, match="revoked keys"):
        onboard(holder.signed(), holder.desk(dry_run=True))
    revoked.write_text("")
    assert onboard(holder.signed(), holder.desk(dry_run=True)).steps
    revoked.write_text(holder.infra.with_suffix(".pub").read_text())
    with pytest.raises(Refused, match="the key of infra@lab is revoked"):
        onboard(holder.signed(), holder.desk(dry_run=True))


def test_a_ticket_that_leads_to_this_very_host_is_not_followed(holder: Bench) -> None:
    holder.set_policy(addresses="[10.0.0.0/8]")
    with pytest.raises(Refused, match="which is this host itself"):
        onboard(holder.signed(), holder.desk())

    assert holder.store().get("gpu-01") is None


def test_several_ticket_files_are_taken_and_each_is_answered(holder: Bench) -> None:
    good, bad = holder.folder / "good.ticket", holder.folder / "bad.ticket"
    good.write_text(holder.signed())
    bad.write_text(holder.signed().replace("gpu-01", "gpu-02"))
    command = [
        sys.executable, "-c", "from onboard.cli import main; main()", "--ticket", str(bad), "--ticket", str(good),
        "--ca-dir", str(holder.folder / "ca"), "--ssh-key", str(holder.server.login_key), "--dry-run", "--json",
        "--inventory", f"sqlite:///{holder.folder / 'record.db'}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)

    assert done.returncode == 3, done.stderr
    assert [each["ok"] for each in json.loads(done.stdout)["nodes"]] == [False, True]
