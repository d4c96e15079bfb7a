import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ca.authority import Authority
from ca.record import Standing
from inventory.agent_config import AgentConfig, AgentFabric
from inventory.document import dump, load
from inventory.errors import OtherSide, Refused
from inventory.model import Address, State
from onboard.refresh import refresh
from onboard.renewal import renew
from onboard.service import onboard
from tests.onboard.kit import CHEAP, PASSPHRASE, Bench, bench, openssl, policy_text
from tests.onboard.upkeep_kit import onboarded, policy_with, verifying, with_lists
from tests.ports import free_port
from tests.sshd import Sshd, keygen, sshd


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def holder(tmp_path: Path, server: Sshd) -> Bench:
    return bench(tmp_path, server)


def test_a_renewed_node_has_a_new_key_for_the_same_names_and_the_former_certificate_ends(
    holder: Bench,
) -> None:
    before = onboarded(holder)
    number = with_lists(holder)
    former_key = holder.current("key.pem").read_bytes()
    outcome = renew("gpu-01", holder.desk())

    first, second = holder.authority().records("gpu-01")
    assert holder.current("key.pem").read_bytes() != former_key
    assert (first.names, first.addresses, first.vm_uuid) == (second.names, second.addresses, second.vm_uuid)
    assert (first.standing, second.standing) == (Standing.REVOKED, Standing.INSTALLED)
    assert first.why == f"superseded by {second.serial}"
    assert outcome.held is not None
    assert outcome.held.serial == second.serial
    assert holder.agreed == ["gpu-01", "gpu-01"]
    chain, bundle, crl = (holder.current(name) for name in ("chain.pem", "bundle.pem", "crl.pem"))
    assert "OK" in openssl(
        "verify", "-x509_strict", "-crl_check", "-CRLfile", crl, "-CAfile", bundle, "-untrusted", chain, chain
    )
    assert load(holder.current("agent.yaml"), AgentConfig).identity.crl_file == crl
    node = holder.store().get("gpu-01")
    assert node is not None
    assert node.state is State.IN_SERVICE
    event = holder.store().history("gpu-01")[-1]
    assert (event.before, event.after) == (State.IN_SERVICE, State.IN_SERVICE)
    assert event.why.startswith(f"renewed: certificate {second.serial}")
    told = json.loads((node.receipt or "").partition("\n")[0])
    assert (told["serial"], told["ticket_id"]) == (second.serial, "ab12")
    assert node.ticket == before.ticket
    assert not [
        each for each in holder.authority().holding_older_crl(datetime.now(UTC)) if each.number != number
    ]


def test_who_the_node_is_comes_from_the_ledger_whatever_the_record_says(holder: Bench) -> None:
    node = onboarded(holder)
    mallory = keygen(holder.folder / "mallory").with_suffix(".pub").read_text()
    key = type(node.host_keys[0]).from_line(mallory)
    holder.store().save(
        replace(
            node,
            host_keys=(key,),
            ssh_port=free_port(),
            address=Address("127.0.0.9", None, "static"),
            ticket="nonsense",
            receipt="nonsense",
        )
    )

    renew("gpu-01", holder.desk())
    assert holder.authority().records("gpu-01")[-1].host_keys == (holder.server.host_key,)


def test_a_node_with_another_host_key_is_not_renewed(tmp_path: Path) -> None:
    with sshd(tmp_path / "first") as first:
        holder = bench(tmp_path, first)
        onboarded(holder)
    same_place = f"ListenAddress 127.0.0.1:{first.port}"
    with sshd(tmp_path / "second", options=same_place), pytest.raises(OtherSide, match="not the machine"):
        renew("gpu-01", holder.desk())

    assert len(holder.authority().records("gpu-01")) == 1


def test_a_node_can_be_renewed_when_its_certificate_has_ended(holder: Bench) -> None:
    aged(holder)
    outcome = renew("gpu-01", holder.desk())

    assert any("ended at" in warning for warning in outcome.warnings)
    assert holder.authority().records("gpu-01")[-1].standing is Standing.INSTALLED
    fabrics = load(holder.current("agent.yaml"), AgentConfig).fabrics
    assert [fabric.name for fabric in fabrics] == ["fabric0"]


def test_renewing_again_makes_another_key_once_the_first_renewal_has_ended(holder: Bench) -> None:
    onboarded(holder)
    first = renew("gpu-01", holder.desk()).held
    second = renew("gpu-01", holder.desk()).held

    assert first is not None
    assert second is not None
    assert first.serial != second.serial
    live = [each for each in holder.authority().records("gpu-01") if each.live(datetime.now(UTC))]
    assert [each.serial for each in live] == [second.serial]


