"""The envelope: what other hands read in it is what we wrote, and no byte of it can be another."""

import base64
import importlib.util
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inventory import canonical
from inventory.errors import BadInput, Refused
from inventory.passport import dsse
from inventory.passport.sshsig import SshSig, unbase64
from inventory.passport.statement import to_payload
from inventory.signature import detached
from inventory.ticket import TICKET_NAMESPACE
from tests.inventory.agents import agent
from tests.inventory.kit import keygen, signers_line
from tests.inventory.passports import BOTH, World, world
from tests.require import need, need_command

EXAMPLES = int(os.environ.get("MUSTER_PASSPORT_EXAMPLES", "60"))
PAGE = Path(__file__).parents[2] / "docs/passport.md"
HEADER = {"payloadType": dsse.PAYLOAD_TYPE}


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> World:
    return world(tmp_path_factory.mktemp("envelope"))


@pytest.fixture(scope="module")
def text(gpu: World) -> str:
    return gpu.signed()


def parts(text: str) -> tuple[bytes, bytes]:
    envelope = json.loads(text)
    return base64.b64decode(envelope["payload"]), base64.b64decode(envelope["signatures"][0]["sig"])


def rebuilt(text: str, *, payload: bytes | None = None, blob: bytes | None = None, **changes: Any) -> str:
    """The envelope with another payload or signature in it, written as we write one."""
    envelope = json.loads(text) | changes
    if payload is not None:
        envelope["payload"] = base64.b64encode(payload).decode()
    if blob is not None:
        envelope["signatures"][0]["sig"] = base64.b64encode(blob).decode()
    return canonical.dumps(envelope) + "\n"


