import json
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from inventory.errors import BadInput, Refused
from inventory.model import Address, HostKey
from inventory.signature import canonical, fingerprint, sign
from inventory.ticket import (
    RECEIPT_NAMESPACE,
    TICKET_NAMESPACE,
    Receipt,
    Ticket,
    peek_ticket,
    read_receipt,
    read_ticket,
    sign_receipt,
    sign_ticket,
)

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
KEY = HostKey("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIN0vJAn+qf44X7TfV4Xj8QW/1U1bQqBFTBFdo/rCnrY5")


def ticket() -> Ticket:
    return Ticket(
        id="ab12",
        node="gpu-01",
        site="pve.example",
        vmid=5000,
        proxmox_node="pve1",
        vm_uuid="0e1a2b3c-0000-4000-8000-000000000001",
        machine_id="ab" * 16,
        macs=("bc:24:11:00:00:01",),
        address=Address("127.20.0.5", 24, "static"),
        ssh_port=22,
        host_keys=(KEY,),
        user="muster",
        fabrics=(),
        profile_hash="00ff",
        made_by="infra@lab",
        made_at=NOW,
        expires=NOW + timedelta(hours=72),
        nonce="cc",
    )


def receipt() -> Receipt:
    return Receipt(
        kind="onboarded",
        node="gpu-01",
        vm_uuid="0e1a2b3c-0000-4000-8000-000000000001",
        ticket_id="ab12",
        serial="0a",
        spiffe_id="spiffe://lab.example/node/gpu-01",
        not_after=NOW + timedelta(days=30),
        host_keys=(KEY,),
        address=Address("127.20.0.5", 24, "static"),
        ssh_port=22,
        user="muster",
        ca_fingerprint="ff",
        install_dir="/etc/muster",
        owner="muster",
        made_by="holder@lab",
        made_at=NOW,
    )


def keygen(folder: Path, name: str) -> Path:
    key = folder / name
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{name}@lab", "-f", str(key)]
    subprocess.run(command, check=True, timeout=30)
    return key


@pytest.fixture
def infra(tmp_path: Path) -> Path:
    return keygen(tmp_path, "infra")


@pytest.fixture
def signers(tmp_path: Path, infra: Path) -> Path:
    file = tmp_path / "allowed_signers"
    kind, blob = infra.with_suffix(".pub").read_text().split()[:2]
    file.write_text(f'operator@lab namespaces="{TICKET_NAMESPACE},{RECEIPT_NAMESPACE}" {kind} {blob}\n')
    return file


def test_a_signed_ticket_is_read_back_with_its_signers_principal(infra: Path, signers: Path) -> None:
    believed = read_ticket(sign_ticket(ticket(), key_file=infra), signers=signers, now=NOW)

    assert believed.ticket == ticket()
    assert believed.signer == "operator@lab"


def test_both_screens_show_the_same_short_fingerprint(infra: Path, signers: Path) -> None:
    text = sign_ticket(ticket(), key_file=infra)

    assert read_ticket(text, signers=signers, now=NOW).fingerprint == fingerprint(text)
    assert len(fingerprint(text)) == 19


def test_every_changed_byte_of_the_line_is_noticed(infra: Path, signers: Path) -> None:
    text = sign_ticket(ticket(), key_file=infra)
    for place in range(0, text.index("\n"), 97):
        changed = text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]
        with pytest.raises(Refused):
            read_ticket(changed, signers=signers, now=NOW)


def test_a_changed_signature_is_noticed(infra: Path, signers: Path) -> None:
    text = sign_ticket(ticket(), key_file=infra)
    place = text.index("-----END") - 30
    changed = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]

    with pytest.raises(Refused, match="not believed"):
        read_ticket(changed, signers=signers, now=NOW)


def test_an_unknown_signer_is_refused(tmp_path: Path, signers: Path) -> None:
    text = sign_ticket(ticket(), key_file=keygen(tmp_path, "mallory"))

    with pytest.raises(Refused, match="signer is not in"):
        read_ticket(text, signers=signers, now=NOW)


def test_a_receipts_signature_does_not_do_for_a_ticket(infra: Path, signers: Path) -> None:
    text = sign(
        canonical(json.loads(sign_ticket(ticket(), key_file=infra).splitlines()[0])),
        key_file=infra,
        namespace=RECEIPT_NAMESPACE,
    )

    with pytest.raises(Refused, match="not believed"):
        read_ticket(text, signers=signers, now=NOW)


