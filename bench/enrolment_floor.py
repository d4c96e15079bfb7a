"""The floor of an enrolment: one connection and two commands, as a person with paramiko would write it."""

import base64
import datetime
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bench.enrolment_nodes import BenchNode

_PEM = serialization.Encoding.PEM
_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "floor")])
_KEY = """\
set -e; umask 077; mkdir -p {dir}/new; cd {dir}/new
openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem
openssl req -new -key key.pem -subj /CN=gpu-01
"""
_INSTALL = """\
set -e; cd {dir}/new
{files}
chown 0:0 *; chmod 0640 *; chmod 0600 key.pem
[ "$(openssl x509 -in cert.pem -noout -pubkey)" = "$(openssl pkey -in key.pem -pubout)" ]
openssl verify -CAfile bundle.pem cert.pem >/dev/null
sync *; cd ..; mv new g1; ln -s g1 .link; mv -T .link current
echo installed
"""


@dataclass(frozen=True, slots=True)
class Floor:
    """A bare authority: a key in memory, no record."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def enrol(self, node: BenchNode, *, login: Path, directory: Path) -> None:
        """Key and request there, signature here, four files there."""
        with paramiko.SSHClient() as client:
            client.get_host_keys().add(
                node.address,
                node.host_key.type,
                paramiko.PKey.from_type_string(node.host_key.type, base64.b64decode(node.host_key.base64)),
            )
            client.connect(
                node.address,
                port=node.port,
                username="root",
                key_filename=str(login),
                look_for_keys=False,
                allow_agent=False,
                timeout=20,
            )
            request = x509.load_pem_x509_csr(run(client, _KEY.format(dir=directory)))
            root, leaf = (
                self._issue(self.key.public_key(), ca=True),
                self._issue(request.public_key(), ca=False),
            )
            contents = {
                "cert.pem": leaf,
                "chain.pem": root,
                "bundle.pem": root,
                "agent.yaml": b"node: gpu-01\n",
            }
            files = "\n".join(
                f"echo {base64.b64encode(content).decode()} | base64 -d > {name}"
                for name, content in contents.items()
            )
            if run(client, _INSTALL.format(dir=directory, files=files)) != b"installed\n":
                raise RuntimeError("the floor did not install")

    def _issue(self, public: object, *, ca: bool) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(
                _NAME if ca else x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gpu-01")])
            )
            .issuer_name(_NAME)
            .public_key(public)  # type: ignore[arg-type]  # the request's kind of key
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        return builder.sign(self.key, hashes.SHA256()).public_bytes(_PEM)


def run(client: paramiko.SSHClient, script: str) -> bytes:
    """One command: the script goes in by stdin, and its output comes back."""
    stdin, stdout, stderr = client.exec_command("sh -s", timeout=60)
    stdin.write(script)
    stdin.channel.shutdown_write()
    output: bytes = stdout.read()
    if stdout.channel.recv_exit_status():
        raise RuntimeError(stderr.read().decode(errors="replace"))
    return output
