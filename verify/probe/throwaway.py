"""A CA that lives for one drill: the node's openssl makes it in memory, and only that drill's leader trusts it."""

from __future__ import annotations

import os
import ssl
import subprocess
from typing import NamedTuple

from .tls import Identity, IdentityFault, Loaded, load

_TIMEOUT_S = 20.0
_SERIALS = {"good": "0x1001", "expired": "0x1002", "revoked": "0x1003", "wrong": "0x1004", "bare": "0x1005"}
_CONFIG = """\
[req]
distinguished_name = dn
[dn]
[root]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[bare]
basicConstraints = critical, CA:false
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
[good]
{leaf}subjectAltName = URI:{spiffe_id}
[wrong]
{leaf}subjectAltName = URI:{other_id}
[ca]
default_ca = list
[list]
database = {database}
default_md = sha256
crl_extensions = crl
[crl]
authorityKeyIdentifier = keyid
"""
# as `openssl ca` keeps it: state, end, when it was revoked, serial number, file, subject
_DATABASE = "R\t491231235959Z\t{when}\t1003\tunknown\t/CN=muster\n"


class CannotMake(Exception):
    """There is no openssl here, or it did not do it."""


class Made(NamedTuple):
    """An identity of the throw-away CA, and what the CA is called in a report."""

    loaded: Loaded
    name: str


class ThrowAway:
    """A root, its revocation list and one key for all its certificates; `close` forgets them.

    Args:
        spiffe_id: the good certificate's name; the wrong one's has `-other` behind it.

    Raises:
        CannotMake: openssl is not there or fails.
    """

    def __init__(self, spiffe_id: str) -> None:
        self.spiffe_id, self.other_id = spiffe_id, f"{spiffe_id}-other"
        self._memories: list[int] = []
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ThrowAway:  # noqa: PYI034 - typing.Self is younger than Python 3.9
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget keys and certificates."""
        for memory in self._memories:
            os.close(memory)
        self._memories.clear()

    def identity(self, kind: str, *, trusts: str | None = None) -> Made:
        """One certificate: good, expired, revoked, wrong (another node's) or bare (no name but the CN).

        `trusts` is a file with the roots that its holder believes in; by default this CA's own.
        """
        section = {"expired": "good", "revoked": "good"}.get(kind, kind)
        days = "0" if kind == "expired" else "1"
        leaf = self._openssl(
            *("x509", "-req", "-in", self._request, "-CA", self._root, "-CAkey", self._key, "-sha256"),
            *("-set_serial", _SERIALS[kind], "-days", days, "-extfile", self._config, "-extensions", section),
        )
        chain = self._keep(leaf)
        lists = self._list if trusts is None else None
        try:
            made = load(Identity(chain, self._leaf_key, trusts or self._root, lists))
        except IdentityFault as fault:
            raise CannotMake(str(fault)) from fault
        return Made(made, f"a throw-away CA made here ({self.fingerprint[:16]})")

    def _make(self) -> None:
        ids = {"spiffe_id": self.spiffe_id, "other_id": self.other_id}
        bare = _CONFIG.partition("[bare]\n")[2].partition("[good]")[0]
        revoked_at = "250101000000Z"
        database = self._keep(_DATABASE.format(when=revoked_at).encode())
        self._config = self._keep(_CONFIG.format(leaf=bare, database=database, **ids).encode())
        self._key, self._leaf_key = self._new_key(), self._new_key()
        root = self._openssl(
            *("req", "-x509", "-new", "-key", self._key, "-sha256", "-days", "2", "-config", self._config),
            *("-extensions", "root", "-subj", "/CN=muster throw-away"),
        )
        self.fingerprint = _fingerprint(root)
        self._root = self._keep(root)
        self._request = self._keep(
            self._openssl(
                *("req", "-new", "-key", self._leaf_key, "-config", self._config, "-subj", "/CN=muster")
            )
        )
        self._list = self._keep(
            self._openssl(
                *("ca", "-gencrl", "-crldays", "1", "-config", self._config),
                *("-keyfile", self._key, "-cert", self._root),
            )
        )

    def _new_key(self) -> str:
        return self._keep(self._openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"))

    def _keep(self, data: bytes) -> str:
        """The path of a file in memory."""
        memory = os.memfd_create("muster-throw-away")
        self._memories.append(memory)
        os.write(memory, data)
        return f"/proc/self/fd/{memory}"

    def _openssl(self, *words: str) -> bytes:
        try:
            done = subprocess.run(
                ["openssl", *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
                pass_fds=self._memories,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotMake(f"openssl does not run here: {error}") from error
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise CannotMake(f"openssl {words[0]} failed: {said[0] if said else done.returncode}")
        return done.stdout


def _fingerprint(pem: bytes) -> str:
    import hashlib

    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))).hexdigest()
