"""A root that is none of ours: openssl makes it, and signs with it what it is asked to, or something else."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

# Until 2036, from before the tests' present, which is fixed.
BEGIN, END = "20260101000000Z", "20360101000000Z"
_ROOT = """\
[req]
distinguished_name = dn
x509_extensions = ext
prompt = no
[dn]
O = Old Company
CN = Company Root
[ext]
basicConstraints = critical, {basic}
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
"""
_CA = """\
[ca]
default_ca = one
[one]
database = {folder}/index.txt
serial = {folder}/serial
new_certs_dir = {folder}
certificate = {folder}/root.pem
private_key = {folder}/root.key
default_md = {digest}
policy = any
copy_extensions = {copy}
unique_subject = no
{extensions}
[any]
organizationName = optional
commonName = supplied
[more]
authorityKeyIdentifier = keyid
{more}
"""


@dataclass(frozen=True, slots=True)
class OutsideRoot:
    """The folder of openssl's root."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "root.pem"

    def signs(
        self,
        request: Path,
        *,
        more: str = "",
        copy: str = "copyall",
        digest: str = "sha256",
        begin: str = BEGIN,
        end: str = "20300101000000Z",
    ) -> Path:
        """The certificate that the root gives out for a request, its own extensions beside those asked for."""
        conf = self.folder / "ca.cnf"
        conf.write_text(
            _CA.format(
                folder=self.folder, more=more, copy=copy, digest=digest, extensions="x509_extensions = more"
            )
        )
        out = self.folder / "signed.pem"
        out.unlink(missing_ok=True)
        arguments = ["ca", "-batch", "-notext", "-config", str(conf), "-in", str(request), "-out", str(out)]
        _openssl(*arguments, "-startdate", begin, "-enddate", end)
        return out


def made(
    folder: Path, *, key: str = "EC:P-384", basic: str = "CA:TRUE", begin: str = BEGIN, end: str = END
) -> OutsideRoot:
    """A new root of openssl's making."""
    folder.mkdir()
    kind, size = key.split(":")
    option = f"ec_paramgen_curve:{size}" if kind == "EC" else f"rsa_keygen_bits:{size}"
    _openssl("genpkey", "-algorithm", kind, "-pkeyopt", option, "-out", str(folder / "root.key"))
    (folder / "root.cnf").write_text(_ROOT.format(basic=basic))
    (folder / "index.txt").write_text("")
    (folder / "serial").write_text("4f3c2b1a09f8e7d6c5b4a39281706f5e\n")
    asked = folder / "root.csr"
    conf = ["-config", str(folder / "root.cnf")]
    _openssl("req", "-new", "-key", str(folder / "root.key"), "-out", str(asked), *conf)
    (folder / "self.cnf").write_text(
        _CA.format(folder=folder, more="", copy="none", digest="sha384", extensions="")
    )
    arguments = ["ca", "-batch", "-notext", "-selfsign", "-config", str(folder / "self.cnf")]
    arguments += ["-extfile", str(folder / "root.cnf"), "-extensions", "ext", "-in", str(asked)]
    _openssl(*arguments, "-out", str(folder / "root.pem"), "-startdate", begin, "-enddate", end)
    return OutsideRoot(folder)


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