def test_a_dry_run_of_a_renewal_shows_the_steps_and_changes_nothing(holder: Bench) -> None:
    onboarded(holder)
    before = (holder.authority().head, holder.current("key.pem").read_bytes(), holder.store().get("gpu-01"))
    outcome = renew("gpu-01", holder.desk(dry_run=True))

    assert [step.split()[0] for step in outcome.steps] == ["have", "sign", "install"]
    assert before == (
        holder.authority().head,
        holder.current("key.pem").read_bytes(),
        holder.store().get("gpu-01"),
    )


def test_what_the_policy_grants_no_more_is_not_renewed(holder: Bench) -> None:
    onboarded(holder)
    holder.set_policy(names='["{node}.other.lab.example"]')

    with pytest.raises(Refused, match="none of the names"):
        renew("gpu-01", holder.desk())


def test_a_node_that_was_never_onboarded_or_was_revoked_is_not_renewed(holder: Bench) -> None:
    with pytest.raises(Refused, match="no certificate was installed"):
        renew("gpu-01", holder.desk())
    onboarded(holder)
    authority = holder.authority()
    for record in authority.records("gpu-01"):
        authority.revoke(record.serial, reason="key-compromise", now=datetime.now(UTC), actor="holder")

    with pytest.raises(Refused, match="revoked"):
        renew("gpu-01", holder.desk())


def test_a_certificate_that_node_ca_issued_pins_no_machine_and_is_not_renewed_here(holder: Bench) -> None:
    authority, now = holder.authority(), datetime.now(UTC)
    issued = authority.issue(
        request(holder),
        node="gpu-01",
        vm_uuid=None,
        static_address=None,
        signer=authority.unlock(PASSPHRASE),
        now=now,
        actor="holder",
    )
    authority.installed(issued.serial, now=now, actor="holder")

    with pytest.raises(Refused, match="no machine is pinned"):
        renew("gpu-01", holder.desk())


def test_a_node_that_does_not_take_its_new_identity_keeps_the_former_one(holder: Bench) -> None:
    onboarded(holder)
    former = holder.current("chain.pem").read_bytes()
    policy_with(holder, check_command="echo bad config; exit 7")
    with pytest.raises(OtherSide, match="keeps the former one"):
        renew("gpu-01", holder.desk())

    first, second = holder.authority().records("gpu-01")
    assert (first.standing, second.standing) == (Standing.INSTALLED, Standing.REVOKED)
    assert holder.current("chain.pem").read_bytes() == former
    node = holder.store().get("gpu-01")
    assert node is not None
    assert node.state is State.IN_SERVICE
    assert holder.store().history("gpu-01")[-1].why.startswith("not renewed: ")
    policy_with(holder)
    assert renew("gpu-01", holder.desk()).changed


def test_a_renewal_that_verifies_ends_the_former_certificate_and_keeps_the_node_in_service(
    holder: Bench,
) -> None:
    onboarded(holder)
    outcome = renew("gpu-01", verifying(holder.desk()))

    assert outcome.report is not None
    assert outcome.report.ok, outcome.report.error
    assert outcome.state is State.IN_SERVICE
    first, second = holder.authority().records("gpu-01")
    assert (first.standing, second.standing) == (Standing.REVOKED, Standing.INSTALLED)
    assert '"kind":"verified"' in (holder.folder / "ca/receipts/gpu-01.receipt").read_text()


def test_where_the_new_identity_does_not_verify_the_former_one_comes_back(holder: Bench) -> None:
    onboarded(holder)
    former_key = holder.current("key.pem").read_bytes()
    flag, bundle = holder.folder / "spoilt", holder.current("bundle.pem")
    policy_with(holder, reload_command=f"test -e {flag} || : > {bundle}; touch {flag}")
    outcome = renew("gpu-01", verifying(holder.desk()))

    assert outcome.report is not None
    assert not outcome.report.ok
    first, second = holder.authority().records("gpu-01")
    assert (first.standing, second.standing) == (Standing.INSTALLED, Standing.REVOKED)
    assert (second.why or "").startswith("not verified: ")
    assert holder.current("key.pem").read_bytes() == former_key
    keys = {file.read_bytes() for file in holder.install_dir.glob("generations/*/key.pem")}
    assert keys == {former_key}
    node = holder.store().get("gpu-01")
    assert node is not None
    assert node.state is State.IN_SERVICE, node.reason
    assert first.serial in (node.receipt or "")
    assert any("did not verify" in event.why for event in holder.store().history("gpu-01"))


