"""Revoking and revocation lists as a person meets them: what is meant, what is signed, what is told."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from ca.authority import Authority
from ca.keystore import KDF_FLOOR
from ca.profile import fingerprint
from inventory.errors import BadInput, Refused
from tests.ca.material import issue, new_authority, policy_text
from tests.ca.test_cli import SECRET, Done, node_ca, node_cas


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


def test_a_certificate_is_meant_by_node_serial_or_fingerprint_in_any_spelling(authority: Authority) -> None:
    issued = issue(authority)
    serial, digest = issued.serial, issued.fingerprint_sha256
    parted = ":".join(digest[i : i + 2] for i in range(0, 64, 2))
    padded = serial if len(serial) % 2 == 0 else f"0{serial}"

    for target in (
        "gpu-01",
        serial,
        serial.upper(),
        f"0x{serial}",
        f"00{serial}",
        ":".join(padded[i : i + 2] for i in range(0, len(padded), 2)).upper(),
        digest,
        parted.upper(),
        f"SHA256:{parted}",
    ):
        assert [record.serial for record in authority.to_revoke(target)] == [serial], target


def test_all_of_a_nodes_certificates_are_meant_by_its_name(authority: Authority) -> None:
    serials = [issue(authority).serial, issue(authority).serial]

    assert [record.serial for record in authority.to_revoke("gpu-01")] == serials


def test_a_name_that_is_also_a_number_is_refused_with_both(authority: Authority) -> None:
    numbered = issue(authority, node="gpu-01")
    named = issue(authority, node=numbered.serial, vm_uuid=None, address=None)

    with pytest.raises(Refused, match="may mean two things") as caught:
        authority.to_revoke(numbered.serial)

    assert f"{numbered.serial} of gpu-01" in caught.value.why
    assert named.serial in caught.value.next_step
    pair = f"{numbered.serial[:2]}:{numbered.serial[2:]}"
    assert [record.node for record in authority.to_revoke(pair)] == ["gpu-01"]


def test_a_part_of_a_number_is_no_number_but_a_hint(authority: Authority) -> None:
    issued = issue(authority)

    for part in (issued.serial[:6], issued.fingerprint_sha256[:20].upper()):
        with pytest.raises(BadInput, match=f"begins like {issued.serial} of gpu-01"):
            authority.to_revoke(part)
    for nothing in (issued.serial[:5], "gpu-99", "0", "", ":", "zz"):
        with pytest.raises(BadInput, match="no certificate") as caught:
            authority.to_revoke(nothing)
        assert "begins like" not in caught.value.why


def test_the_root_cannot_revoke_itself_and_the_issuer_is_not_revoked_here(authority: Authority) -> None:
    for target in ("root", f"{authority.root.serial_number:X}", fingerprint(authority.root)):
        with pytest.raises(Refused, match="the root cannot revoke itself"):
            authority.to_revoke(target)
    for target in ("issuing", f"{authority.issuing.serial_number:x}", fingerprint(authority.issuing).upper()):
        with pytest.raises(Refused, match="only the root can revoke it") as caught:
            authority.to_revoke(target)
        assert "node-ca rotate prepare --new-root" in caught.value.next_step


def test_a_node_may_be_called_root(authority: Authority) -> None:
    issued = issue(authority, node="root")

    assert [record.serial for record in authority.to_revoke("root")] == [issued.serial]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority in it, and three certificates."""
    place = tmp_path_factory.mktemp("crl")
    (place / "policy.yaml").write_text(policy_text(addresses=None))
    (place / "passphrase").write_text(f"{SECRET}\n")
    (place / "passphrase").chmod(0o600)
    now = datetime.now(UTC)
    authority = Authority.create(
        place / "ca",
        policy_file=place / "policy.yaml",
        passphrase=SECRET.encode(),
        root_out=place / "usb",
        kdf=KDF_FLOOR,  # the least that the command takes, for the sake of time
        now=now,
    )
    signer = authority.unlock(SECRET.encode())
    for name in ("gpu-01", "gpu-02", "gpu-03"):
        issued = issue(authority, node=name, vm_uuid=None, address=None, signer=signer, now=now)
        (place / f"{name}.pem").write_bytes(issued.certificate_pem)
    authority.close()
    return place


def test_help_shows_examples_and_the_codes_of_status(tmp_path: Path) -> None:
    crl, status = node_cas(["crl", "-h"], ["status", "-h"], folder=tmp_path)

    assert "node-ca crl --ahead 6" in crl.out
    assert "node-ca crl --due" in crl.out
    assert "6 where the" in status.out
    assert max(len(line) for line in (crl.out + status.out).splitlines()) <= 80


def openssl_verify(folder: Path, name: str) -> str:
    """What openssl says of a node's chain under the list in folder/crl.pem."""
    command = ["openssl", "verify", "-x509_strict", "-crl_check", "-CAfile", str(folder / "ca" / "root.pem")]
    command += ["-untrusted", str(folder / "ca" / "issuing.pem"), "-CRLfile", str(folder / "crl.pem")]
    done = subprocess.run(
        [*command, str(folder / f"{name}.pem")], capture_output=True, text=True, timeout=600, check=False
    )
    return done.stdout + done.stderr