def test_a_signer_whose_namespaces_do_not_include_tickets_is_refused(infra: Path, signers: Path) -> None:
    signers.write_text(signers.read_text().replace(f"{TICKET_NAMESPACE},", ""))

    with pytest.raises(Refused, match="not believed"):
        read_ticket(sign_ticket(ticket(), key_file=infra), signers=signers, now=NOW)


def test_an_expired_a_too_old_and_a_future_ticket_are_refused(infra: Path, signers: Path) -> None:
    text = sign_ticket(ticket(), key_file=infra)

    with pytest.raises(Refused, match="expired") as expired:
        read_ticket(text, signers=signers, now=NOW + timedelta(hours=72))
    assert "--reissue-ticket" in expired.value.next_step
    with pytest.raises(Refused, match="too old"):
        read_ticket(text, signers=signers, now=NOW + timedelta(hours=25), max_age=timedelta(hours=24))
    with pytest.raises(Refused, match="clocks"):
        read_ticket(text, signers=signers, now=NOW - timedelta(hours=1))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("node", "gpu-01\n"),
        ("node", "../../etc"),
        ("node", "\u001b[31mgpu"),
        ("user", "-oProxyCommand=x"),
        ("user", "root; rm -rf /"),
        ("site", "evil\u001b]0;title\u0007"),
        ("vmid", "5000"),
        ("vmid", 7),
        ("ssh_port", 0),
        ("address", {"ip": "224.0.0.1", "prefix": 24, "source": "static"}),
        ("address", {"ip": "127.20.0.5; ls", "prefix": 24, "source": "static"}),
        ("host_keys", []),
        ("host_keys", [{"type": "ssh-ed25519", "base64": "AAAA"}]),
        ("macs", ["BC:24:11:00:00:01"]),
        ("made_at", "2026-11-30T12:00:00+09:00"),
        ("expires", "2026-11-01T00:00:00Z"),
        ("machine_id", "$(reboot)"),
        ("schema", 2),
        ("surprise", True),
    ],
)
def test_a_well_signed_ticket_of_another_form_is_still_refused(
    infra: Path, signers: Path, key: str, value: object
) -> None:
    content = json.loads(sign_ticket(ticket(), key_file=infra).splitlines()[0])
    text = sign(canonical({**content, key: value}), key_file=infra, namespace=TICKET_NAMESPACE)

    with pytest.raises(Refused, match="malformed"):
        read_ticket(text, signers=signers, now=NOW)


@pytest.mark.parametrize("text", ["", "\n", "{}", "x" * 70_000, "{}\n-----BEGIN SSH SIGNATURE-----\n"])
def test_what_is_no_signed_text_is_refused(signers: Path, text: str) -> None:
    with pytest.raises(Refused, match="not believed"):
        read_ticket(text, signers=signers, now=NOW)


def test_ssh_keygen_by_hand_agrees(tmp_path: Path, infra: Path, signers: Path) -> None:
    line, _, signature = sign_ticket(ticket(), key_file=infra).partition("\n")
    (tmp_path / "sig").write_text(signature)
    command = ["ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", "operator@lab", "-n", TICKET_NAMESPACE]
    done = subprocess.run(
        [*command, "-s", str(tmp_path / "sig")],
        input=line + "\n",
        text=True,
        capture_output=True,
        check=False,
        timeout=30,
    )

    assert done.returncode == 0
    assert 'Good "muster-ticket" signature' in done.stdout


def test_a_receipt_comes_back_signed(infra: Path, signers: Path) -> None:
    read, principal = read_receipt(sign_receipt(receipt(), key_file=infra), signers=signers)

    assert read == receipt()
    assert principal == "operator@lab"


def test_a_receipt_cannot_name_an_odd_folder() -> None:
    for folder in ("etc", "/etc/../root", "/etc/mus ter", "/etc/$(x)"):
        with pytest.raises(ValueError, match="absolute path"):
            replace(receipt(), install_dir=folder)


def test_an_absent_signers_file_or_key_says_what_to_do(tmp_path: Path, infra: Path) -> None:
    with pytest.raises(BadInput, match="is not there"):
        read_ticket(sign_ticket(ticket(), key_file=infra), signers=tmp_path / "none", now=NOW)
    with pytest.raises(BadInput, match="did not sign"):
        sign_ticket(ticket(), key_file=tmp_path / "nokey")


def test_a_ticket_can_be_looked_at_before_it_is_believed(infra: Path) -> None:
    assert peek_ticket(sign_ticket(ticket(), key_file=infra)) == ticket()
