"""The judge: each rule of the profile, given a certificate of our own authority that breaks just this one."""

import ipaddress
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ca.authority import Authority
from ca.judge import Wanted, judge, judge_authority, outside, wider
from ca.keys import is_ours
from ca.keystore import Kdf
from ca.policy import Request, allow
from ca.profile import key_sha256, pem
from ca.signer import KeySigner, sign_certificate
from inventory.errors import Refused
from tests.ca.material import NOW, PASSPHRASE, new_authority, node_key, policy, policy_text

SERIAL = 1 << 140
KEY = node_key()
SPIFFE = "spiffe://lab.example/node/gpu-01"
DNS = "gpu-01.nodes.lab.example"
NAMES = (
    x509.DNSName(DNS),
    x509.IPAddress(ipaddress.ip_address("10.0.0.7")),
    x509.UniformResourceIdentifier(SPIFFE),
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("judge"))


def key_usage(**also: bool) -> x509.KeyUsage:
    off = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign"),
        False,
    )
    last = {"crl_sign": False, "encipher_only": False, "decipher_only": False}
    return x509.KeyUsage(**{"digital_signature": True, **off, **last, **also})


def san(*entries: x509.GeneralName) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName(entries)


def leaf(
    authority: Authority,
    *changes: x509.ExtensionType,
    without: Iterable[type[x509.ExtensionType]] = (),
    critical: dict[type[x509.ExtensionType], bool] | None = None,
    common_name: str | None = DNS,
    key: ec.EllipticCurvePublicKey | None = None,
    serial: int = SERIAL,
    begin: datetime = NOW,
    end: datetime | None = None,
    issuer: x509.Name | None = None,
) -> x509.Certificate:
    """A leaf that is right, but for what is changed."""
    above = authority.issuing.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    parts: dict[type[x509.ExtensionType], x509.ExtensionType] = {
        type(part): part
        for part in (
            x509.SubjectKeyIdentifier.from_public_key(key or KEY.public_key()),
            x509.BasicConstraints(ca=False, path_length=None),
            key_usage(),
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            san(*NAMES),
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(above),
            *changes,
        )
    }
    marks: dict[type[x509.ExtensionType], bool] = {
        x509.BasicConstraints: True,
        x509.KeyUsage: True,
        **(critical or {}),
    }
    common = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(common))
        .issuer_name(issuer or authority.issuing.subject)
        .public_key(key or KEY.public_key())
        .serial_number(serial)
        .not_valid_before(begin)
        .not_valid_after(end or NOW + timedelta(days=30))
    )
    for kind, part in parts.items():
        if kind not in set(without):
            builder = builder.add_extension(part, critical=marks.get(kind, False))
    return sign_certificate(builder, authority.unlock(PASSPHRASE))


def wanted() -> Wanted:
    granted = allow(policy(), Request("gpu-01", "10.0.0.7"))
    return Wanted(granted, key_sha256(KEY.public_key()), SERIAL)


def verdict(authority: Authority, certificate: x509.Certificate, want: Wanted | None = None) -> str:
    """Why the judge holds a leaf back; empty: it does not."""
    chain = pem(certificate) + authority.issuing_pem
    try:
        judge(chain, issuing=authority.issuing, root=authority.root, wanted=want or wanted(), now=NOW)
    except Refused as error:
        return error.why
    return ""


def test_a_right_leaf_passes(authority: Authority) -> None:
    assert verdict(authority, leaf(authority)) == ""


