"""A ceremony as one file: reviewed, run without a question, and told with its fingerprints."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from ca.ceremony import Ceremony, of_options
from ca.keystore import read_key
from ca.kinds import KeyType
from ca.layout import ROOT_KEY
from ca.policy import Policy, minimal
from ca.profile import fingerprint
from inventory.document import loads
from inventory.errors import BadFile, BadInput
from tests.ca.material import request

EXAMPLES = Path(__file__).parents[2] / "examples"
SECRETS = {
    "root.passphrase": b"the root has its own words",
    "issuing.passphrase": b"seven quiet brown otters",
}


def node_ca(*arguments: str, folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("node-ca")), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "MUSTER_CA_DIR": str(folder / "ca")},
    )


def ceremony(**keys: Any) -> Ceremony:
    return loads(
        json.dumps({"trust_domain": "lab.example", **keys}), Ceremony, name="c.yaml", base=Path("/c")
    )


@pytest.fixture(scope="module")
def attended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder in which the shipped example was run, and what was said."""
    folder = tmp_path_factory.mktemp("ceremony")
    for name in ("ceremony.yaml", "policy.yaml"):
        shutil.copy(EXAMPLES / name, folder)
    (folder / "allowed_signers").write_text("infra@lab.example ssh-ed25519 AAAA\n")
    for key in ("ticket_revoked_keys",):
        named = getattr(loads((folder / "policy.yaml").read_text(), Policy, name="p", base=folder), key)
        if named is not None:
            named.write_text("")
    for name, secret in SECRETS.items():
        (folder / name).write_bytes(secret)
        (folder / name).chmod(0o600)
    return folder, node_ca("init", "--from", str(folder / "ceremony.yaml"), "--no-input", folder=folder)


def test_the_shipped_ceremony_is_run_without_a_question(
    attended: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = attended

    assert done.returncode == 0, done.stderr
    root = x509.load_pem_x509_certificate((folder / "ca" / "root.pem").read_bytes())
    issuing = x509.load_pem_x509_certificate((folder / "ca" / "issuing.pem").read_bytes())
    rows = dict(line.split("\t") for line in done.stdout.splitlines())
    assert (rows["root SHA-256"], rows["issuing SHA-256"]) == (fingerprint(root), fingerprint(issuing))
    assert rows["root"].startswith("Ed25519, until 2")
    assert rows["root key"] == str(folder / "root-key" / ROOT_KEY)
    assert isinstance(root.public_key(), ed25519.Ed25519PublicKey)
    key = issuing.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp384r1"
    assert (root.not_valid_after_utc - root.not_valid_before_utc).days == 5475
    assert (issuing.not_valid_after_utc - issuing.not_valid_before_utc).days == 730
    assert "O=Example Lab" in issuing.subject.rfc4514_string()
    assert f"take {folder / 'root-key'} away" in done.stderr


def test_each_key_of_a_ceremony_has_the_passphrase_of_its_own_file(
    attended: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = attended
    root = x509.load_pem_x509_certificate((folder / "ca" / "root.pem").read_bytes())
    secret = SECRETS["root.passphrase"]

    read_key(folder / "root-key" / ROOT_KEY, certificate=root, passphrase=secret)
    (folder / "node.csr").write_bytes(request())
    issued = node_ca(
        *(
            "issue",
            "--csr",
            str(folder / "node.csr"),
            "--name",
            "gpu-01",
            "--yes",
            "--out",
            str(folder / "out"),
        ),
        *("--passphrase-file", str(folder / "issuing.passphrase")),
        folder=folder,
    )
    assert issued.returncode == 0, issued.stderr
    verified = subprocess.run(
        ["openssl", "verify", "-x509_strict", "-CAfile", "bundle.pem", "-untrusted", "cert.pem", "cert.pem"],
        cwd=folder / "out",
        check=False,
        timeout=600,
        capture_output=True,
        text=True,
    )
    assert verified.returncode == 0, verified.stderr


@pytest.mark.parametrize(
    "option", [("--trust-domain", "other"), ("--key-type", "p256"), ("--organisation", "X")]
)
def test_no_option_says_otherwise_than_the_file(tmp_path: Path, option: tuple[str, str]) -> None:
    told = node_ca("init", "--from", str(EXAMPLES / "ceremony.yaml"), *option, folder=tmp_path)

    assert (told.returncode, told.stdout) == (2, "")
    assert f"{option[0]} would say it otherwise" in told.stderr


def test_a_rehearsed_ceremony_tells_the_plan_and_makes_nothing(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("trust_domain: lab.example\nroot: {lifetime_days: 4000, out: usb}\n")

    told = node_ca("init", "--from", str(tmp_path / "c.yaml"), "-n", folder=tmp_path)

    rows = dict(line.split("\t") for line in told.stdout.splitlines())
    assert told.returncode == 0, told.stderr
    assert (rows["root"], rows["root key"]) == ("P-384, 4000 days", str(tmp_path / "usb" / ROOT_KEY))
    assert rows["addresses"] == "10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, fc00::/7"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml"]


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"trust_domian": "x"}, "trust_domian: unknown key (did you mean trust_domain?)"),
        ({"root": {"kye": "p384"}}, "root.kye: unknown key (did you mean key?)"),
        ({"issuing": {"key": "rsa"}}, "issuing.key:"),
        ({"root": {"lifetime_days": 36500}}, "root.lifetime_days:"),
        ({"trust_domain": None}, "a trust_domain or a policy is needed"),
        ({"root": {"request_out": "a.csr", "out": "usb"}}, "leaves no say in its out"),
        ({"issuing": {"pin_file": "pin"}}, "a pin_file belongs to a token"),
        ({"issuing": {"token": "pkcs11:token=a;object=b"}}, "no absolute module-path"),
        (
            {"issuing": {"token": "pkcs11:token=a;object=b?module-path=/p", "passphrase_file": "x"}},
            "has a PIN (pin_file) and no passphrase_file",
        ),
        ({"issuing": {"token": "pkcs11:token=a;object=b?module-path=/p", "key": "ed25519"}}, "p256 or p384"),
    ],
)
def test_a_ceremony_that_contradicts_itself_is_refused_with_its_place(
    keys: dict[str, Any], fault: str
) -> None:
    with pytest.raises(BadFile) as refused:
        ceremony(**keys)
    assert any(fault in str(told) for told in refused.value.faults), refused.value.faults
    assert all(str(told).startswith("c.yaml:1:") for told in refused.value.faults)


