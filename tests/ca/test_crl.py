"""Revocation lists: their shape by RFC 5280, when which is due, and the judge that sees each broken rule."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from ca.crl import (
    Revoked,
    Slot,
    build,
    entry,
    faults_of_list,
    reason_in,
    sign,
)
from ca.keys import generate
from ca.kinds import KeyType
from ca.profile import issuing, pem, root
from ca.reasons import Reason
from ca.signer import KeySigner, sign_certificate, sign_crl
from inventory.errors import Refused
from tests.ca.material import NOW, policy

DAY = timedelta(days=1)
BACKDATE = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Pair:
    root: x509.Certificate
    issuing: x509.Certificate
    signer: KeySigner


def pair(kind: KeyType = KeyType.P256) -> Pair:
    """A root and the authority below it, whose key is of a kind."""
    above, below = KeySigner(generate(KeyType.P384)), KeySigner(generate(kind))
    top = sign_certificate(
        root(above.public_key, organisation="Lab", now=NOW, serial=1 << 140, backdate=BACKDATE), above
    )
    under = issuing(
        below.public_key,
        issuer=top,
        policy=policy(),
        organisation="Lab",
        now=NOW,
        serial=1 << 141,
        backdate=BACKDATE,
    )
    return Pair(top, sign_certificate(under, above), below)


PAIR = pair()
SLOT = Slot(7, NOW, NOW - BACKDATE, NOW + 30 * DAY)


def revoked(
    number: int = 1, *, reason: Reason = Reason.KEY_COMPROMISE, ends: datetime = NOW + DAY
) -> Revoked:
    return Revoked((1 << 150) + number, NOW - timedelta(hours=number), reason, ends)


ONE_FOR_EACH_REASON = tuple(revoked(number, reason=reason) for number, reason in enumerate(Reason, 1))


def signed(named: Sequence[Revoked] = ONE_FOR_EACH_REASON, *, authority: Pair = PAIR) -> bytes:
    return sign(authority.issuing, SLOT, named, root=authority.root, signer=authority.signer)


def kept(folder: Path, data: bytes, authority: Pair) -> Path:
    """The list and both authorities as files in a folder."""
    (folder / "root.pem").write_bytes(pem(authority.root))
    (folder / "issuing.pem").write_bytes(pem(authority.issuing))
    (folder / "crl.pem").write_bytes(data)
    return folder / "crl.pem"


KEYS = pytest.mark.parametrize("kind", list(KeyType))


@KEYS
@pytest.mark.parametrize("named", [(), ONE_FOR_EACH_REASON], ids=["empty", "each reason"])
def test_openssl_and_cryptography_take_the_list_for_the_authoritys(
    tmp_path: Path, kind: KeyType, named: Sequence[Revoked]
) -> None:
    authority = pair(kind)
    file = kept(tmp_path, signed(named, authority=authority), authority)

    told = subprocess.run(
        [
            "openssl",
            "crl",
            "-in",
            str(file),
            "-noout",
            "-text",
            "-verify",
            "-CAfile",
            str(tmp_path / "issuing.pem"),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    found = x509.load_pem_x509_crl(file.read_bytes())

    assert "verify OK" in told.stderr + told.stdout
    assert "Version 2 (0x1)" in told.stdout
    assert found.is_signature_valid(authority.issuing.public_key())  # type: ignore[arg-type]  # one of ours
    assert [entry.serial_number for entry in found] == [one.serial for one in reversed(named)]


@pytest.mark.parametrize("named", [(), ONE_FOR_EACH_REASON], ids=["empty", "each reason"])
def test_pkilint_finds_nothing_in_a_list(tmp_path: Path, named: Sequence[Revoked]) -> None:
    assert lint(kept(tmp_path, signed(named), PAIR)) == []


def test_pkilint_would_find_a_list_without_its_number(tmp_path: Path) -> None:
    data = list_with(without=x509.CRLNumber)

    assert any("number" in code for code in lint(kept(tmp_path, data, PAIR)))


def lint(file: Path) -> list[str]:
    """Codes of pkilint's findings at WARNING or above."""
    program = str(Path(sys.executable).with_name("lint_crl"))
    command = [program, "lint", "-t", "CRL", "-p", "PKIX", "-s", "WARNING", "-f", "JSON", str(file)]
    done = subprocess.run(command, capture_output=True, timeout=600, check=False, text=True)
    return [
        finding["code"]
        for result in json.loads(done.stdout)["results"]
        for finding in result["finding_descriptions"]
    ]


