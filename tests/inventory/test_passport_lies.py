"""What a well-signed passport may say beside its signed texts and against them; and what an earlier one told."""

import base64
import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ca import passport as ca_passport
from inventory import canonical
from inventory.errors import Refused
from inventory.model import State
from inventory.passport import dsse, openssl
from inventory.passport.earlier import continues
from inventory.passport.judging import judge_after
from inventory.passport.making import fingerprint_of
from inventory.passport.sshsig import SshSig
from inventory.passport.statement import Missing, Passport, to_payload
from tests.inventory.passports import BOTH, World, world
from tests.require import need_command

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> World:
    return world(tmp_path_factory.mktemp("lies"))


def _certificate(key: str, value: object) -> Change:
    return lambda said: said["certificate"].update({key: value})


def _two_in_a_link(number: int) -> Change:
    def change(said: dict[str, Any]) -> None:
        said["certificate"]["chain"][number] += said["certificate"]["chain"][2]

    return change


def _twice(*path: str) -> Change:
    def change(said: dict[str, Any]) -> None:
        place: Any = said
        for step in path:
            place = place[step]
        place.append(place[-1])

    return change


def _critical(said: dict[str, Any]) -> None:
    said["verification"]["checks"][0]["verdict"] = "critical"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_certificate("names", ["other.example"]), "the certificate differ in: names"),
        (_certificate("addresses", ["10.9.9.9"]), "the certificate differ in: addresses"),
        (_certificate("not_before", "2020-01-01T00:00:00Z"), "the certificate differ in: beginning"),
        *(
            pytest.param(_two_in_a_link(link), "not that of the text: the certificate", id=f"link {link}")
            for link in range(3)
        ),
        (_twice("receipts"), "one receipt is in it twice"),
        (_twice("verification", "drills"), "counts drills twice: killed-rank"),
        (_critical, "the verification passed, yet it failed in: "),
    ],
)
@pytest.mark.parametrize("reader", [ca_passport, openssl], ids=["authority", "openssl"])
def test_what_is_told_beside_the_texts_must_be_what_they_say(
    gpu: World, change: Change, words: str, reader: Any
) -> None:
    need_command("openssl")
    verdict = gpu.judge(gpu.signed_anew(lambda statement: change(statement["predicate"])), judge=reader)

    assert words in "\n".join(verdict.broken)


def test_both_readers_find_the_addresses_of_a_certificate(gpu: World) -> None:
    need_command("openssl")
    leaf = gpu.certificate.chain[0]

    assert openssl.leaf(leaf) == ca_passport.leaf(leaf)
    assert ca_passport.leaf(leaf).addresses == gpu.certificate.addresses
    assert gpu.certificate.addresses != ()


def test_an_event_that_is_dated_before_the_one_it_follows_is_a_note(gpu: World) -> None:
    made = gpu.passport()
    last = replace(made.events[-1], at=made.events[-2].at - timedelta(hours=3))
    verdict = gpu.judge(gpu.signed(replace(made, events=(*made.events[:-1], last))))

    assert verdict.ok, verdict.broken
    notes = verdict.to_json()["notes"]
    assert any("dated before the event that they follow, by some host's clock: 7" in each for each in notes)


def test_the_head_of_the_audit_is_told_with_the_line_that_looks_it_up(gpu: World) -> None:
    told = gpu.judge(gpu.signed()).to_json()["not_checked"]

    assert any(f"node-ca audit --expect {gpu.certificate.audit_head}" in each for each in told)


class Token:
    """A FIDO token of which the private key is known: what it signs is put together by hand.

    The forms are OpenSSH's PROTOCOL.u2f (keys and signatures) and PROTOCOL.sshsig (what is signed).
    """

    KIND = b"sk-ssh-ed25519@openssh.com"

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.blob = _string(self.KIND) + _string(self._key.public_key().public_bytes_raw()) + _string(b"ssh:")

    @property
    def line(self) -> str:
        return f"{self.KIND.decode()} {base64.b64encode(self.blob).decode()}"

    def sign(self, message: bytes, *, flags: int, application: bytes = b"ssh:") -> bytes:
        space, hashing = dsse.NAMESPACE.encode(), b"sha512"
        inner = (
            *(b"SSHSIG", _string(space), _string(b""), _string(hashing)),
            _string(hashlib.sha512(message).digest()),
        )
        said = bytes([flags]) + struct.pack(">I", 7)
        data = hashlib.sha256(application).digest() + said + hashlib.sha256(b"".join(inner)).digest()
        signature = _string(self.KIND) + _string(self._key.sign(data)) + said
        parts = (self.blob, space, b"", hashing, signature)
        return b"SSHSIG" + struct.pack(">I", 1) + b"".join(map(_string, parts))


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def by_token(gpu: World, token: Token, folder: Path, **how: Any) -> tuple[str, Path]:
    """A passport that a token signed, and the holders with the token's own among them."""
    signers = folder / "holders"
    signers.write_text(gpu.signers.read_text() + f"fido@lab {BOTH} {token.line}\n")
    payload = to_payload(gpu.passport(key=fingerprint_of(token.line)))
    blob = token.sign(dsse.pae(dsse.PAYLOAD_TYPE, payload), **how)
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": dsse.PAYLOAD_TYPE,
        "signatures": [
            {"keyid": fingerprint_of(token.line), "sig": base64.b64encode(blob).decode()},
        ],
    }
    return canonical.dumps(envelope) + "\n", signers


