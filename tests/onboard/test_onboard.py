import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ca.record import Standing
from inventory.agent_config import AgentConfig
from inventory.document import load
from inventory.errors import BadInput, OtherSide, Refused
from inventory.files import lock
from inventory.model import HostKey, State
from inventory.ticket import RECEIPT_NAMESPACE, read_receipt, sign_ticket
from onboard.enroll import RolledBack
from onboard.farewell import decommission
from onboard.service import onboard, ticket_of
from onboard.terminal import agreement
from tests.onboard.kit import Bench, bench, openssl
from tests.ports import free_port
from tests.sshd import Sshd, keygen, sshd

_KILL_THE_SCRIPT = (
    'p=$PPID; until grep -q sshd /proc/$p/comm; do up=$(cut -d" " -f4 /proc/$p/stat); kill -9 $p; p=$up; done'
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def holder(tmp_path: Path, server: Sshd) -> Bench:
    return bench(tmp_path, server)


def test_a_node_gets_its_identity_and_the_record_and_the_receipt_say_so(holder: Bench) -> None:
    outcome = onboard(holder.signed(), holder.desk())

    assert outcome.changed
    assert outcome.held is not None
    node = holder.store().get("gpu-01")
    assert node is not None
    assert node.state is State.AWAITING_VERIFICATION
    (record,) = holder.authority().records("gpu-01")
    assert record.standing is Standing.INSTALLED
    assert record.serial == outcome.held.serial
    assert holder.agreed == ["gpu-01"]
    assert holder.unlocked == 1


def test_openssl_on_the_node_agrees_with_what_was_installed(holder: Bench) -> None:
    onboard(holder.signed(), holder.desk())
    chain, bundle, key = (holder.current(name) for name in ("chain.pem", "bundle.pem", "key.pem"))

    assert "OK" in openssl("verify", "-x509_strict", "-CAfile", bundle, "-untrusted", chain, chain)
    shown = openssl("x509", "-in", chain, "-noout", "-ext", "subjectAltName")
    assert "URI:spiffe://lab.example/node/gpu-01" in shown
    assert "DNS:gpu-01.nodes.lab.example" in shown
    assert openssl("x509", "-in", chain, "-noout", "-pubkey") == openssl("pkey", "-in", key, "-pubout")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(holder.current(".").resolve().stat().st_mode) == 0o750


def test_the_agents_config_on_the_node_loads_through_our_own_loader(holder: Bench) -> None:
    onboard(holder.signed(), holder.desk())
    config = load(holder.current("agent.yaml"), AgentConfig)

    assert config.node == "gpu-01"
    assert config.identity.key_file == holder.install_dir / "current" / "key.pem"
    assert config.identity.key_file.read_text().startswith("-----BEGIN PRIVATE KEY-----")


def test_the_private_key_is_nowhere_but_on_the_node(holder: Bench) -> None:
    onboard(holder.signed(), holder.desk())
    secret = holder.current("key.pem").read_bytes().splitlines()[1]
    ours = [file for file in holder.folder.rglob("*") if file.is_file() and "node" not in file.parts[-4:-1]]

    assert not [
        file for file in ours if holder.install_dir not in file.parents and secret in file.read_bytes()
    ]


def test_running_it_again_changes_nothing_and_asks_nobody(holder: Bench) -> None:
    text = holder.signed()
    onboard(text, holder.desk())
    before = (holder.current("chain.pem").read_bytes(), holder.authority().head, holder.store().get("gpu-01"))
    again = onboard(text, holder.desk())

    assert not again.changed
    assert (
        holder.current("chain.pem").read_bytes(),
        holder.authority().head,
        holder.store().get("gpu-01"),
    ) == before
    assert holder.agreed == ["gpu-01"]


def test_running_it_again_after_the_tickets_end_still_finds_all_well(holder: Bench) -> None:
    text = holder.signed()
    onboard(text, holder.desk())

    assert not onboard(text, holder.desk(clock=lambda: datetime.now(UTC) + timedelta(days=2))).changed


def test_a_dry_run_shows_the_steps_and_changes_nothing(holder: Bench) -> None:
    head = holder.authority().head
    outcome = onboard(holder.signed(), holder.desk(dry_run=True))

    assert [step.split()[0] for step in outcome.steps] == ["have", "sign", "install"]
    assert not holder.install_dir.exists()
    assert holder.authority().head == head
    assert holder.store().get("gpu-01") is None
    assert holder.agreed == []


def test_the_receipt_is_signed_by_the_holder_and_pins_the_node(holder: Bench) -> None:
    onboard(holder.signed(), holder.desk())
    kind, blob = holder.server.login_key.with_suffix(".pub").read_text().split()[:2]
    signers = holder.folder / "receipt_signers"
    signers.write_text(f'holder namespaces="{RECEIPT_NAMESPACE}" {kind} {blob}\n')
    text = (holder.folder / "ca" / "receipts" / "gpu-01.receipt").read_text()
    receipt, principal = read_receipt(text, signers=signers)

    assert principal == "holder"
    assert receipt.host_keys == (holder.server.host_key,)
    assert receipt.serial == holder.authority().records("gpu-01")[0].serial
    node = holder.store().get("gpu-01")
    assert node is not None
    assert node.receipt == text


def test_a_holder_who_does_not_agree_is_asked_for_no_passphrase_and_nothing_happens(holder: Bench) -> None:
    desk = holder.desk()

    def disagree(name: str) -> None:
        raise Refused(f"{name} was not onboarded", why="no", next_step="none")

    object.__setattr__(desk, "agree", disagree)
    with pytest.raises(Refused):
        onboard(holder.signed(), desk)

    assert holder.unlocked == 0
    assert not holder.install_dir.exists()
    assert holder.authority().records("gpu-01") == ()
    node = holder.store().get("gpu-01")
    assert node is not None
    assert node.state is State.AWAITING_IDENTITY


def test_a_ticket_of_an_unknown_signer_reaches_no_node(holder: Bench) -> None:
    mallory = keygen(holder.folder / "mallory")
    closed = free_port()
    text = sign_ticket(holder.ticket(ssh_port=closed), key_file=mallory)

    with pytest.raises(Refused, match="not believed"):
        onboard(text, holder.desk())
    assert holder.store().get("gpu-01") is None


def test_one_changed_byte_of_a_ticket_is_refused(holder: Bench) -> None:
    text = holder.signed().replace('"vmid":5000', '"vmid":5001')

    with pytest.raises(Refused, match="does not hold"):
        onboard(text, holder.desk())


def test_a_node_with_another_host_key_is_refused_before_anything_is_signed(holder: Bench) -> None:
    other = HostKey.from_line(keygen(holder.folder / "other").with_suffix(".pub").read_text())
    with pytest.raises(OtherSide, match="not the machine it should be"):
        onboard(holder.signed(host_keys=(other,)), holder.desk())

    assert holder.authority().records("gpu-01") == ()


def test_a_machine_with_another_machine_id_is_refused(holder: Bench) -> None:
    with pytest.raises(Refused, match="machine-id"):
        onboard(holder.signed(machine_id="cd" * 16), holder.desk())


def test_a_name_or_address_that_policy_does_not_grant_is_refused_before_the_node_is_reached(
    holder: Bench,
) -> None:
    holder.set_policy(nodes='["cpu-[1-4]"]')

    with pytest.raises(Refused, match="do not include 'gpu-01'"):
        onboard(holder.signed(ssh_port=free_port()), holder.desk())


def test_a_policy_without_ticket_signers_onboards_nobody(holder: Bench) -> None:
    holder.set_policy(ticket_signers="null")

    with pytest.raises(Refused, match="names no ticket_signers"):
        onboard(holder.signed(), holder.desk())


def test_a_failed_check_on_the_node_wipes_the_key_and_revokes_the_certificate(holder: Bench) -> None:
    holder.set_policy(install=_with(holder, "check_command: 'echo bad config; exit 7'"))
    with pytest.raises(RolledBack, match="check_command: bad config"):
        onboard(holder.signed(), holder.desk())

    (record,) = holder.authority().records("gpu-01")
    assert record.standing is Standing.REVOKED
    assert not list((holder.install_dir / "generations").iterdir())
    assert not holder.current(".").exists()
    node = holder.store().get("gpu-01")
    assert node is not None
    assert (node.state, "bad config" in (node.reason or "")) == (State.ONBOARD_FAILED, True)


def test_a_failed_reload_puts_the_former_identity_back_in_force(holder: Bench) -> None:
    onboard(holder.signed(id="aa01"), holder.desk())
    former = holder.current("chain.pem").read_bytes()
    flag = holder.folder / "reloads"
    reload = f"'echo x >> {flag}; test $(wc -l < {flag}) -gt 1'"
    holder.set_policy(install=_with(holder, f"reload_command: {reload}"))
    with pytest.raises(RolledBack, match="reload_command"):
        onboard(holder.signed(id="aa02"), holder.desk())

    assert holder.current("chain.pem").read_bytes() == former
    assert flag.read_text() == "x\nx\n"
    first, second = sorted(holder.authority().records("gpu-01"), key=lambda record: record.at)
    assert (first.standing, second.standing) == (Standing.INSTALLED, Standing.REVOKED)


def test_a_new_ticket_brings_a_new_identity_and_ends_the_former_one(holder: Bench) -> None:
    onboard(holder.signed(id="aa01"), holder.desk())
    former = holder.current("key.pem").read_bytes()
    onboard(holder.signed(id="aa02"), holder.desk())

    assert holder.current("key.pem").read_bytes() != former
    standings = {record.ticket_id: record.standing for record in holder.authority().records("gpu-01")}
    assert standings == {"aa01": Standing.REVOKED, "aa02": Standing.INSTALLED}


def test_a_run_that_lost_its_node_midway_goes_on_with_the_same_key_and_certificate(holder: Bench) -> None:
    holder.set_policy(install=_with(holder, f"check_command: '{_KILL_THE_SCRIPT}'"))
    text = holder.signed(expires=datetime.now(UTC) + timedelta(minutes=30))
    with pytest.raises(OtherSide):
        onboard(text, holder.desk())
    (begun,) = holder.authority().records("gpu-01")
    assert begun.standing is Standing.ISSUED

    # By now the ticket has expired; it was carried out in part, so it is carried out whole.
    holder.set_policy(max_clock_skew_s="3600")
    outcome = onboard(text, holder.desk(clock=lambda: datetime.now(UTC) + timedelta(minutes=59)))

    (record,) = holder.authority().records("gpu-01")
    assert outcome.changed
    assert (record.serial, record.standing) == (begun.serial, Standing.INSTALLED)
    assert holder.unlocked == 1


def test_a_ticket_is_used_once(holder: Bench) -> None:
    text = holder.signed()
    onboard(text, holder.desk())
    subprocess.run(["rm", "-rf", str(holder.install_dir)], check=True, timeout=600)

    with pytest.raises(Refused, match="lost its identity"):
        onboard(text, holder.desk())


def test_a_second_holder_waits_for_nobody_and_is_told_who_is_at_work(holder: Bench) -> None:
    with (
        lock(holder.folder / "ca" / ".onboarding-gpu-01.lock", timeout_s=1),
        pytest.raises(Refused, match=f"process {os.getpid()}"),
    ):
        onboard(holder.signed(), holder.desk())


def test_from_a_shared_record_only_the_tickets_bytes_are_taken(holder: Bench) -> None:
    text = holder.signed()
    onboard(text, holder.desk())

    assert ticket_of(holder.store(), "gpu-01") == text
    with pytest.raises(BadInput, match="not on record"):
        ticket_of(holder.store(), "gpu-02")


def test_the_name_is_typed_on_the_terminal_itself() -> None:
    for typed, accepted in ((b"gpu-01\n", True), (b"gpu-02\n", False), (b"y\n", False)):
        ours, theirs = os.openpty()
        try:
            answer = threading.Thread(target=_answer, args=(ours, typed))
            answer.start()
            terminal = Path(os.ttyname(theirs))
            if accepted:
                agreement("gpu-01", yes=False, unattended=True, no_input=False, terminal=terminal)
            else:
                with pytest.raises(Refused, match="not its name"):
                    agreement("gpu-01", yes=False, unattended=True, no_input=False, terminal=terminal)
            answer.join(timeout=600)
        finally:
            os.close(ours)
            os.close(theirs)


def _answer(terminal: int, typed: bytes) -> None:
    """Type only once there is a question: what was typed before counts for nothing."""
    shown = b""
    while not shown.endswith(b"[gpu-01]: "):
        shown += os.read(terminal, 200)
    os.write(terminal, typed)


def test_yes_stands_for_a_person_only_where_the_policy_says_unattended(tmp_path: Path) -> None:
    agreement("gpu-01", yes=True, unattended=True, no_input=True)
    with pytest.raises(Refused, match="unattended"):
        agreement("gpu-01", yes=True, unattended=False, no_input=True)
    with pytest.raises(BadInput, match="no terminal"):
        agreement("gpu-01", yes=False, unattended=True, no_input=False, terminal=tmp_path / "none")
    with pytest.raises(BadInput, match="--no-input"):
        agreement("gpu-01", yes=False, unattended=True, no_input=True)


def _with(holder: Bench, more: str) -> str:
    plain = next(
        line
        for line in (holder.folder / "ca" / "policy.yaml").read_text().splitlines()
        if line.startswith("install:")
    )
    return plain.removeprefix("install: ").removesuffix("}") + f", {more}}}"


def test_a_decommissioned_node_has_no_key_no_certificate_and_a_receipt_that_says_so(holder: Bench) -> None:
    onboard(holder.signed(), holder.desk())
    ended = decommission("gpu-01", holder.desk())

    assert ended
    assert not list(holder.install_dir.rglob("*.pem"))
    assert not holder.current(".").is_symlink()
    (record,) = holder.authority().records("gpu-01")
    assert (record.standing, record.why) == (Standing.REVOKED, "cessation-of-operation")
    node = holder.store().get("gpu-01")
    assert node is not None
    assert node.state is State.AWAITING_RETIREMENT
    assert '"kind":"decommissioned"' in (node.receipt or "")
    assert not decommission("gpu-01", holder.desk())
    assert holder.agreed == ["gpu-01", "gpu-01"]


def test_a_node_out_of_reach_is_revoked_all_the_same(tmp_path: Path) -> None:
    with sshd(tmp_path / "gone") as server:
        holder = bench(tmp_path, server)
        onboard(holder.signed(), holder.desk())

    assert decommission("gpu-01", holder.desk())
    (record,) = holder.authority().records("gpu-01")
    assert record.standing is Standing.REVOKED
    history = holder.store().history("gpu-01")
    assert "could not be wiped" in history[-1].why
    assert history[-1].after is State.AWAITING_RETIREMENT


def test_a_node_that_was_never_onboarded_has_no_identity_to_end(holder: Bench) -> None:
    with pytest.raises(BadInput, match="no receipt of gpu-01"):
        decommission("gpu-01", holder.desk())


def test_a_dry_run_of_the_end_changes_nothing(holder: Bench) -> None:
    onboard(holder.signed(), holder.desk())
    before = (holder.authority().head, holder.store().get("gpu-01"))

    assert decommission("gpu-01", holder.desk(dry_run=True))
    assert (holder.authority().head, holder.store().get("gpu-01")) == before
    assert holder.current("key.pem").exists()
