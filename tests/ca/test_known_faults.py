"""Faults that other authorities had, each given the input that showed it there."""

import ipaddress
import os
import ssl
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from ca.authority import Authority
from ca.backup import back_up
from ca.policy import Policy
from ca.record import Standing
from inventory.document import loads
from inventory.errors import BadFile, Refused
from tests.ca.judges import handshake
from tests.ca.material import (
    NOW,
    OTHER_UUID,
    PASSPHRASE,
    UUID,
    host_key,
    issue,
    key_pem,
    leaf_of,
    new_authority,
    node_key,
    policy_text,
    reopened,
    request,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


def names_of(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


@pytest.mark.parametrize(
    ("skew_s", "late"),
    [(0, 90), (300, 240), (300, 599), (3600, 3600)],
    ids=["90 s late", "4 min late", "10 min late", "an hour late, as the policy bears"],
)
def test_a_node_whose_clock_is_late_takes_its_certificate_at_once(
    tmp_path: Path, skew_s: int, late: int
) -> None:
    """slackhq/nebula#1130, skupperproject/skupper#456, istio/istio#32176, juju/juju#601."""
    authority = new_authority(tmp_path, text=policy_text(max_clock_skew_s=skew_s))
    there = NOW - timedelta(seconds=late)

    chain = [leaf_of(issue(authority)), authority.issuing, authority.root]

    assert all(certificate.not_valid_before_utc <= there for certificate in chain)


def test_a_policy_that_bears_a_skew_of_two_hours_is_refused() -> None:
    """istio/istio#32176: beyond an hour the clock is to be mended, not the certificate."""
    with pytest.raises(BadFile, match="max_clock_skew_s"):
        loads(policy_text(max_clock_skew_s=7200), Policy, name="policy.yaml", base=Path("/"))


def test_an_authority_whose_clock_stands_in_1970_signs_nothing(authority: Authority) -> None:
    """slackhq/nebula#797, #334, #732: boards without a clock of their own."""
    with pytest.raises(Refused, match="clock"):
        reopened(authority, now=datetime.fromtimestamp(23, tz=UTC))
    with pytest.raises(Refused, match="clock"):
        issue(authority, now=datetime.fromtimestamp(23, tz=UTC))


def test_an_address_is_an_address_in_a_certificate_never_a_name(authority: Authority) -> None:
    """hashicorp/vault#8424: DNS:10.0.0.1."""
    names = names_of(leaf_of(issue(authority, address="10.0.0.7")))

    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.0.0.7")]
    assert names.get_values_for_type(x509.DNSName) == ["gpu-01.nodes.lab.example"]
    with pytest.raises(BadFile, match="names"):
        loads(policy_text(names=["{node}.10.20.0.11"]), Policy, name="policy.yaml", base=Path("/"))


@pytest.mark.parametrize("node", ["gpu-01", "n" * 63], ids=["with a common name", "without one"])
def test_a_client_that_ignores_the_common_name_finds_the_node(tmp_path: Path, node: str) -> None:
    """letsencrypt/boulder#40, curl/curl#1065: an identity that stood in the common name alone."""
    authority, key = new_authority(tmp_path), node_key()
    issued = issue(authority, csr=request(key), node=node)
    (tmp_path / "key.pem").write_bytes(key_pem(key))
    (tmp_path / "chain.pem").write_bytes(issued.chain_pem)
    own = (tmp_path / "chain.pem", tmp_path / "key.pem")

    _, uri = handshake(own, own, authority.layout.root, name=issued.names[0])

    assert uri == f"spiffe://lab.example/node/{node}"
    common = leaf_of(issued).subject.rfc4514_string()
    assert len(common.removeprefix("CN=").encode()) <= 64
    with pytest.raises(ssl.SSLError, match="bad certificate"):
        handshake(own, own, authority.layout.root, name="other.nodes.lab.example")


def test_a_certificate_names_exactly_one_identity(authority: Authority) -> None:
    """SPIFFE X509-SVID, section 2: verifiers must reject a second URI."""
    uris = names_of(leaf_of(issue(authority))).get_values_for_type(x509.UniformResourceIdentifier)

    assert uris == ["spiffe://lab.example/node/gpu-01"]


def test_a_family_of_addresses_that_the_policy_does_not_name_is_barred(authority: Authority) -> None:
    """RFC 5280, section 4.2.1.10: an unlisted type passes whole."""
    limits = authority.issuing.extensions.get_extension_for_class(x509.NameConstraints)

    assert limits.critical
    assert limits.value.excluded_subtrees == [x509.IPAddress(ipaddress.ip_network("::/0"))]


def test_everything_of_an_authority_is_private_whatever_the_umask(tmp_path: Path) -> None:
    """srvrco/getssl#34, saltstack/salt#369, acmesh-official/acme.sh#2978: a key for all to read."""
    before = os.umask(0)
    try:
        authority = new_authority(tmp_path)
        issue(authority)
        back_up(authority.layout, tmp_path / "backup.tar", now=NOW, actor="tester")
    finally:
        os.umask(before)

    folder = authority.layout.folder
    for place in (folder, *folder.rglob("*"), tmp_path / "backup.tar"):
        mode = stat.S_IMODE(place.lstat().st_mode)
        public = place.suffix == ".pem"
        assert mode & 0o077 == (0o044 if public else 0), f"{place} has {mode:o}"
    assert all(b"PRIVATE KEY" not in file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_a_node_gets_its_next_certificate_a_second_after_its_last_one_ended(authority: Authority) -> None:
    """smallstep/certificates#616, #177: no way back after the end."""
    first = issue(authority, host_keys=(host_key(1),), machine_id="aa" * 16)
    after = first.not_after + timedelta(seconds=1)

    second = issue(authority, host_keys=(host_key(1),), machine_id="aa" * 16, now=after)

    assert second.not_before < after < second.not_after
    assert [record.state(after) for record in authority.records("gpu-01")] == ["expired", "issued"]


def test_a_machine_that_was_made_anew_is_pinned_only_with_replace(authority: Authority) -> None:
    """theforeman/foreman_remote_execution#976, ClusterHQ/flocker#769: same address, other host key."""
    issue(authority, host_keys=(host_key(1),), machine_id="aa" * 16)

    with pytest.raises(Refused, match="the name is held"):
        issue(authority, vm_uuid=OTHER_UUID, host_keys=(host_key(2),), machine_id="bb" * 16)
    held = authority.pinned("gpu-01")
    assert held is not None
    assert held.host_keys == (host_key(1),)

    issue(authority, vm_uuid=OTHER_UUID, host_keys=(host_key(2),), machine_id="bb" * 16, replace=True)
    held = authority.pinned("gpu-01")
    assert held is not None
    assert held.host_keys == (host_key(2),)
    assert authority.records("gpu-01")[0].standing is Standing.REVOKED


def test_a_request_for_an_authority_gets_a_node(authority: Authority) -> None:
    """cloudflare/cfssl#1436, slauger/openvox-operator#506: CSR with CA:TRUE and *.lab."""
    csr = request(
        node_key(),
        x509.BasicConstraints(ca=True, path_length=None),
        x509.SubjectAlternativeName([x509.DNSName("*.lab")]),
    )

    leaf = leaf_of(issue(authority, csr=csr))

    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert "*.lab" not in names_of(leaf).get_values_for_type(x509.DNSName)


_WITH_ONE_TICKET = """
import sys
from pathlib import Path
from inventory.errors import MusterError
from ca.authority import Authority
from tests.ca.material import CHEAP, NOW, issue
authority = Authority.open(Path(sys.argv[1]), now=NOW, kdf_floor=CHEAP)
sys.stdin.readline()
try:
    print(issue(authority, ticket_id="t1").serial)
except MusterError as error:
    print(error.what, error.why)
    sys.exit(int(error.exit_code))
"""


def test_of_two_runs_with_one_ticket_one_gets_the_certificate(authority: Authority) -> None:
    """spiffe/spire#2454, and its race between the look at a token and its deletion."""
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", _WITH_ONE_TICKET, str(authority.layout.folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [run.communicate("go\n", timeout=600)[0] for run in runs]

    assert sorted(run.returncode for run in runs) == [0, 3]
    assert any("ticket t1 is refused" in text for text in said)
    assert len(reopened(authority).records()) == 1


@pytest.mark.parametrize("value", [True, 1, "yes", ["a"], [{"a": 1}], {"a": {"b": 1}}], ids=str)
@pytest.mark.parametrize("depth", ["top", "install", "ssh"])
def test_an_unknown_key_is_refused_at_any_depth_whatever_it_holds(depth: str, value: object) -> None:
    """slackhq/nebula#1143, kubernetes/kubernetes#70901: `lighthose:` was ignored, or only warned of."""
    inside: dict[str, object] = {"lighthose": value}
    below: dict[str, dict[str, object]] = {"install": {"dir": "/etc/muster"}, "ssh": {"key_file": "holder"}}
    text = policy_text(**(inside if depth == "top" else {depth: {**below[depth], **inside}}))

    with pytest.raises(BadFile, match="lighthose: unknown key"):
        loads(text, Policy, name="policy.yaml", base=Path("/etc/ca"))


def test_serial_numbers_come_from_at_least_64_random_bits(authority: Authority) -> None:
    """RFC 5280, section 4.1.2.2, and the limit of twenty octets."""
    signer = authority.unlock(PASSPHRASE)
    numbers = [leaf_of(issue(authority, signer=signer)).serial_number for _ in range(8)]

    assert len({number >> 95 for number in numbers}) == 8  # they differ already in their upper 64 bits
    assert all(64 < number.bit_length() <= 159 for number in numbers)


@pytest.mark.parametrize("days_left", [10, 30])
def test_no_leaf_outlives_its_authority_by_a_second_nor_is_cut_short(
    authority: Authority, days_left: int
) -> None:
    """smallstep/certificates#381 (leaf 30 d, 10 d left); openbao/openbao#1322 (cut into the past)."""
    end = authority.issuing.not_valid_after_utc
    late = end - timedelta(days=days_left)
    early = end - timedelta(days=30, seconds=1)

    with pytest.raises(Refused, match="would outlive"):
        issue(reopened(authority, now=late), now=late)
    assert issue(authority, now=early).not_after == end - timedelta(seconds=1)


def test_an_authority_with_twenty_days_left_is_warned_of_by_everything(authority: Authority) -> None:
    """slackhq/nebula#712, #341, #645: a year later the whole mesh was dead."""
    late = authority.issuing.not_valid_after_utc - timedelta(days=20)

    warnings = reopened(authority, now=late).warnings(late)

    assert any("issuing authority expires in 20 days" in text for text in warnings)


@pytest.mark.parametrize("same", ["key", "host key", "machine-id"])
def test_what_tells_a_machine_from_others_is_certified_for_one_node(authority: Authority, same: str) -> None:
    """Templates that were cloned with their keys in them."""
    csr = request()
    issue(authority, csr=csr, host_keys=(host_key(1),), machine_id="aa" * 16)

    with pytest.raises(Refused, match=f"its (SSH )?{same}"):
        issue(
            authority,
            csr=csr if same == "key" else request(),
            node="gpu-02",
            vm_uuid=OTHER_UUID,
            host_keys=(host_key(1 if same == "host key" else 2),),
            machine_id=("aa" if same == "machine-id" else "bb") * 16,
            replace=True,
        )
    assert [record.vm_uuid for record in authority.records()] == [UUID]
