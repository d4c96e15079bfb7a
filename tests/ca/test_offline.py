"""The authority never reaches the network: its commands work where every call to a socket is refused."""

import json
import subprocess
import sys
from pathlib import Path

from cryptography import x509

from tests.ca.material import PASSPHRASE, node_key, request

# Every way to a socket raises an audit event that begins with "socket." (Python's table of audit events).
_COMMANDS = """
import contextlib, io, json, sys

touched, told = [], []

def refuse(event, arguments):
    if event.startswith("socket."):
        touched.append(event)
        raise PermissionError(event)

sys.addaudithook(refuse)
from ca.cli import main
for call in json.loads(sys.argv[1]):
    sys.argv = ["node-ca", *call]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            told.append([stop.code or 0, err.getvalue()])
heavy = {"paramiko", "requests", "proxmoxer", "urllib3", "inventory.reach"} & set(sys.modules)
print(json.dumps({"told": told, "touched": touched, "heavy": sorted(heavy)}))
"""
_PROBE = """
import socket, sys
def refuse(event, arguments):
    if event.startswith("socket."):
        raise PermissionError(event)
sys.addaudithook(refuse)
for reach in (
    lambda: socket.socket(),
    lambda: socket.create_connection(("127.0.0.1", 1)),
    lambda: socket.getaddrinfo("localhost", 1),
    lambda: socket.gethostname(),
):
    try:
        reach()
    except PermissionError as error:
        print(error)
"""


def python(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", *arguments],
        cwd=Path(__file__).parents[2],
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "MUSTER_CA_DIR": str(folder / "ca")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_hook_really_refuses_every_way_to_a_socket(tmp_path: Path) -> None:
    refused = python(_PROBE, folder=tmp_path).split()

    assert refused == ["socket.__new__", "socket.getaddrinfo", "socket.getaddrinfo", "socket.gethostname"]


def test_a_certificate_is_made_where_every_call_to_a_socket_raises(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(PASSPHRASE)
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "node.csr").write_bytes(request(node_key()))
    secret = ["--passphrase-file", str(tmp_path / "secret")]
    names = ["--name", "gpu-01", "--dns", "gpu-01.nodes.lab.example", "--ip", "10.0.0.7"]
    calls = [
        ["init", "--trust-domain", "lab.example", *secret],
        [
            "issue",
            "--csr",
            str(tmp_path / "node.csr"),
            *names,
            "--out",
            str(tmp_path / "out"),
            *secret,
            "--yes",
        ],
        ["list", "--json"],
        ["status"],
        ["revoke", "gpu-01", "--reason", "superseded", "--yes"],
    ]

    said = json.loads(python(_COMMANDS, json.dumps(calls), folder=tmp_path))

    assert (said["touched"], said["heavy"]) == ([], [])
    # status says with its exit code what is to be seen to: the root's key has not been taken away yet.
    assert [code for code, _ in said["told"][:3]] == [0, 0, 0], said["told"]
    assert len(said["told"]) == len(calls)
    chain = x509.load_pem_x509_certificates((tmp_path / "out" / "cert.pem").read_bytes())
    bundle = x509.load_pem_x509_certificates((tmp_path / "out" / "bundle.pem").read_bytes())
    assert [len(chain), len(bundle)] == [2, 1]
    chain[0].verify_directly_issued_by(chain[1])
    chain[1].verify_directly_issued_by(bundle[0])
