"""The envelope of a passport: DSSE v1, whose one signature is an SSH signature over the pre-authentication encoding.

Envelope and encoding are those of the DSSE protocol (secure-systems-lab/dsse, protocol.md and envelope.md). The
signature is made by `ssh-keygen -Y sign`, so that a key in an agent or on a FIDO token signs as a file's does.
"""

import base64
import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from inventory import canonical, signature
from inventory.errors import Refused
from inventory.passport.sshsig import SshSig, unbase64

PAYLOAD_TYPE = "application/vnd.in-toto+json"
NAMESPACE = "muster-passport"
WHAT = "the passport"
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
"""Of the statement; a node of many years stays far below it."""
MAX_BYTES = MAX_PAYLOAD_BYTES * 4 // 3 + 64 * 1024
"""Of the envelope's file."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """An envelope whose form is right and whose signature holds for the key that it names, whoever's that is.

    payload: the statement's bytes.
    """

    payload: bytes
    signature: SshSig

    @property
    def message(self) -> str:
        """What was signed."""
        return pae(PAYLOAD_TYPE, self.payload).decode()

    def principals(self, *, signers: Path, now: datetime) -> tuple[str, ...]:
        """Whose key signed it, by a file of allowed signers that is read as of `now`.

        Raises:
            Refused: its signer is not in that file, not for passports, or not at that time.
            BadInput: the file is absent.
        """
        return signature.check_detached(
            self.message,
            self.signature.armour,
            signers=signers,
            namespace=NAMESPACE,
            what=WHAT,
            now=now,
        )


def pae(payload_type: str, payload: bytes) -> bytes:
    """The pre-authentication encoding: what is signed instead of the payload alone."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def seal(payload: bytes, *, key_file: Path) -> str:
    """The signed envelope, one line of canonical JSON.

    key_file: an OpenSSH private key, or the .pub of one that an agent holds.

    Raises:
        BadInput: the key does not sign.
        Refused: the payload is larger than any reader takes.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise Refused(
            "no passport was made",
            why=f"it would have {len(payload)} bytes, and {MAX_PAYLOAD_BYTES} are the most",
            next_step="look with node-inventory history for what happened to the node that often",
        )
    armour = signature.detached(pae(PAYLOAD_TYPE, payload).decode(), key_file=key_file, namespace=NAMESPACE)
    signed = SshSig.from_armour(armour)
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": signed.fingerprint, "sig": base64.b64encode(signed.blob).decode()}],
    }
    return canonical.dumps(envelope) + "\n"


def unseal(text: str) -> Envelope:
    """The envelope in a text, once its one signature holds for the key that it names.

    Raises:
        Refused: it has another form, or was changed since it was signed.
        BadInput: ssh-keygen is absent.
    """
    if len(text) > MAX_BYTES:
        raise _refused(f"it is larger than {MAX_BYTES} bytes")
    try:
        payload, keyid, blob = _parted(text.removesuffix("\n"))
        found = SshSig.parse(blob)
    except ValueError as error:
        raise _refused(str(error)) from None
    if found.namespace != NAMESPACE:
        raise _refused(f"it was signed in the namespace {found.namespace[:80]!a}, not as a {NAMESPACE}")
    if keyid != found.fingerprint:
        raise _refused(f"its keyid is {keyid[:80]!a}, and its signature is by {found.fingerprint}")
    try:
        message = pae(PAYLOAD_TYPE, payload).decode()
    except UnicodeDecodeError:
        raise _refused("its payload is not text") from None
    signature.detached_with(message, found.armour, namespace=NAMESPACE, what=WHAT)
    return Envelope(payload, found)


def _parted(line: str) -> tuple[bytes, str, bytes]:
    """Payload, keyid and signature of an envelope that is written as we write it.

    Raises:
        ValueError: it is another text, and in what.
    """
    envelope = canonical.loads(line)
    _keys(envelope, "the envelope", {"payload", "payloadType", "signatures"})
    if envelope["payloadType"] != PAYLOAD_TYPE:
        raise ValueError(f"its payloadType is {json.dumps(envelope['payloadType'])[:80]}, not {PAYLOAD_TYPE}")
    signatures = envelope["signatures"]
    if not isinstance(signatures, list) or len(signatures) != 1:
        count = len(signatures) if isinstance(signatures, list) else 0
        raise ValueError(f"it has {count} signatures, and exactly one is taken")
    _keys(signatures[0], "the signature", {"keyid", "sig"})
    for text in (envelope["payload"], *signatures[0].values()):
        if not isinstance(text, str):
            raise ValueError("payload, keyid and sig are not all texts")  # noqa: TRY004 - a fault of the file
    try:
        payload, blob = unbase64(envelope["payload"]), unbase64(signatures[0]["sig"])
    except ValueError as error:
        raise ValueError(f"payload or sig: {error}") from None
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"its payload is larger than {MAX_PAYLOAD_BYTES} bytes")
    return payload, signatures[0]["keyid"], blob


def _keys(value: object, what: str, wanted: set[str]) -> None:
    found = set(value) if isinstance(value, dict) else set()
    if found != wanted:
        strange = ", ".join(sorted(found - wanted))[:200] or "none"
        raise ValueError(f"{what} needs the keys {', '.join(sorted(wanted))}; unknown ones: {strange}")


def _refused(why: str) -> Refused:
    return Refused(f"{WHAT} is not believed", why=why, next_step="ask whoever sent it for a new one")