def test_paths_of_a_ceremony_lie_beside_its_file() -> None:
    found = ceremony(policy="p.yaml", root={"out": "usb", "passphrase_file": "r"})

    assert (found.policy, found.root.out, found.root.passphrase_file) == (
        Path("/c/p.yaml"),
        Path("/c/usb"),
        Path("/c/r"),
    )


def test_options_that_contradict_each_other_are_told_at_once() -> None:
    with pytest.raises(BadInput) as caught:
        of_options(
            policy=None,
            trust_domain="Lab Example",
            organisation="Lab",
            key_type=KeyType.ED25519,
            root_key_type=KeyType.P256,
            root_out=None,
            request_out=Path("a.csr"),
            token="pkcs11:token=a;object=b?module-path=/p",  # noqa: S106 - no secret
        )
    assert len(caught.value.why.splitlines()) == 3


@pytest.mark.parametrize("domain", ["lab.example", "lab", "1e3", "true", "a-b.c0"])
def test_the_minimal_policy_of_a_trust_domain_is_a_policy(domain: str) -> None:
    found = loads(minimal(domain), Policy, name="minimal", base=Path("/"))

    assert found.trust_domain == domain
    assert found.names == (f"{{node}}.nodes.{domain}",)
    assert [network.is_private for network in found.networks] == [True] * 4


@pytest.mark.parametrize("domain", ["", "a_b", "Lab", "10.0.0.1", "a" * 250, "x\ny", "a..b", "-a"])
def test_a_trust_domain_below_which_no_host_can_be_named_gives_no_policy(domain: str) -> None:
    with pytest.raises(BadInput) as caught:
        minimal(domain)
    assert "--policy" in caught.value.next_step


def test_a_trust_domain_and_a_policy_must_agree(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(minimal("lab.example"))

    told = node_ca(
        *("init", "--trust-domain", "lab.org", "--policy", str(tmp_path / "policy.yaml"), "-n"),
        folder=tmp_path,
    )
    agreed = node_ca(
        *("init", "--trust-domain", "lab.example", "--policy", str(tmp_path / "policy.yaml"), "-n"),
        folder=tmp_path,
    )

    assert (told.returncode, agreed.returncode) == (2, 0)
    assert "is to be lab.org, but" in told.stderr


def test_nothing_to_certify_is_no_authority(tmp_path: Path) -> None:
    told = node_ca("init", folder=tmp_path)

    assert told.returncode == 2
    assert "a trust_domain or a policy is needed" in told.stderr
    assert not (tmp_path / "ca").exists()