BROKEN_EXTENSIONS: dict[str, tuple[x509.ExtensionType, str]] = {
    "a CA": (x509.BasicConstraints(ca=True, path_length=None), "CA:FALSE"),
    "may sign": (key_usage(key_cert_sign=True), "digitalSignature alone"),
    "enciphers": (key_usage(key_encipherment=True), "digitalSignature alone"),
    "server only": (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), "serverAuth and clientAuth"),
    "any purpose": (
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]),
        "serverAuth and clientAuth",
    ),
    "another key's SKI": (x509.SubjectKeyIdentifier(b"x" * 20), "not its key's"),
    "another issuer's AKI": (x509.AuthorityKeyIdentifier(b"x" * 20, None, None), "not its issuer's"),
    "name constraints": (x509.NameConstraints([x509.DNSName("lab")], None), "has NameConstraints"),
    "must staple": (x509.TLSFeature([x509.TLSFeatureType.status_request]), "has TLSFeature"),
    "no URI": (san(*NAMES[:2]), "not exactly one URI"),
    "two URIs": (
        san(*NAMES, x509.UniformResourceIdentifier("spiffe://lab.example/x")),
        "not exactly one URI",
    ),
    "another's URI": (
        san(*NAMES[:2], x509.UniformResourceIdentifier("spiffe://lab.example/node/gpu-02")),
        "not exactly one URI",
    ),
    "a malformed URI": (
        san(*NAMES[:2], x509.UniformResourceIdentifier("spiffe://Lab.Internal/node/gpu 01")),
        "is not a SPIFFE trust domain",
    ),
    "an underscore": (san(x509.DNSName("gpu_01.nodes.lab.example"), *NAMES), "is not a host name"),
    "a capital": (san(x509.DNSName("GPU-01.nodes.lab.example"), *NAMES), "is not a host name"),
    "a wildcard": (san(x509.DNSName("*.nodes.lab.example"), *NAMES), "is not a host name"),
    "a trailing dot": (san(x509.DNSName(f"{DNS}."), *NAMES), "is not a host name"),
    "an address as a name": (san(x509.DNSName("10.0.0.7"), *NAMES), "is not a host name"),
    "another name": (
        san(x509.DNSName("gpu-02.nodes.lab.example"), *NAMES),
        "not those that the policy granted",
    ),
    "another address": (
        san(*NAMES, x509.IPAddress(ipaddress.ip_address("10.0.0.8"))),
        "not those that the policy granted",
    ),
    "a mail address": (san(*NAMES, x509.RFC822Name("a@lab.example")), "neither a name, an address nor a URI"),
}


@pytest.mark.parametrize("broken", BROKEN_EXTENSIONS)
def test_a_leaf_with_a_wrong_extension_is_held_back(authority: Authority, broken: str) -> None:
    part, said = BROKEN_EXTENSIONS[broken]

    assert said in verdict(authority, leaf(authority, part))


@pytest.mark.parametrize(
    "kind",
    [
        x509.SubjectAlternativeName,
        x509.BasicConstraints,
        x509.KeyUsage,
        x509.ExtendedKeyUsage,
        x509.SubjectKeyIdentifier,
        x509.AuthorityKeyIdentifier,
    ],
)
def test_a_leaf_that_lacks_an_extension_is_held_back(
    authority: Authority, kind: type[x509.ExtensionType]
) -> None:
    assert f"it lacks {kind.__name__}" in verdict(authority, leaf(authority, without=[kind]))


@pytest.mark.parametrize(
    ("kind", "mark"),
    [
        (x509.BasicConstraints, False),
        (x509.KeyUsage, False),
        (x509.ExtendedKeyUsage, True),
        (x509.SubjectKeyIdentifier, True),
        (x509.AuthorityKeyIdentifier, True),
        (x509.SubjectAlternativeName, True),
    ],
)
def test_a_leaf_whose_extension_is_wrongly_marked_is_held_back(
    authority: Authority,
    kind: type[x509.ExtensionType],
    mark: bool,  # noqa: FBT001
) -> None:
    assert verdict(authority, leaf(authority, critical={kind: mark})) != ""


@pytest.mark.parametrize(
    ("common_name", "said"),
    [
        (None, "SAN must be critical"),
        ("other.lab.example", "none of its names"),
        ("n" * 64, "none of its names"),
    ],
)
def test_a_leaf_with_a_wrong_subject_is_held_back(
    authority: Authority, common_name: str | None, said: str
) -> None:
    assert said in verdict(authority, leaf(authority, common_name=common_name))


def test_a_leaf_with_a_short_serial_number_is_held_back(authority: Authority) -> None:
    assert "serial number has 1 bits" in verdict(
        authority, leaf(authority, serial=1), replace(wanted(), serial=1)
    )
    assert "not the one that the audit announced" in verdict(authority, leaf(authority, serial=SERIAL + 1))


@pytest.mark.parametrize(
    ("begin", "end", "said"),
    [
        (NOW, datetime(9999, 12, 31, 23, 59, 59, tzinfo=NOW.tzinfo), "no real end"),
        (NOW, NOW + timedelta(days=1095), "outlives its issuer"),
        (NOW - timedelta(days=1), NOW + timedelta(days=1), "begins before its issuer"),
        (NOW + timedelta(seconds=1), NOW + timedelta(days=1), "not valid now"),
        (NOW - timedelta(seconds=9), NOW, "not valid now"),
    ],
)
def test_a_leaf_with_a_wrong_life_is_held_back(
    authority: Authority, begin: datetime, end: datetime, said: str
) -> None:
    assert said in verdict(authority, leaf(authority, begin=begin, end=end))


