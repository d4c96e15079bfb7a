"""A root kept elsewhere, which openssl plays: what it signs completes the authority, if it is fit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ca.authority import Authority
from ca.ceremony import Ceremony
from ca.external import complete
from ca.founding import found
from ca.keystore import Kdf
from ca.layout import Layout
from ca.profile import fingerprint
from inventory.errors import BadInput, Damaged, Refused
from tests.ca import outside_root
from tests.ca.judges import cryptography_verify, openssl_verify
from tests.ca.material import CHEAP, NOW, PASSPHRASE, issue, kinds
from tests.ca.outside_root import OutsideRoot

LIMITS = "nameConstraints = critical, {}"
ALL_LIMITS = (
    "permitted;DNS:nodes.lab.example, permitted;IP:10.0.0.0/255.0.0.0, permitted;IP:172.16.0.0/255.240.0.0,"
    "permitted;IP:192.168.0.0/255.255.0.0, permitted;IP:fc00::/fe00::"
)
OWN = (
    "basicConstraints = {basic}\nkeyUsage = {usage}\nsubjectKeyIdentifier = hash\n"
    "extendedKeyUsage = {purposes}\nnameConstraints = {limits}\n"
)
RIGHT = {
    "basic": "critical, CA:TRUE, pathlen:0",
    "usage": "critical, keyCertSign, cRLSign",
    "purposes": "serverAuth, clientAuth",
    "limits": f"critical, {ALL_LIMITS}",
}


def waiting(folder: Path) -> Layout:
    """An authority that waits, with its request in folder/ask.csr."""
    wanted = Ceremony.model_validate(
        {"trust_domain": "lab.example", "root": {"request_out": folder / "ask.csr"}, "organisation": "Lab"}
    )
    found(folder / "ca", wanted, secret=PASSPHRASE, root_secret=b"", actor="tester", now=NOW, kdf=CHEAP)
    return Layout(folder / "ca")


def completed(
    folder: Path, certificate: Path, root: Path | None, *, secret: bytes = PASSPHRASE, floor: Kdf = CHEAP
) -> Authority:
    complete(
        folder / "ca",
        certificate_file=certificate,
        root_file=root,
        secret=secret,
        kdf=CHEAP,
        actor="tester",
        now=NOW,
        floor=floor,
    )
    return Authority.open(folder / "ca", now=NOW, kdf_floor=CHEAP)


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> OutsideRoot:
    return outside_root.made(tmp_path_factory.mktemp("company") / "root")


@pytest.mark.parametrize("key", ["EC:P-384", "RSA:3072"])
def test_an_authority_below_a_root_of_others_issues_what_every_judge_takes(tmp_path: Path, key: str) -> None:
    root = outside_root.made(tmp_path / "company", key=key)
    waiting(tmp_path)

    authority = completed(tmp_path, root.signs(tmp_path / "ask.csr"), root.certificate)
    issued = issue(authority)

    leaf = tmp_path / "leaf.pem"
    leaf.write_bytes(issued.certificate_pem)
    assert openssl_verify(authority.layout.folder, leaf, at=NOW) == ""
    cryptography_verify(issued.chain_pem, authority.bundle_pem, at=NOW)
    assert authority.root_is_elsewhere
    assert not any("root's key" in text for text in authority.warnings(NOW))
    assert kinds(authority) == ["init", "intent", "issued"]
    assert not {authority.layout.waiting_key.name, authority.layout.request.name} & {
        file.name for file in authority.layout.folder.iterdir()
    }


def test_certificate_and_root_may_come_in_one_file(tmp_path: Path, top: OutsideRoot) -> None:
    waiting(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(top.certificate.read_bytes() + top.signs(tmp_path / "ask.csr").read_bytes())

    assert completed(tmp_path, both, None).root == x509.load_pem_x509_certificate(
        top.certificate.read_bytes()
    )


def test_what_waits_says_so_to_every_command(tmp_path: Path) -> None:
    layout = waiting(tmp_path)

    with pytest.raises(Refused) as caught:
        Authority.open(layout.folder, now=NOW)
    assert "waits for the certificate" in caught.value.why
    assert f"node-ca init --ca-dir {layout.folder} --external-root-cert" in caught.value.next_step
    assert str(layout.request) in caught.value.next_step


def test_the_request_asks_for_all_that_is_judged_later(tmp_path: Path) -> None:
    layout = waiting(tmp_path)

    asked = x509.load_pem_x509_csr((tmp_path / "ask.csr").read_bytes())

    assert asked.is_signature_valid
    assert layout.request.read_bytes() == (tmp_path / "ask.csr").read_bytes()
    there = {type(extension.value): extension.critical for extension in asked.extensions}
    assert there == {
        x509.BasicConstraints: True,
        x509.KeyUsage: True,
        x509.ExtendedKeyUsage: False,
        x509.NameConstraints: True,
        x509.SubjectKeyIdentifier: False,
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"basic": "critical, CA:TRUE"}, "its path length is None, not 0"),
        ({"basic": "critical, CA:TRUE, pathlen:1"}, "its path length is 1, not 0"),
        ({"basic": "CA:TRUE, pathlen:0"}, "BasicConstraints are not critical"),
        ({"basic": "critical, CA:FALSE"}, "not critical and CA:TRUE"),
        ({"usage": "critical, digitalSignature, keyCertSign"}, "KeyUsage is not critical with"),
        ({"usage": "keyCertSign, cRLSign"}, "KeyUsage is not critical with"),
        ({"purposes": "serverAuth"}, "lacks serverAuth or clientAuth"),
        ({"limits": ALL_LIMITS}, "no critical name constraints"),
        ({"limits": "critical, permitted;DNS:nodes.lab.example"}, "do not speak of IPv4"),
        ({"limits": f"critical, {ALL_LIMITS.partition(', ')[2]}"}, "permit no domain"),
        (
            {"limits": f"critical, {ALL_LIMITS.replace('lab.example', 'lab.org')}"},
            "grants more than it permits",
        ),
        (
            {"limits": f"critical, {ALL_LIMITS.replace('10.0.0.0/255.0', '10.0.0.0/255.255')}"},
            "10.0.0.0/8 lies",
        ),
        ({"limits": f"critical, {ALL_LIMITS}, excluded;IP:10.9.0.0/255.255.0.0"}, "excludes 10.9.0.0/16"),
    ],
    ids=lambda value: next(iter(value.values()))[:40] if isinstance(value, dict) else None,
)
def test_a_certificate_of_another_shape_is_not_taken(
    tmp_path: Path, top: OutsideRoot, changes: dict[str, str], reason: str
) -> None:
    layout = waiting(tmp_path)
    signed = top.signs(tmp_path / "ask.csr", copy="none", more=OWN.format(**RIGHT | changes))

    with pytest.raises(Refused, match="was not taken") as caught:
        completed(tmp_path, signed, top.certificate)
    assert reason in caught.value.why
    assert not layout.audit.exists()
    right = top.signs(tmp_path / "ask.csr", copy="none", more=OWN.format(**RIGHT))
    assert completed(tmp_path, right, top.certificate).entries == 1


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ({"end": "20370101000000Z"}, "it outlives its root"),
        ({"end": "20261201000000Z"}, "ends before a node's certificate of 30 days would"),
        ({"end": "20261101000000Z"}, "it is not valid now"),
        ({"begin": "20270101000000Z"}, "it is not valid now"),
        ({"digest": "sha1"}, "signed over sha1"),
    ],
    ids=["outlives", "too short", "expired", "not yet", "SHA-1"],
)
def test_a_certificate_of_wrong_times_or_weak_signature_is_not_taken(
    tmp_path: Path, top: OutsideRoot, times: dict[str, str], reason: str
) -> None:
    waiting(tmp_path)
    signed = top.signs(tmp_path / "ask.csr", **times)

    with pytest.raises(Refused) as caught:
        completed(tmp_path, signed, top.certificate)
    assert reason in caught.value.why


def test_a_certificate_for_another_key_or_from_another_root_is_not_taken(
    tmp_path: Path, top: OutsideRoot
) -> None:
    waiting(tmp_path)
    (tmp_path / "other").mkdir()
    waiting(tmp_path / "other")
    stranger = outside_root.made(tmp_path / "stranger")

    with pytest.raises(Refused) as foreign:
        completed(tmp_path, top.signs(tmp_path / "other" / "ask.csr"), top.certificate)
    with pytest.raises(Refused) as mixed:
        completed(tmp_path, top.signs(tmp_path / "ask.csr"), stranger.certificate)

    assert "its key is not the one that was asked for" in foreign.value.why
    assert "its AuthorityKeyIdentifier is not the root's" in mixed.value.why


def test_a_root_that_may_have_none_below_it_is_not_taken(tmp_path: Path) -> None:
    root = outside_root.made(tmp_path / "company", basic="CA:TRUE, pathlen:0")
    waiting(tmp_path)

    with pytest.raises(Refused, match="no authority that may have one below it"):
        completed(tmp_path, root.signs(tmp_path / "ask.csr"), root.certificate)


def test_a_policy_narrowed_while_it_waits_makes_a_narrow_certificate_fit(
    tmp_path: Path, top: OutsideRoot
) -> None:
    layout = waiting(tmp_path)
    narrow = ALL_LIMITS.replace("10.0.0.0/255.0.0.0", "10.7.0.0/255.255.0.0")
    signed = top.signs(
        tmp_path / "ask.csr", copy="none", more=OWN.format(**RIGHT | {"limits": f"critical, {narrow}"})
    )
    text = layout.policy.read_text()
    layout.policy.write_text(text.replace("10.0.0.0/8", "10.7.0.0/16"))

    authority = completed(tmp_path, signed, top.certificate)

    assert issue(authority, address="10.7.0.1").addresses == ("10.7.0.1",)


@pytest.mark.parametrize(
    "content", [b"", b"words", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_what_is_no_certificate_is_said_so(tmp_path: Path, top: OutsideRoot, content: bytes) -> None:
    waiting(tmp_path)
    (tmp_path / "signed.pem").write_bytes(content)

    with pytest.raises(BadInput, match="holds no certificate"):
        completed(tmp_path, tmp_path / "signed.pem", top.certificate)
    with pytest.raises(BadInput, match="one root and one certificate"):
        completed(tmp_path, top.certificate, top.certificate)


def test_a_wrong_passphrase_completes_nothing(tmp_path: Path, top: OutsideRoot) -> None:
    layout = waiting(tmp_path)
    signed = top.signs(tmp_path / "ask.csr")

    with pytest.raises(BadInput, match="passphrase is wrong"):
        completed(tmp_path, signed, top.certificate, secret=b"wrong")
    with pytest.raises(Refused, match="protected too weakly"):
        completed(tmp_path, signed, top.certificate, floor=Kdf(128, 1, 1))
    assert not layout.audit.exists()


def test_nothing_is_completed_twice_or_out_of_nothing(tmp_path: Path, top: OutsideRoot) -> None:
    waiting(tmp_path)
    signed = top.signs(tmp_path / "ask.csr")
    authority = completed(tmp_path, signed, top.certificate)

    with pytest.raises(Refused, match="is complete"):
        completed(tmp_path, signed, top.certificate)
    (tmp_path / "none").mkdir()
    with pytest.raises(BadInput, match="waits for its certificate"):
        completed(tmp_path / "none", signed, top.certificate)
    assert Authority.open(authority.layout.folder, now=NOW, kdf_floor=CHEAP).head == authority.head


def test_a_kill_while_it_completes_leaves_what_can_be_run_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.ca.killed_keys", "complete", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        check=False,
        timeout=600,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    kills = json.loads(done.stdout)
    assert {kill["opens"][0] for kill in kills} == {"waiting", "complete"}
    assert len(kills) > 15
    assert [kill["left"] for kill in kills if kill["left"]] == []


def test_the_commands_walk_the_whole_way(tmp_path: Path, top: OutsideRoot) -> None:
    (tmp_path / "secret").write_bytes(PASSPHRASE)
    (tmp_path / "secret").chmod(0o600)

    def node_ca(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                str(Path(sys.executable).with_name("node-ca")),
                *arguments,
                "--passphrase-file",
                str(tmp_path / "secret"),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "MUSTER_CA_DIR": str(tmp_path / "ca")},
        )

    begun = node_ca(
        "init", "--trust-domain", "lab.example", "--external-root", str(tmp_path / "ask.csr"), "--json"
    )
    assert begun.returncode == 0, begun.stderr
    asked = x509.load_pem_x509_csr((tmp_path / "ask.csr").read_bytes())
    told = json.loads(begun.stdout)
    assert (told["state"], told["request_sha256"]) == ("waiting", fingerprint(asked))
    assert "--external-root-cert" in begun.stderr or told["request"] == str(tmp_path / "ask.csr")

    signed = str(top.signs(tmp_path / "ask.csr"))
    with_root = ("--external-root-cert", signed, "--root", str(top.certificate))
    unfit = node_ca("init", "--external-root-cert", str(top.certificate), "--root", str(top.certificate))
    rehearsed = node_ca("init", *with_root, "-n", "--json")
    ended = node_ca("init", *with_root, "--json")

    assert (unfit.returncode, unfit.stdout) == (2, "")
    assert json.loads(rehearsed.stdout)["dry_run"] is True
    assert ended.returncode == 0, ended.stderr
    made = json.loads(ended.stdout)
    assert (made["state"], made["root_key"]) == ("complete", None)


def test_a_request_replaces_no_file(tmp_path: Path) -> None:
    (tmp_path / "ask.csr").symlink_to("nowhere")

    with pytest.raises(Refused, match="a request replaces no file"):
        waiting(tmp_path)
    assert not (tmp_path / "ca").exists()


def test_a_folder_that_lost_its_request_is_damage(tmp_path: Path, top: OutsideRoot) -> None:
    layout = waiting(tmp_path)
    layout.request.write_bytes(b"")

    with pytest.raises(Damaged, match="is not the request"):
        completed(tmp_path, top.certificate, top.certificate)


def test_files_that_are_absent_or_in_the_other_form_are_read_or_told(
    tmp_path: Path, top: OutsideRoot
) -> None:
    waiting(tmp_path)
    signed = x509.load_pem_x509_certificate(top.signs(tmp_path / "ask.csr").read_bytes())
    (tmp_path / "signed.der").write_bytes(signed.public_bytes(Encoding.DER))

    with pytest.raises(BadInput, match="No such file"):
        completed(tmp_path, tmp_path / "absent.pem", top.certificate)
    assert completed(tmp_path, tmp_path / "signed.der", top.certificate).issuing == signed


def test_a_weak_root_is_not_taken(tmp_path: Path) -> None:
    root = outside_root.made(tmp_path / "company", key="RSA:1024")
    waiting(tmp_path)

    with pytest.raises(Refused, match="RSA key of 1024 bits; 2048 are the least"):
        completed(tmp_path, root.signs(tmp_path / "ask.csr"), root.certificate)


def test_a_root_below_which_no_certificate_counts_is_found_before_the_first_node_is(tmp_path: Path) -> None:
    # openssl takes this root, which forbids a domain; the first node's certificate would have been held back.
    forbids = "CA:TRUE\nnameConstraints = critical, excluded;DNS:nodes.lab.example"
    root = outside_root.made(tmp_path / "company", basic=forbids)
    waiting(tmp_path)

    with pytest.raises(Refused, match="a certificate below it would not count"):
        completed(tmp_path, root.signs(tmp_path / "ask.csr"), root.certificate)