def test_a_reason_that_says_nothing_is_left_out_and_the_others_are_said() -> None:
    found = {entry.serial_number: entry for entry in x509.load_pem_x509_crl(signed())}

    said = [
        [extension.value.reason.value for extension in found[one.serial].extensions]
        for one in ONE_FOR_EACH_REASON
    ]
    assert said == [
        [],
        ["keyCompromise"],
        ["affiliationChanged"],
        ["superseded"],
        ["cessationOfOperation"],
        ["privilegeWithdrawn"],
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("key-compromise", Reason.KEY_COMPROMISE),
        ("superseded: replaced by 4f", Reason.SUPERSEDED),
        ("superseded by 4f", Reason.SUPERSEDED),
        ("not installed: the disk is full", Reason.UNSPECIFIED),
        ("certificate-hold", Reason.UNSPECIFIED),
        ("", Reason.UNSPECIFIED),
        (None, Reason.UNSPECIFIED),
    ],
)
def test_the_reason_is_what_the_record_begins_with(text: str | None, reason: Reason) -> None:
    assert reason_in(text) is reason


Change = Callable[[x509.CertificateRevocationListBuilder], x509.CertificateRevocationListBuilder]


def list_with(  # each argument is one thing that may be wrong
    *,
    issuer: x509.Name = PAIR.issuing.subject,
    begin: datetime = SLOT.this_update,
    end: datetime = SLOT.next_update,
    number: int = SLOT.number,
    number_critical: bool = False,
    without: type[x509.ExtensionType] | None = None,
    key: x509.Certificate = PAIR.issuing,
    also: x509.ExtensionType | None = None,
    named: Sequence[Revoked] = ONE_FOR_EACH_REASON,
    odd: x509.ExtensionType | None = None,
    signer: KeySigner = PAIR.signer,
) -> bytes:
    own = key.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    above = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer).last_update(begin).next_update(end)
    for part, critical in ((x509.CRLNumber(number), number_critical), (above, False)):
        if type(part) is not without:
            builder = builder.add_extension(part, critical=critical)
    if also is not None:
        builder = builder.add_extension(also, critical=False)
    for one in named:
        builder = builder.add_revoked_certificate(entry(one))
    if odd is not None:
        one = revoked(9)
        begun = x509.RevokedCertificateBuilder().serial_number(one.serial).revocation_date(one.revoked_at)
        builder = builder.add_revoked_certificate(begun.add_extension(odd, critical=False).build())
    return sign_crl(builder, signer).public_bytes(Encoding.PEM)


def faults(data: bytes, named: Sequence[Revoked] = ONE_FOR_EACH_REASON, slot: Slot = SLOT) -> str:
    return "\n".join(faults_of_list(data, slot, named, issuing=PAIR.issuing, root=PAIR.root))


def test_a_right_list_passes() -> None:
    assert faults(list_with()) == ""
    assert faults(signed()) == ""