def test_the_encoding_is_that_of_the_protocols_own_example() -> None:
    # secure-systems-lab/dsse, protocol.md: "PAE(type, body)" and its test vector
    assert (
        dsse.pae("http://example.com/HelloWorld", b"hello world")
        == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    assert dsse.pae("", b"") == b"DSSEv1 0  0 "
    assert dsse.pae("é", b"\xff") == b"DSSEv1 2 \xc3\xa9 1 \xff"  # lengths are of bytes


def test_another_library_reads_payload_and_encoding_alike(gpu: World, text: str) -> None:
    need(
        importlib.util.find_spec("securesystemslib"),
        "securesystemslib",
        "it is in requirements/dev.txt",
    )
    other = importlib.import_module("securesystemslib.dsse").Envelope.from_dict(json.loads(text))

    assert other.payload == to_payload(gpu.passport())
    assert other.pae() == dsse.pae(dsse.PAYLOAD_TYPE, other.payload)
    assert list(other.signatures) == [gpu.maker.key]


def test_the_pages_own_lines_verify_it_without_us(gpu: World, text: str, tmp_path: Path) -> None:
    need_command("jq", "openssl", "base64", "sha256sum")
    script = PAGE.read_text().partition("```sh\n")[2].partition("```")[0]
    assert "ssh-keygen -Y verify" in script

    def judged(passport: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "gpu-07.passport.json").write_text(passport)
        return subprocess.run(
            ["sh", "-euc", script], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
        )

    now = gpu.now.strftime("%Y%m%d%H%M%SZ")
    script = script.replace("openssl verify", f"openssl verify -attime {int(gpu.now.timestamp())}")
    script = script.replace("ssh-keygen -Y verify", f"ssh-keygen -Y verify -Overify-time={now}")
    (tmp_path / "holders").write_text(gpu.signers.read_text())
    (tmp_path / "operators").write_text(gpu.ticket_signers.read_text())
    (tmp_path / "root.pem").write_text(gpu.root.read_text())
    done = judged(text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Good ") == 2
    assert "leaf.pem: OK" in done.stdout

    payload, _ = parts(text)
    assert judged(rebuilt(text, payload=payload.replace(b"anna", b"hans"))).returncode != 0


def test_every_changed_byte_of_the_payload_is_noticed(gpu: World, text: str) -> None:
    payload, _ = parts(text)
    for place in range(0, len(payload), max(1, len(payload) // EXAMPLES)):
        changed = bytearray(payload)
        changed[place] ^= 1
        with pytest.raises(Refused, match="not believed"):
            gpu.judge(rebuilt(text, payload=bytes(changed)))


def test_every_changed_byte_of_the_signature_is_noticed(gpu: World, text: str) -> None:
    _, blob = parts(text)
    for place in range(len(blob)):
        changed = bytearray(blob)
        changed[place] ^= 1
        with pytest.raises(Refused, match="not believed"):
            gpu.judge(rebuilt(text, blob=bytes(changed)))


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_no_other_text_is_believed(gpu: World, text: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(text) - 1))
    put = data.draw(st.text(st.characters(max_codepoint=0x7F), max_size=3))
    gone = data.draw(st.integers(0, 3))
    changed = text[:place] + put + text[place + gone :]
    if changed in (text, text.removesuffix("\n")):
        return
    with pytest.raises(Refused):
        gpu.judge(changed)


def test_any_bytes_are_an_envelope_or_refused() -> None:
    for junk in (
        "",
        "{}",
        "[]",
        "null",
        "x" * 100,
        '{"payload":"","payloadType":"","signatures":[]}',
        "[" * 999,
    ):
        with pytest.raises(Refused, match="not believed"):
            dsse.unseal(junk)
    with pytest.raises(Refused, match="larger than"):
        dsse.unseal("x" * (dsse.MAX_BYTES + 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: e["signatures"].append(e["signatures"][0]), "it has 2 signatures, and exactly one"),
        (lambda e: e["signatures"].clear(), "it has 0 signatures"),
        (lambda e: e.update(more=1), "unknown ones: more"),
        (lambda e: e.update(payloadType="text/plain"), "its payloadType is"),
        (lambda e: e["signatures"][0].update(keyid="SHA256:x"), "its keyid is 'SHA256:x'"),
        (lambda e: e["signatures"][0].update(cert="x"), "unknown ones: cert"),
        (lambda e: e["signatures"][0].update(sig=7), "not all texts"),
        (lambda e: e.update(payload=e["payload"].rstrip("=") + "===="), "base64"),
    ],
    ids=["two", "none", "key", "type", "keyid", "more", "number", "base64"],
)
def test_an_envelope_of_another_form_is_refused(
    gpu: World, text: str, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    envelope = json.loads(text)
    change(envelope)

    with pytest.raises(Refused) as refused:
        gpu.judge(canonical.dumps(envelope) + "\n")
    assert words in refused.value.why


def test_the_same_content_in_another_spelling_is_refused(gpu: World, text: str) -> None:
    with pytest.raises(Refused, match="not canonical"):
        gpu.judge(json.dumps(json.loads(text)))


def test_base64_has_one_form_only() -> None:
    assert unbase64("QQ==") == b"A"
    for text in ("QR==", "QQ", "QQ=", "QQ==\n", " QQ==", "", "Q-Q="):
        with pytest.raises(ValueError, match="not base64 in its one form"):
            unbase64(text)


def test_a_signature_with_something_in_its_reserved_field_is_refused(gpu: World, text: str) -> None:
    _, blob = parts(text)
    head = 10 + 4 + int.from_bytes(blob[10:14], "big") + 4 + len(dsse.NAMESPACE)
    assert blob[head : head + 4] == bytes(4)
    filled = blob[:head] + (2).to_bytes(4, "big") + b"hi" + blob[head + 4 :]

    with pytest.raises(Refused, match="holds more than an SSH signature"):
        gpu.judge(rebuilt(text, blob=filled))


def test_a_signature_made_for_something_else_is_refused(gpu: World, text: str) -> None:
    payload, _ = parts(text)
    message = dsse.pae(dsse.PAYLOAD_TYPE, payload).decode()
    other = detached(message, key_file=gpu.holder, namespace=TICKET_NAMESPACE)

    with pytest.raises(Refused, match="signed in the namespace 'muster-ticket'"):
        gpu.judge(rebuilt(text, blob=SshSig.from_armour(other).blob))


def test_the_payload_alone_is_not_what_is_signed(gpu: World, text: str) -> None:
    payload, _ = parts(text)
    bare = detached(payload.decode(), key_file=gpu.holder, namespace=dsse.NAMESPACE)

    with pytest.raises(Refused, match="does not hold"):
        gpu.judge(rebuilt(text, blob=SshSig.from_armour(bare).blob))


def test_a_key_that_is_not_allowed_is_refused(gpu: World, tmp_path: Path) -> None:
    mallory = keygen(tmp_path, "mallory")

    with pytest.raises(Refused, match=r"it says that SHA256:\S+ signs it, and SHA256:\S+ did"):
        gpu.judge(gpu.signed(key=mallory))
    signers = tmp_path / "signers"
    signers.write_text(signers_line(mallory, name="mallory@lab", options=BOTH))
    with pytest.raises(Refused, match="its signer is not in"):
        gpu.judge(gpu.signed(), signers=signers)
    signers.write_text(signers_line(gpu.holder, options='namespaces="muster-receipt"'))
    with pytest.raises(Refused, match="does not hold"):
        gpu.judge(gpu.signed(), signers=signers)
    with pytest.raises(BadInput, match="allowed signers"):
        gpu.judge(gpu.signed(), signers=tmp_path / "absent")


@pytest.mark.parametrize("kind", ["ecdsa", "rsa"])
def test_keys_of_other_kinds_sign_as_well(gpu: World, tmp_path: Path, kind: str) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(key)], check=True, timeout=600)
    envelope = dsse.unseal(dsse.seal(b"{}", key_file=key))
    signers = tmp_path / "signers"
    signers.write_text(signers_line(key, name="h@lab", options=BOTH))

    assert envelope.payload == b"{}"
    assert envelope.principals(signers=signers, now=gpu.now) == ("h@lab",)


def test_a_key_in_an_agent_signs(gpu: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = keygen(tmp_path, "agent-key")
    with agent(key) as socket:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        envelope = dsse.unseal(dsse.seal(b'{"a":1}', key_file=key.with_suffix(".pub")))

    signers = tmp_path / "signers"
    signers.write_text(signers_line(key, name="h@lab", options=BOTH))
    assert envelope.principals(signers=signers, now=gpu.now) == ("h@lab",)


def test_a_statement_that_no_reader_would_take_is_not_signed(gpu: World) -> None:
    with pytest.raises(Refused, match="4194304 are the most"):
        dsse.seal(b"x" * (dsse.MAX_PAYLOAD_BYTES + 1), key_file=gpu.holder)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.floats(allow_nan=False, allow_infinity=False))
def test_any_text_is_written_in_one_way_and_read_back(words: str, number: float) -> None:
    try:
        line = canonical.dumps({"a": [words, number]}, any_text=True)
    except ValueError:
        assert abs(number) > canonical.MAX_NUMBER or abs(number) < 1e-4
        return
    assert canonical.loads(line, any_text=True) == {"a": [words, number]}
    assert "\n" not in line


def test_half_a_character_is_no_text() -> None:
    with pytest.raises(ValueError, match="not Unicode text"):
        canonical.dumps(["\ud800"], any_text=True)
    with pytest.raises(ValueError, match="printable ASCII"):
        canonical.dumps(["é"])
    with pytest.raises(ValueError, match="printable ASCII"):
        canonical.dumps({"é": 1}, any_text=True)
