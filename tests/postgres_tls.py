"""The throw-away PostgreSQL server over TLS: a CA of its own, certificates, passwords, passfile and service file."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.postgres import OWNER, Server

ADDRESS = "127.0.0.1"
RIGHT, WRONG_NAME = "right", "wrong-name"  # certificates that it can present

# The first line that fits decides: who has a certificate is never asked for a password.
_HBA = f"""\
local     all,replication all trust
hostssl   all {{certified}} {ADDRESS}/32 cert map=people
hostssl   all all {ADDRESS}/32 scram-sha-256
hostnossl all all {ADDRESS}/32 scram-sha-256
"""
_SETTINGS = """
ssl = on
ssl_ca_file = '{folder}/ca.crt'
ssl_cert_file = '{folder}/right.crt'
ssl_key_file = '{folder}/right.key'
ssl_min_protocol_version = 'TLSv1.2'
password_encryption = 'scram-sha-256'
"""
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority made by openssl: its certificate and its key."""

    certificate: Path
    key: Path

    @classmethod
    def make(cls, folder: Path, name: str) -> "Authority":
        """A new one, of two days, as NAME.crt and NAME.key."""
        made = cls(folder / f"{name}.crt", folder / f"{name}.key")
        _openssl(
            *("req", "-x509", "-days", "2", "-subj", f"/CN=Test authority {name}", *_NEW_KEY),
            *("-keyout", made.key, "-out", made.certificate),
        )
        return made

    def issue(self, folder: Path, name: str, *, common_name: str, usage: str, names: str = "") -> "Leaf":
        """A certificate and its key as NAME.crt and NAME.key; `names` is a subjectAltName."""
        leaf, request = Leaf(folder / f"{name}.crt", folder / f"{name}.key"), folder / f"{name}.csr"
        _openssl(
            *("req", "-new", "-subj", f"/CN={common_name}", *_NEW_KEY, "-keyout", leaf.key, "-out", request),
            *("-addext", f"extendedKeyUsage={usage}", "-addext", "basicConstraints=CA:FALSE"),
            *(("-addext", f"subjectAltName={names}") if names else ()),
        )
        _openssl(
            *("x509", "-req", "-in", request, "-days", "2", "-copy_extensions", "copy"),
            *("-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial", "-out", leaf.certificate),
        )
        leaf.key.chmod(0o600)  # neither libpq nor the server takes one that others can read
        return leaf


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate and its key."""

    certificate: Path
    key: Path


class TlsServer(Server):
    """A server on 127.0.0.1 too: TLS with a certificate for 127.0.0.1 and localhost, or without.

    Who was made by create_login() logs in with a password (SCRAM), by create_certificate_login() with a certificate
    alone. Whatever clients need lies in `client`: files of ours, for us alone.
    """

    def __init__(self, *, settings: str = "") -> None:
        self._names: dict[str, str] = {}  # of certificates, and whose role each is
        super().__init__(tcp=True, settings=settings)
        try:
            self.certify(OWNER, common_name=f"{OWNER}@test")
        except BaseException:
            self.end()
            raise

    def prepare(self) -> None:
        """Make the authority, one that nobody trusts, and the certificates that the server can present."""
        self.client = self.folder / "client"
        self.client.mkdir(mode=0o700)
        self._authority = Authority.make(self.client, "ca")
        self.ca = self._authority.certificate
        self.wrong_ca = Authority.make(self.client, "wrong-ca").certificate
        self.write("ca.crt", self.ca.read_text())
        for name, names in (
            (RIGHT, f"IP:{ADDRESS},DNS:localhost"),
            (WRONG_NAME, "IP:127.0.0.2,DNS:db.example"),
        ):
            leaf = self._authority.issue(
                self.client, name, common_name="server", usage="serverAuth", names=names
            )
            self.write(f"{name}.crt", leaf.certificate.read_text())
            self.write(f"{name}.key", leaf.key.read_text())
        self._settings += _SETTINGS.format(folder=self.folder)

    def present(self, name: str | None) -> None:
        """Present the certificate RIGHT or WRONG_NAME to those who come from now on; None: speak no TLS."""
        lines = (
            ("ssl = off",)
            if name is None
            else (
                "ssl = on",
                f"ssl_cert_file = '{self.folder}/{name}.crt'",
                f"ssl_key_file = '{self.folder}/{name}.key'",
            )
        )
        self.add_settings("\n".join(lines) + "\n")

    # Whom to ask

    def tls_url(self, database: str = OWNER, *, user: str, host: str = ADDRESS, **query: str) -> str:
        """The address of a database over TCP, verified in full; `query` adds to that or replaces it."""
        verified = {"sslmode": "verify-full", "sslrootcert": str(self.ca)}
        return self.url(database, user=user, host=host, **verified | query)

    def certificate_url(self, database: str = OWNER, *, user: str = OWNER, host: str = ADDRESS) -> str:
        """The same for a login with a certificate."""
        leaf = Leaf(self.client / f"{user}.crt", self.client / f"{user}.key")
        files = {"sslcert": str(leaf.certificate), "sslkey": str(leaf.key)}
        return self.tls_url(database, user=user, host=host, **files)

    # How to log in

    def create_certificate_login(self, name: str, *member_of: str, common_name: str | None = None) -> Leaf:
        """A new role that logs in with a certificate for `common_name`, whose map says that it is `name`."""
        self.create_login(name, *member_of)
        return self.certify(name, common_name=common_name or f"{name}@test")

    def certify(self, name: str, *, common_name: str) -> Leaf:
        """A certificate for `common_name`, which the server takes for the role `name`."""
        leaf = self._authority.issue(self.client, name, common_name=common_name, usage="clientAuth")
        self._names[common_name] = name
        lines = (f'people "{subject}" "{role}"\n' for subject, role in self._names.items())
        self.write("data/pg_ident.conf", "".join(lines))
        certified = ",".join(f'"{role}"' for role in sorted(set(self._names.values())))
        self.write("data/pg_hba.conf", _HBA.format(certified=certified))
        self.reload()
        return leaf

    def passfile(self, user: str, password: str, *, host: str = ADDRESS) -> Path:
        """A new file with this one password, as `passfile=` takes it."""
        return self._for_client(f"{user}.pgpass", f"{host}:{self.port}:*:{user}:{password}\n")

    def service_file(self, service: str, **keys: str) -> Path:
        """A new file with this one service, as the variable PGSERVICEFILE takes it; host and port are there."""
        keys = {
            "host": ADDRESS,
            "port": str(self.port),
            "sslmode": "verify-full",
            "sslrootcert": str(self.ca),
        } | keys
        lines = "".join(f"{name}={value}\n" for name, value in keys.items())
        return self._for_client(f"{service}.conf", f"[{service}]\n{lines}")

    def _for_client(self, name: str, text: str) -> Path:
        file = self.client / name
        file.touch(mode=0o600)
        file.write_text(text)
        return file


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
