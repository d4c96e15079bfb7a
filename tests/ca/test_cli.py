"""node-ca as a person meets it: exit code, stdout, stderr; with the real key protection."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding

from ca import transcript
from ca.profile import fingerprint
from tests.ca.material import NOW, new_authority, policy_text, request

_RUN = "import sys; sys.argv[0] = 'node-ca'; from ca.cli import main; main()"
_RUN_MANY = """
import contextlib, io, json, sys
from ca.cli import main
told = []
for call in json.loads(sys.argv[1]):
    sys.argv = ["node-ca", *call]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            told.append([stop.code or 0, out.getvalue(), err.getvalue()])
print(json.dumps(told))
"""
COMMANDS = (
    "init",
    "status",
    "issue",
    "list",
    "show",
    "revoke",
    "passphrase",
    "export",
    "audit",
    "issue-many",
    "crl",
    "backup",
    "restore",
    "rotate",
)
SECRET = "seven quiet otters"  # noqa: S105 - of this test only


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.out)
        assert found["schema"] == 1
        return found


def ed25519_request() -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(ed25519.Ed25519PrivateKey.generate(), None).public_bytes(Encoding.PEM)


def node_cas(*calls: Sequence[str], folder: Path) -> list[Done]:
    """Several calls that need no standard input, in one process for the sake of time."""
    done = node_ca(json.dumps(calls), folder=folder, program=_RUN_MANY)
    assert done.code == 0, done.err
    return [Done(*told) for told in json.loads(done.out)]


def node_ca(
    *arguments: str, folder: Path, stdin: str = "", path: str | None = None, program: str = _RUN
) -> Done:
    environment = {
        **os.environ,
        "MUSTER_CA_DIR": str(folder / "ca"),
        "PYTHONWARNINGS": "error",
        "COLUMNS": "80",
    }
    if path is not None:
        environment["PATH"] = path
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        input=stdin,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True, slots=True)
class Made:
    """A folder with an authority that the command itself made, and a request; and what it said."""

    folder: Path
    said: Done


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    place = tmp_path_factory.mktemp("cli")
    (place / "policy.yaml").write_text(policy_text())
    (place / "passphrase").write_text(f"{SECRET}\n")
    (place / "passphrase").chmod(0o600)
    (place / "node.csr").write_bytes(request())
    said = node_ca(
        *("init", "--policy", str(place / "policy.yaml"), "--passphrase-file", str(place / "passphrase")),
        *("--root-passphrase-file", "-", "--root-out", str(place / "usb")),
        folder=place,
        stdin="another\n",
    )
    assert said.code == 0, said.err
    return Made(place, said)


@pytest.fixture(scope="module")
def folder(made: Made) -> Path:
    return made.folder


def test_help_says_everything_in_eighty_columns(tmp_path: Path) -> None:
    for told in node_cas(["-h"], *([command, "--help"] for command in COMMANDS), folder=tmp_path):
        assert told.code == 0
        assert "node-ca " in told.out.split("Example", 1)[1]
        assert max(len(line) for line in told.out.splitlines()) <= 80
        assert "..." not in told.out.replace("[ARGS]...", "").replace("[NODES]...", "")


def test_the_version_is_one_line(tmp_path: Path) -> None:
    assert re.fullmatch(r"node-ca \S+\n", node_ca("--version", folder=tmp_path).out)


def test_a_new_authority_tells_its_fingerprint_and_what_to_take_away(made: Made) -> None:
    rows = dict(line.split("\t") for line in made.said.out.splitlines())
    root = x509.load_pem_x509_certificate((made.folder / "ca" / "root.pem").read_bytes())

    assert rows["root SHA-256"] == fingerprint(root)
    assert rows["folder"] == str(made.folder / "ca")
    assert rows["root key"] == str(made.folder / "usb" / "root-key.json")
    assert f"take {made.folder / 'usb'} away" in made.said.err
    assert "warning: the root's key is still on this host" in made.said.err


def test_a_new_authority_as_json_says_the_same(tmp_path: Path) -> None:
    authority = new_authority(tmp_path)

    said = transcript.made(authority, NOW)

    assert said["fingerprint_sha256"] == authority.fingerprint_sha256
    assert said["root_key"] == str(tmp_path / "ca" / "root-take-away" / "root-key.json")
    assert said["not_after"] == "2029-11-29T11:50:00Z"
    assert len(said["warnings"]) == 1


def test_an_authority_is_never_made_over_another(folder: Path) -> None:
    again = node_ca("init", "--policy", str(folder / "policy.yaml"), "--no-input", folder=folder)

    assert (again.code, again.out) == (3, "")
    assert "is ever overwritten" in again.err


def test_a_rehearsed_init_makes_nothing(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(policy_text())

    told = node_ca("init", "-n", "--policy", str(tmp_path / "policy.yaml"), "--json", folder=tmp_path)

    assert (told.code, told.document["dry_run"]) == (0, True)
    assert not (tmp_path / "ca").exists()


def test_a_faulty_policy_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("trust_domian: lab.example\nnames: ['{node}.lab']\n")

    told = node_ca("init", "--policy", str(tmp_path / "policy.yaml"), folder=tmp_path)

    assert told.code == 2
    assert "policy.yaml:1:1: trust_domian: unknown key (did you mean trust_domain?)" in told.err


def test_wrong_usage_ends_with_two_and_an_empty_stdout(tmp_path: Path) -> None:
    wrong = (
        ["init", "--policy", "p", "--passphrase", SECRET],
        ["issue", "--csr", "c", "--name", "n", "--passphrase", SECRET],
        ["statsu"],
        ["list", "--nodee", "x"],
        ["revoke", "gpu-01", "--reason", "boredom"],
    )
    for told in node_cas(*wrong, folder=tmp_path):
        assert (told.code, told.out) == (2, "")
        assert told.err


def test_without_an_authority_every_command_says_how_to_make_one(tmp_path: Path) -> None:
    for arguments in (
        ["status"],
        ["list"],
        ["show", "gpu-01"],
        ["revoke", "gpu-01", "--reason", "superseded"],
    ):
        told = node_ca(*arguments, folder=tmp_path)

        assert told.code == 2
        assert "node-ca init --policy" in told.err


def issue_arguments(folder: Path, name: str, *more: str) -> list[str]:
    return ["issue", "--csr", str(folder / "node.csr"), "--name", name, *more]


def test_a_certificate_is_issued_listed_shown_and_revoked(folder: Path, tmp_path: Path) -> None:
    secret = ("--passphrase-file", str(folder / "passphrase"))
    out = ("--out", str(tmp_path / "out"))
    issued = node_ca(
        *issue_arguments(folder, "gpu-01", "--ip", "10.0.0.7", "--yes", "--json", *secret, *out),
        folder=folder,
    )
    listed, shown, status = node_cas(
        ["list"], ["show", "gpu-01", "--json"], ["status", "--json"], folder=folder
    )

    assert issued.code == 0, issued.err
    serial = str(issued.document["serial"])
    chain = x509.load_pem_x509_certificates((tmp_path / "out" / "cert.pem").read_bytes())
    assert [f"{chain[0].serial_number:x}", len(chain)] == [serial, 2]
    assert (tmp_path / "out" / "bundle.pem").read_bytes() == (folder / "ca" / "root.pem").read_bytes()
    titles, row = listed.out.splitlines()
    assert titles.split("\t")[:4] == ["serial", "node", "state", "not-after"]
    assert row.split("\t")[:3] == [serial, "gpu-01", "issued"]
    assert shown.document["certificates"][0]["serial"] == serial  # type: ignore[index]  # JSON
    assert status.document["certificates"] == {"issued": 1}
    assert status.document["audit"]["entries"] == 3  # type: ignore[index]  # JSON

    revoke = ("revoke", "gpu-01", "--reason", "superseded")
    rehearsed, unasked, revoked, again, last = node_cas(
        [*revoke, "-n", "--json"],
        revoke,
        [*revoke, "--yes", "--json"],
        [*revoke, "--json"],
        ["list", "--node", "gpu-01"],
        folder=folder,
    )

    assert (rehearsed.code, rehearsed.document["changed"]) == (0, False)
    assert (unasked.code, unasked.out) == (2, "")
    assert "--yes" in unasked.err
    assert (revoked.code, revoked.document["changed"]) == (0, True)
    assert (again.code, again.document["changed"]) == (0, False)
    assert last.out.splitlines()[1].split("\t")[2] == "revoked"


def test_a_rehearsed_issue_signs_nothing_and_refusals_come_before_the_passphrase(
    folder: Path, tmp_path: Path
) -> None:
    before = (folder / "ca" / "audit.jsonl").read_bytes()
    (tmp_path / "cert.pem").write_text("mine")

    rehearsed, refused, overwriting, two_takers, unknown = node_cas(
        issue_arguments(folder, "gpu-01", "-n", "--json"),
        issue_arguments(folder, "gpu-01", "--ip", "192.0.2.1", "--yes"),
        issue_arguments(folder, "gpu-01", "--yes", "--out", str(tmp_path)),
        ["issue", "--csr", "-", "--name", "gpu-01", "--passphrase-file", "-"],
        issue_arguments(folder, "gpu-01", "--yes", "--no-input"),
        folder=folder,
    )

    assert rehearsed.code == 0
    assert rehearsed.document["would_issue"]["names"] == ["gpu-01.nodes.lab.example"]  # type: ignore[index]  # JSON
    assert (refused.code, refused.out) == (3, "")
    assert "in none of the policy's addresses" in refused.err
    assert (overwriting.code, (tmp_path / "cert.pem").read_text()) == (3, "mine")
    assert two_takers.code == 2
    assert "two things" in two_takers.err
    assert unknown.code == 2
    assert "--passphrase-file" in unknown.err
    assert (folder / "ca" / "audit.jsonl").read_bytes() == before


def test_a_wrong_passphrase_signs_nothing(folder: Path) -> None:
    told = node_ca(
        *issue_arguments(folder, "gpu-01", "--yes", "--passphrase-file", "-"), folder=folder, stdin="wrong\n"
    )

    assert (told.code, told.out) == (2, "")
    assert "passphrase is wrong" in told.err


def test_the_passphrase_is_on_no_command_line_and_in_no_childs_environment(
    folder: Path, tmp_path: Path
) -> None:
    spy = tmp_path / "bin" / "openssl"
    spy.parent.mkdir()
    spy.write_text(
        f"#!/bin/sh\ncat /proc/[0-9]*/cmdline >> {tmp_path}/seen 2>/dev/null\nenv >> {tmp_path}/given\nexit 0\n"
    )
    spy.chmod(0o700)
    shutil.copytree(folder / "ca", tmp_path / "ca")
    # the one kind of key for which a child is started
    (tmp_path / "ca/policy.yaml").write_text(policy_text(node_keys=["ed25519"]))
    (tmp_path / "other.csr").write_bytes(ed25519_request())

    told = node_ca(
        *("issue", "--csr", str(tmp_path / "other.csr"), "--name", "gpu-05", "--yes"),
        *("--passphrase-file", "-"),
        folder=tmp_path,
        stdin=f"{SECRET}\n",
        path=f"{spy.parent}:{os.environ['PATH']}",
    )

    assert told.code == 0, told.err
    assert told.out.startswith("-----BEGIN CERTIFICATE-----\n")
    seen, given = (tmp_path / "seen").read_bytes(), (tmp_path / "given").read_bytes()
    assert b"gpu-05" in seen
    assert SECRET.encode() not in seen + given
    assert b"MUSTER_" not in given
    assert SECRET not in told.out + told.err


def test_damage_ends_with_six(tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder / "ca", tmp_path / "ca")
    audit = tmp_path / "ca" / "audit.jsonl"
    audit.write_bytes(audit.read_bytes().replace(b"lab.example", b"lab.exampel", 1) + b"{}\n")

    told = node_ca("status", folder=tmp_path)

    assert told.code == 6
    assert "\naudit\tcritical\t" in told.out
    assert "cannot be relied on" in told.err


def test_an_open_key_file_ends_with_three_and_its_mend(tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder / "ca", tmp_path / "ca")
    (tmp_path / "ca" / "issuing-key.json").chmod(0o644)

    told = node_ca("status", folder=tmp_path)

    assert told.code == 3
    assert f"next: chmod 600 {tmp_path / 'ca' / 'issuing-key.json'}" in told.err