def test_a_passport_by_a_touched_token_holds_and_by_an_untouched_one_says_so(
    gpu: World, tmp_path: Path
) -> None:
    token = Token()
    touched, untouched = (
        gpu.judge(text, signers=signers)
        for text, signers in (by_token(gpu, token, tmp_path, flags=flags) for flags in (1, 0))
    )

    assert touched.ok and touched.signers == ("fido@lab",)  # noqa: PT018 - one fact
    words = "nobody touched the FIDO token"
    assert not any(words in each for each in touched.to_json()["notes"])
    assert any(words in each for each in untouched.to_json()["notes"])
    assert not any(words in each for each in gpu.judge(gpu.signed()).to_json()["notes"])


def test_a_token_made_for_something_else_or_a_changed_touch_is_refused(gpu: World, tmp_path: Path) -> None:
    token = Token()
    other, signers = by_token(gpu, token, tmp_path, flags=1, application=b"web:")
    untouched, _ = by_token(gpu, token, tmp_path, flags=0)
    envelope = json.loads(untouched)
    blob = bytearray(base64.b64decode(envelope["signatures"][0]["sig"]))
    blob[-5] |= 1  # the flags, before the counter
    assert not SshSig.parse(bytes(blob)).untouched
    envelope["signatures"][0]["sig"] = base64.b64encode(bytes(blob)).decode()

    for text in (other, canonical.dumps(envelope) + "\n"):
        with pytest.raises(Refused, match="not believed"):
            gpu.judge(text, signers=signers)


def later(made: Passport, **changes: Any) -> Passport:
    """The passport of some days later: the node was verified again."""
    at = made.made_at + timedelta(days=3)
    last = made.events[-1]
    more = replace(last, at=at, before=State.IN_SERVICE, after=State.IN_SERVICE, why="verified again")
    return replace(made, **{"made_at": at, "events": (*made.events, more), **changes})


def broken(earlier: Passport, then: Passport) -> str:
    return "\n".join(found.text for found in continues(earlier, then) if found.kind == "broken")


def test_a_later_passport_that_tells_all_that_the_earlier_one_told_holds(gpu: World) -> None:
    made = gpu.passport()
    (found,) = continues(made, later(made))

    assert found.kind == "holds"
    assert "7 events, 2 receipts; 1 events since" in found.text
    assert not broken(made, made)


def test_what_was_left_out_at_the_end_shows_against_an_earlier_passport(gpu: World) -> None:
    made = later(gpu.passport())
    after = made.made_at + timedelta(days=1)
    short = replace(made, made_at=after, events=made.events[:-1])
    changed = replace(made, made_at=after, events=(replace(made.events[0], why="x"), *made.events[1:]))

    assert gpu.judge(gpu.signed(replace(short, made_at=gpu.now))).ok, "alone it is not seen"
    assert "1 events of the earlier passport are gone, from in-service to in-service" in broken(made, short)
    assert "event 1 is another one than in the earlier passport" in broken(made, changed)


def test_receipts_that_are_gone_show_but_not_those_of_a_former_machine_or_that_are_too_many(
    gpu: World,
) -> None:
    made = gpu.passport()
    fewer = later(made, receipts=made.receipts[1:])
    cut = replace(fewer, missing=(Missing("receipts between", "70 are in the record alone"),))
    another = replace(fewer, vm=replace(made.vm, uuid="0" * 35 + "9"))

    assert "these receipts are gone: 1" in broken(made, fewer)
    assert not broken(made, cut)
    assert not broken(made, another)


def test_an_audit_that_became_shorter_or_another_shows(gpu: World) -> None:
    made = gpu.passport()
    told = gpu.certificate
    assert told.audit_entries is not None

    def audited(entries: int, head: str | None) -> Passport:
        return later(made, certificate=replace(told, audit_entries=entries, audit_head=head))

    assert "it is an older copy" in broken(made, audited(told.audit_entries - 1, told.audit_head))
    assert "another head at entry" in broken(made, audited(told.audit_entries, "ab" * 32))
    assert not broken(made, audited(told.audit_entries + 1, "ab" * 32))
    gone = (Missing("certificate", "there is no authority here"),)
    assert not broken(made, later(made, certificate=None, missing=gone))


def test_another_nodes_passport_and_a_newer_one_are_no_earlier_ones(gpu: World) -> None:
    made = gpu.passport()

    assert "the earlier passport is that of gpu-02" in broken(replace(made, node="gpu-02"), later(made))
    assert "the earlier passport is the later one" in broken(later(made), made)


def test_an_earlier_passport_that_is_not_believed_says_nothing(gpu: World) -> None:
    made = gpu.passport()
    liar = gpu.signed(replace(made, events=made.events[:-1]))
    now = gpu.now + timedelta(minutes=1)

    with pytest.raises(Refused, match="the earlier passport is not believed"):
        judge_after(gpu.signed(), liar, trust=gpu.trust, now=now)
    assert judge_after(gpu.signed(), gpu.signed(), trust=gpu.trust, now=now).ok