def test_a_renewal_that_could_not_be_verified_is_ended_by_the_same_command(holder: Bench) -> None:
    onboarded(holder)
    outcome = renew("gpu-01", verifying(holder.desk(), port=free_port()))

    assert outcome.report is not None
    assert outcome.report.findings is None
    assert [each.standing for each in holder.authority().records("gpu-01")] == [Standing.INSTALLED] * 2
    with pytest.raises(Refused, match="renewal has not come to its end"):
        refresh("gpu-01", holder.desk())
    agreed = len(holder.agreed)
    again = renew("gpu-01", holder.desk())
    assert again.held == outcome.held
    standings = [each.standing for each in holder.authority().records("gpu-01")]
    assert standings == [Standing.REVOKED, Standing.INSTALLED]
    assert len(holder.agreed) == agreed


def aged(holder: Bench) -> None:
    """A node that got its identity three days ago for one day, and has it still."""
    for folder in (holder.folder / "ca", holder.folder / "fresh"):
        subprocess.run(["rm", "-rf", str(folder)], check=True, timeout=600)
    policy, then = holder.folder / "policy.yaml", datetime.now(UTC) - timedelta(days=3)
    policy.write_text(policy_text(holder, lifetime_days="1"))
    made = Authority.create(
        holder.folder / "ca", policy_file=policy, passphrase=PASSPHRASE, now=then, kdf=CHEAP
    )
    ticket = holder.ticket()
    issued = made.issue(
        request(holder),
        node="gpu-01",
        vm_uuid=ticket.vm_uuid,
        static_address=None,
        signer=made.unlock(PASSPHRASE),
        now=then,
        actor="holder",
        ticket_id=ticket.id,
        host_keys=ticket.host_keys,
        machine_id=ticket.machine_id,
        pin={"address": ticket.address.ip, "ssh_port": ticket.ssh_port, "user": ticket.user},
    )
    made.installed(issued.serial, now=then, actor="holder")
    generation = holder.install_dir / "generations" / "1"
    generation.mkdir(parents=True)
    (holder.install_dir / "current").symlink_to("generations/1")
    (holder.folder / "old.key").replace(generation / "key.pem")
    (generation / "chain.pem").write_bytes(issued.chain_pem)
    (generation / "bundle.pem").write_bytes(made.bundle_pem)
    (generation / "agent.yaml").write_text(agent_yaml(holder))
    holder.set_policy()


def agent_yaml(holder: Bench) -> str:
    """With one fabric, whose interface is there on every machine."""
    here = holder.install_dir / "current"
    identity = {"cert_file": here / "chain.pem", "key_file": here / "key.pem", "ca_file": here / "bundle.pem"}
    plain = AgentConfig.model_validate({"node": "gpu-01", "identity": identity})
    return dump(plain.model_copy(update={"fabrics": (AgentFabric(name="fabric0", interface="lo"),)}))


def request(holder: Bench) -> bytes:
    """A CSR; its key is old.key."""
    key, csr = holder.folder / "old.key", holder.folder / "old.csr"
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key)
    openssl("req", "-new", "-sha256", "-key", key, "-subj", "/CN=gpu-01", "-out", csr)
    return csr.read_bytes()


def test_a_rebuilt_vm_takes_over_its_name_and_what_ends_is_shown_and_on_record(holder: Bench) -> None:
    node = onboarded(holder)
    shown: list[str] = []
    rebuilt = holder.signed(id="ee01", vm_uuid="0e1a2b3c-0000-4000-8000-0000000000ff")
    with pytest.raises(Refused, match="the name is held by VM"):
        onboard(rebuilt, holder.desk())
    former = holder.authority().records("gpu-01")[0]

    desk = replace(holder.desk(), replace=True, show=lambda _name, told: shown.extend(told.lines))
    onboard(rebuilt, desk)
    text = next(line for line in shown if "replaced:" in line)
    assert former.serial in text
    assert str(former.vm_uuid) in text
    assert node.host_keys[0].fingerprint in text
    standings = [each.standing for each in holder.authority().records("gpu-01")]
    assert standings == [Standing.REVOKED, Standing.INSTALLED]
    assert any(
        f"certificate {former.serial} of VM" in event.why for event in holder.store().history("gpu-01")
    )