def test_lists_are_signed_ahead_handed_out_and_signed_anew_by_a_revocation(folder: Path) -> None:
    secret = ("--passphrase-file", str(folder / "passphrase"))
    out = ("--out", str(folder / "crl.pem"))
    rehearsed, none_due, ahead, due = node_cas(
        ["crl", "--ahead", "2", "-n", "--json"],
        ["crl", "--due", *out],
        ["crl", "--ahead", "2", "--json", *secret, *out],
        ["crl", "--due"],
        folder=folder,
    )

    assert (rehearsed.code, len(_lists(rehearsed, "would_sign"))) == (0, 3)
    assert none_due.code == 3
    assert "none was signed yet" in none_due.err
    assert ahead.code == 0, ahead.err
    assert next(item["number"] for item in _lists(ahead, "lists")) == ahead.document["number"]
    assert due.out.encode() == (folder / "crl.pem").read_bytes()
    assert len(list((folder / "ca" / "crls").iterdir())) == 3
    assert openssl_verify(folder, "gpu-01").endswith("OK\n")

    without, later, signed = node_cas(
        ["revoke", "gpu-01", "--reason", "key-compromise", "--yes", "--no-input", "--json"],
        ["crl", "--due", *out],
        ["revoke", "gpu-02", "--reason", "superseded", "--yes", "--json", *secret],
        folder=folder,
    )

    assert (without.code, without.document["changed"]) == (0, True)
    assert "REVOKED AND RECORDED, BUT THE REVOCATION LISTS DO NOT SAY SO YET" in without.err
    assert "sign them now: node-ca crl --out FILE" in without.err
    assert without.document["crl"]["missing"] == 1  # type: ignore[index]  # JSON
    assert later.code == 0
    assert "warning: the revocation lists lack 1 revocation" in later.err
    assert signed.code == 0, signed.err
    assert "3 revocation lists were signed anew" in signed.err
    assert signed.document["crl"]["missing"] == 0  # type: ignore[index]  # JSON
    assert node_ca("crl", "--due", *out, folder=folder).code == 0
    for name in ("gpu-01", "gpu-02"):
        assert "certificate revoked" in openssl_verify(folder, name)
    entries = {entry.serial_number for entry in x509.load_pem_x509_crl((folder / "crl.pem").read_bytes())}
    assert len(entries) == 2


def _lists(done: Done, key: str) -> list[dict[str, object]]:
    found = done.document[key]
    assert isinstance(found, list)
    return found


def test_a_wrong_passphrase_ends_with_its_error_though_the_revocation_is_recorded(folder: Path) -> None:
    secret = ("--passphrase-file", str(folder / "passphrase"))
    (folder / "wrong").write_text("wrong\n")
    (folder / "wrong").chmod(0o600)

    ahead, revoked, later, listed = node_cas(
        ["crl", "--ahead", "2", *secret],
        ["revoke", "gpu-03", "--reason", "superseded", "--yes", "--passphrase-file", str(folder / "wrong")],
        ["revoke", "gpu-03", "--reason", "superseded", "--yes", "--later"],
        ["list", "--node", "gpu-03"],
        folder=folder,
    )

    assert ahead.code == 0, ahead.err
    assert (revoked.code, later.code) == (2, 0)
    assert "REVOKED AND RECORDED, BUT" in revoked.err
    assert "the passphrase is wrong" in revoked.err
    assert "nothing was changed" in later.err
    assert listed.out.splitlines()[1].split("\t")[2] == "revoked"


def test_wrong_usage_of_lists_is_refused_before_anything(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    audit = (folder / "ca" / "audit.jsonl").read_bytes()

    both, mine, nowhere, bad_days, bad_ahead, root = node_cas(
        ["crl", "--due", "--days", "3"],
        ["crl", "--out", str(tmp_path / "mine")],
        ["crl", "--out", str(tmp_path / "no" / "crl.pem")],
        ["crl", "--days", "0"],
        ["crl", "--ahead", "13"],
        ["revoke", "root", "--reason", "key-compromise", "--yes"],
        folder=folder,
    )

    assert [told.code for told in (both, mine, nowhere, bad_days, bad_ahead, root)] == [2, 3, 2, 2, 2, 3]
    assert all(told.out == "" for told in (both, mine, nowhere, bad_days, bad_ahead, root))
    assert "is no revocation list" in mine.err
    assert (tmp_path / "mine").read_text() == "mine"
    assert "the root cannot revoke itself" in root.err
    assert (folder / "ca" / "audit.jsonl").read_bytes() == audit


def test_a_list_goes_to_stdout_where_no_file_is_named(folder: Path) -> None:
    told = node_ca("crl", "--days", "7", "--passphrase-file", "-", folder=folder, stdin=f"{SECRET}\n")

    assert told.code == 0, told.err
    assert x509.load_pem_x509_crl(told.out.encode()).issuer
