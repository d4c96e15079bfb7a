"""Whom the adapter believes, against real TLS servers: one CA's, or one certificate; nothing switches it off."""

import hashlib
import http.server
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inventory.errors import BadInput, OtherSide
from provision.api_token import Token, read_token
from provision.proxmox import Proxmox
from provision.trust import Trust
from tests.provision.kit import SECRET, TOKEN_ID, Place
from tests.provision.test_spec import WHOLE, faults, site

TOKEN = Token("muster@pve", "t", SECRET)
PIN = ":".join(["AB"] * 32)


class Answering(http.server.BaseHTTPRequestHandler):
    """Says that there are no Proxmox nodes, and remembers being asked."""

    def do_GET(self) -> None:
        self.server.asked.append(self.headers["Authorization"])  # type: ignore[attr-defined]  # set below
        body = b'{"data":[]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


class Server(http.server.ThreadingHTTPServer):
    """A TLS server whose certificate can be changed while it serves."""

    daemon_threads = True
    asked: list[str]
    context: ssl.SSLContext

    def get_request(self) -> tuple[ssl.SSLSocket, tuple[str, int]]:
        plain, address = self.socket.accept()
        plain.settimeout(5)
        return self.context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, *_: object) -> None:
        """A client that hangs up in the handshake is what the tests are about."""

    def show(self, certificate: Path) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate)


@contextmanager
def serving(certificate: Path) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Answering) as server:
        server.asked = []
        server.show(certificate)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def certificate(folder: Path, name: str, *, host: str = "pve1.example") -> Path:
    """A self-signed one with its key, for a name that is not where it is served."""
    file = folder / f"{name}.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}", "-keyout", folder / "key", "-out", file],
        check=True, capture_output=True,
    )  # fmt: skip
    file.write_text(file.read_text() + (folder / "key").read_text())
    return file


def pin_of(file: Path) -> str:
    der = ssl.PEM_cert_to_DER_cert(file.read_text().partition("-----BEGIN PRIVATE")[0])
    return hashlib.sha256(der).digest().hex(":").upper()


def proxmox(server: Server, *, ca_file: Path | None = None, fingerprint: str | None = None) -> Proxmox:
    url = f"https://127.0.0.1:{server.server_address[1]}"
    return Proxmox(url=url, token=TOKEN, ca_file=ca_file, fingerprint=fingerprint)


def test_the_pinned_certificate_is_believed_whatever_name_it_carries(tmp_path: Path) -> None:
    shown = certificate(tmp_path, "server")

    with serving(shown) as server, proxmox(server, fingerprint=pin_of(shown)) as api:
        assert api.hosts() == {}


def test_a_changed_certificate_is_refused_with_both_fingerprints_and_gets_no_token(tmp_path: Path) -> None:
    first, second = certificate(tmp_path, "first"), certificate(tmp_path, "second")

    with serving(first) as server, proxmox(server, fingerprint=pin_of(first)) as api:
        api.hosts()
        api.close()
        server.show(second)
        with pytest.raises(OtherSide, match="not trusted") as caught:
            api.hosts()
        asked = len(server.asked)

    assert pin_of(first) in caught.value.why
    assert pin_of(second) in caught.value.why
    assert "only then mend fingerprint" in caught.value.next_step
    assert asked == 1


def test_every_new_connection_is_verified(tmp_path: Path) -> None:
    first, second = certificate(tmp_path, "first"), certificate(tmp_path, "second")

    with serving(first) as server:
        with proxmox(server, fingerprint=pin_of(first)) as api:
            assert api.hosts() == {}
        server.show(second)
        with proxmox(server, fingerprint=pin_of(first)) as api, pytest.raises(OtherSide, match="not trusted"):
            api.hosts()


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"])
def test_no_variable_of_the_environment_makes_another_certificate_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    shown = certificate(tmp_path, "server", host="127.0.0.1")
    other = certificate(tmp_path, "other")
    monkeypatch.setenv(variable, str(shown))

    with serving(shown) as server:
        for api in (proxmox(server, ca_file=other), proxmox(server, fingerprint=pin_of(other))):
            with api, pytest.raises(OtherSide, match="not trusted"):
                api.hosts()
        assert server.asked == []