def test_a_leaf_of_another_key_is_held_back(authority: Authority) -> None:
    assert "whose possession was proven" in verdict(authority, leaf(authority, key=node_key().public_key()))


def test_a_leaf_of_another_signer_is_held_back(authority: Authority, tmp_path: Path) -> None:
    other = new_authority(tmp_path)

    said = verdict(authority, leaf(other))
    assert "the leaf was not signed by its issuer" in said
    assert "issuer's name" in said


@pytest.mark.parametrize("shape", ["leaf alone", "reversed", "with the root", "twice"])
def test_a_chain_of_another_shape_is_held_back(authority: Authority, shape: str) -> None:
    right, above = pem(leaf(authority)), authority.issuing_pem
    chain = {
        "leaf alone": right,
        "reversed": above + right,
        "with the root": right + above + authority.bundle_pem,
        "twice": right + right,
    }[shape]

    with pytest.raises(Refused, match="leaf followed by its issuing authority"):
        judge(chain, issuing=authority.issuing, root=authority.root, wanted=wanted(), now=NOW)


def test_names_outside_the_authoritys_constraints_are_found(authority: Authority) -> None:
    inside = ["a.nodes.lab.example", "nodes.lab.example"]
    beyond = ["a.lab.example", "anodes.lab.example", "nodes.lab.example.org"]
    addresses = [ipaddress.ip_address(text) for text in ("10.0.255.255", "10.1.0.0", "fd00::1")]

    assert [*outside(authority.issuing, inside, addresses[:1])] == []
    assert len([*outside(authority.issuing, beyond, [])]) == 3
    assert len([*outside(authority.issuing, [], addresses)]) == 2
    assert [*outside(authority.root, inside, [])] == ["the issuing authority has no name constraints"]


def test_an_address_is_outside_where_no_range_is_permitted(tmp_path: Path) -> None:
    authority = new_authority(tmp_path, text=policy_text(addresses=[]))

    assert len([*outside(authority.issuing, [], [ipaddress.ip_address("10.0.0.7")])]) == 1


def test_a_policy_wider_than_its_authority_is_told(authority: Authority) -> None:
    wide = policy(
        names=["{node}.nodes.lab.example", "{node}.org"],
        addresses=["10.0.0.0/15", "fd00::/64", "10.0.3.0/24"],
    )

    assert [text.split()[0] for text in wider(wide, authority.issuing)] == [
        "n.org",
        "10.0.0.0/15",
        "fd00::/64",
    ]
    assert [*wider(policy(), authority.issuing)] == []


def remade(authority: Authority, root_key: KeySigner, *, without: type[x509.ExtensionType]) -> Authority:
    """The authority's two certificates under another root, the issuing one without one of its extensions."""
    pair = []
    for certificate, kept in ((authority.root, x509.ExtensionType), (authority.issuing, without)):
        key = root_key.public_key if certificate is authority.root else certificate.public_key()
        assert is_ours(key)
        builder = (
            x509.CertificateBuilder()
            .subject_name(certificate.subject)
            .issuer_name(authority.root.subject)
            .public_key(key)
            .serial_number(certificate.serial_number)
            .not_valid_before(certificate.not_valid_before_utc)
            .not_valid_after(certificate.not_valid_after_utc)
        )
        for extension in certificate.extensions:
            if type(extension.value) is not kept:
                builder = builder.add_extension(extension.value, critical=extension.critical)
        pair.append(sign_certificate(builder, root_key))
    floor = Kdf(1, 1, 1)
    return Authority(authority.layout, authority.policy, root=pair[0], issuing=pair[1], kdf_floor=floor)


def test_a_faulty_authority_is_not_made(authority: Authority) -> None:
    root_key = KeySigner(ec.generate_private_key(ec.SECP384R1()))
    weak = remade(authority, root_key, without=x509.SubjectKeyIdentifier)

    with pytest.raises(Refused, match="openssl verify refuses it"):
        judge_authority(weak.issuing, root=weak.root, now=NOW)
    with pytest.raises(Refused, match="the authority was not signed by its issuer"):
        judge_authority(weak.issuing, root=authority.root, now=NOW)
