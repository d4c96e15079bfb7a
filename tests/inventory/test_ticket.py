import subprocess
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from inventory.errors import BadInput, Refused
from inventory.signature import fingerprint, sign
from inventory.ticket import (
    RECEIPT_NAMESPACE,
    TICKET_NAMESPACE,
    peek_ticket,
    read_receipt,
    read_ticket,
    sign_receipt,
    sign_ticket,
)
from tests.inventory.kit import NOW, keygen, receipt, ticket


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
        sign_ticket(ticket(), key_file=infra).splitlines()[0],
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
        timeout=600,
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