def test_no_variable_of_the_environment_spoils_what_is_believed(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown = certificate(tmp_path, "server")
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(variable, str(shown))

    with serving(shown) as server, proxmox(server, fingerprint=pin_of(shown)) as api:
        assert api.hosts() == {}
    token = read_token(place.folder / "pve.token")[0]
    with Proxmox(url=place.pve.url, token=token, ca_file=place.ca_file) as api:
        assert list(api.hosts()) == ["pve1"]


def test_a_request_that_asks_for_no_verification_is_verified_all_the_same(tmp_path: Path) -> None:
    shown, other = certificate(tmp_path, "server"), certificate(tmp_path, "other")

    with serving(shown) as server:
        for trust in (Trust(ca_file=other), Trust(fingerprint=pin_of(other))):
            import requests

            with requests.Session() as session:
                trust.mount(session)
                with pytest.raises(requests.exceptions.SSLError):
                    session.get(f"https://127.0.0.1:{server.server_address[1]}/", verify=False, timeout=5)
                with pytest.raises(requests.exceptions.InvalidSchema):
                    session.get("http://127.0.0.1:1/", timeout=5)
        assert server.asked == []


def test_a_ca_vouches_only_for_the_name_that_is_asked_for(tmp_path: Path) -> None:
    shown = certificate(tmp_path, "server")

    with serving(shown) as server, proxmox(server, ca_file=shown) as api:
        with pytest.raises(OtherSide, match="not trusted") as caught:
            api.hosts()
        assert server.asked == []
    assert "IP address mismatch" in caught.value.why


def test_a_ca_file_without_a_certificate_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate\n")

    with pytest.raises(BadInput, match="holds no certificate"):
        Trust(ca_file=tmp_path / "ca.pem")


def test_trust_is_one_of_the_two_and_never_neither(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not both"):
        Trust()
    with pytest.raises(BadInput, match="not both"):
        Trust(ca_file=tmp_path, fingerprint=PIN)


def test_the_site_file_says_whom_to_trust_in_exactly_one_way() -> None:
    pinned = WHOLE.replace("ca_file: ca.pem", f'fingerprint: "{PIN.lower()}"')

    assert site(pinned).proxmox.fingerprint == PIN
    assert site(pinned).proxmox.ca_file is None
    (neither,) = faults(WHOLE.replace(", ca_file: ca.pem", ""))
    (both,) = faults(WHOLE.replace("ca_file: ca.pem", f'ca_file: ca.pem, fingerprint: "{PIN}"'))
    assert neither.startswith("site.yaml:1:1: proxmox: either ca_file or fingerprint")
    assert "both are given" in both


@pytest.mark.parametrize("text", ["AB:CD", "AB" * 32, PIN[:-2] + "XY", "sha1:" + PIN])
def test_what_is_no_fingerprint_is_refused(text: str) -> None:
    (told,) = faults(WHOLE.replace("ca_file: ca.pem", f'fingerprint: "{text}"'))

    assert "32 octets in hex with colons" in told


@pytest.mark.parametrize("key", ["verify: false", "insecure: true", "verify_ssl: false"])
def test_there_is_no_insecure_switch(key: str) -> None:
    (told,) = faults(WHOLE.replace("ca_file: ca.pem", f"ca_file: ca.pem, {key}"))

    assert "unknown key" in told


def test_a_pinned_proxmox_makes_a_node(place: Place) -> None:
    pem = ssl.get_server_certificate(("127.0.0.1", int(place.pve.url.rpartition(":")[2])))
    pin = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).digest().hex(":").upper()
    text = place.site_file.read_text().replace(f"ca_file: {place.ca_file}", f'fingerprint: "{pin}"')
    place.site_file.write_text(text)

    done = place.run("gpu-01", "--yes")

    assert done.returncode == 0, done.stderr


def test_the_token_can_come_from_a_descriptor(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, f"{TOKEN_ID}={SECRET}\n".encode())
    os.close(writing)
    try:
        token, warnings = read_token(Path(f"/dev/fd/{reading}"))
    finally:
        os.close(reading)

    assert (token.id, token.secret, warnings) == (TOKEN_ID, SECRET, [])
    assert site(WHOLE.replace("pve.token", "/dev/fd/3")).proxmox.token_file == Path("/dev/fd/3")
    assert tmp_path.is_dir()