HOLD = x509.CRLReason(x509.ReasonFlags.certificate_hold)
SAID_UNSPECIFIED = x509.CRLReason(x509.ReasonFlags.unspecified)
POINT = x509.IssuingDistributionPoint(None, None, True, False, None, False, False)  # noqa: FBT003 - its signature


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"no list", "it is no revocation list"),
        (list_with(signer=pair().signer), "not signed by the issuing authority"),
        (list_with(issuer=PAIR.root.subject), "issuer's name is not the subject"),
        (list_with(begin=NOW - DAY), "not those that the audit announced"),
        (list_with(end=NOW + DAY), "not those that the audit announced"),
        (list_with(number=8), "lacks its CRLNumber 7"),
        (list_with(number_critical=True), "lacks its CRLNumber 7"),
        (list_with(without=x509.CRLNumber), "lacks its CRLNumber 7"),
        (list_with(without=x509.AuthorityKeyIdentifier), "lacks an AuthorityKeyIdentifier"),
        (list_with(key=PAIR.root), "lacks an AuthorityKeyIdentifier"),
        (list_with(also=POINT), "IssuingDistributionPoint, which no list of ours has"),
        (list_with(named=ONE_FOR_EACH_REASON[1:]), "does not name"),
        (list_with(named=(*ONE_FOR_EACH_REASON, revoked(20))), "which is not revoked"),
        (list_with(named=(*ONE_FOR_EACH_REASON, ONE_FOR_EACH_REASON[0])), "names it twice"),
        (
            list_with(named=tuple(replace(one, revoked_at=NOW - DAY) for one in ONE_FOR_EACH_REASON)),
            "not revoked at",
        ),
        (
            list_with(named=tuple(replace(one, reason=Reason.SUPERSEDED) for one in ONE_FOR_EACH_REASON)),
            "another reason",
        ),
    ],
)
def test_each_broken_rule_is_seen(data: bytes, why: str) -> None:
    assert why in faults(data)


@pytest.mark.parametrize("said", [HOLD, SAID_UNSPECIFIED, x509.InvalidityDate(NOW)])
def test_an_entry_says_its_reason_or_nothing(said: x509.ExtensionType) -> None:
    named = (*ONE_FOR_EACH_REASON, replace(revoked(9), reason=Reason.UNSPECIFIED))

    assert "another reason" in faults(list_with(odd=said), named)


@pytest.mark.parametrize(
    ("slot", "why"),
    [
        (replace(SLOT, this_update=NOW + timedelta(seconds=1)), "after the time at which it is due"),
        (replace(SLOT, this_update=NOW - DAY), "before its issuer began"),
        (replace(SLOT, next_update=NOW), "does not lie after it is due"),
        (replace(SLOT, next_update=PAIR.issuing.not_valid_after_utc + DAY), "outlives its issuer"),
        (replace(SLOT, number=0), "not positive"),
    ],
)
def test_a_slot_that_makes_no_sense_is_seen_too(slot: Slot, why: str) -> None:
    with pytest.raises(Refused, match=why):
        sign(PAIR.issuing, slot, (), root=PAIR.root, signer=PAIR.signer)


def test_a_list_below_another_root_does_not_leave() -> None:
    with pytest.raises(Refused, match="not signed by the root"):
        sign(PAIR.issuing, SLOT, (), root=pair().root, signer=PAIR.signer)


def test_a_hash_that_is_not_the_keys_own_is_seen() -> None:
    data = build(PAIR.issuing, SLOT, ()).sign(PAIR.signer.key, hashes.SHA384()).public_bytes(Encoding.PEM)

    assert (
        faults(data, ()) == "its signature's hash is not the one that belongs to the issuing authority's key"
    )


def test_an_authority_that_may_not_sign_lists_is_seen() -> None:
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
    )
    only_certificates = x509.KeyUsage(
        digital_signature=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
        **usage,
    )
    mute = x509.CertificateBuilder(
        PAIR.issuing.subject,
        PAIR.issuing.subject,
        PAIR.signer.public_key,
        1 << 140,
        NOW - BACKDATE,
        NOW + 90 * DAY,
    )
    own = x509.SubjectKeyIdentifier.from_public_key(PAIR.signer.public_key)
    mute = mute.add_extension(own, critical=False).add_extension(only_certificates, critical=True)
    authority = sign_certificate(mute, PAIR.signer)

    with pytest.raises(Refused, match="may not sign revocation lists"):
        sign(authority, SLOT, (), root=authority, signer=PAIR.signer)
