"""What the node says of itself: parsed strictly, for a node may lie or babble (pure)."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from inventory.errors import OtherSide

_VALUE = {
    "uid": r"\d{1,10}",
    "clock": r"\d{1,11}",
    "hostname": r"[A-Za-z0-9._-]{1,64}",
    "machine_id": r"[0-9a-f]{32}",
    "machine_uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "sudo": r"[ -~]{1,160}",
    "cat": r"(/[A-Za-z0-9._-]+){1,8}",
    "owner_uid": r"\d{1,10}",
    "group_gid": r"\d{1,10}",
    "missing": r"[a-z0-9]{1,32}",
    "openssl": r"[0-9A-Za-z.+-]{1,32}",
    "current": r"generations/[0-9]{1,6}",
    "current_sha256": r"[0-9a-f]{64}",
    "current_key": r"[0-9a-f]{64}",
    "generation": r"[0-9]{1,6} [0-9a-f]{0,64}",
    "interface": r"\S{1,15} [0-9a-f]{2}(:[0-9a-f]{2}){5}",
}
_CSR = re.compile(
    r"-----BEGIN CERTIFICATE REQUEST-----\n[A-Za-z0-9+/=\n]+-----END CERTIFICATE REQUEST-----\n"
)
_LONGEST = 256 * 1024


@dataclass(frozen=True, slots=True)
class Generation:
    """One identity's folder on the node. number: its name; ticket: the id of the ticket it was made for."""

    number: int
    ticket: str


@dataclass(frozen=True, slots=True)
class Facts:
    """A node's answer.

    uid: whom our scripts run as there. clock: the node's own, UTC, whole seconds.
    missing: tools that are absent. current: the generation in force, and its certificate's SHA-256 (hex).
    interfaces: name by MAC. sudo: why `sudo -n` makes nobody root there. cat: where that tool lies.
    """

    uid: int
    clock: datetime
    machine_id: str | None
    machine_uuid: str | None
    owner_uid: int | None
    group_known: bool
    missing: tuple[str, ...]
    openssl: str | None
    current: int | None
    current_sha256: str | None
    generations: tuple[Generation, ...]
    interfaces: dict[str, str]
    sudo: str | None = None
    cat: str = "/usr/bin/cat"
    hostname: str | None = None


def parse(output: bytes) -> Facts:
    """The facts in a script's output; a value of another form than it must have counts as not told.

    Raises:
        OtherSide: the answer is not one of ours.
    """
    if len(output) > _LONGEST:
        raise _strange(f"it is longer than {_LONGEST} bytes")
    told: dict[str, list[str]] = {}
    for line in output.decode("utf-8", "replace").splitlines():
        key, _, value = line.partition("=")
        if key in _VALUE and re.fullmatch(_VALUE[key], value):
            told.setdefault(key, []).append(value)
    if "uid" not in told or "clock" not in told or b"\nend=facts" not in output:
        raise _strange("it ends early")

    def one(key: str) -> str | None:
        return told.get(key, [None])[0]

    current = one("current")
    return Facts(
        uid=int(told["uid"][0]),
        clock=datetime.fromtimestamp(int(told["clock"][0]), UTC),
        machine_id=one("machine_id"),
        machine_uuid=one("machine_uuid"),
        owner_uid=None if (owner := one("owner_uid")) is None else int(owner),
        group_known="group_gid" in told,
        missing=tuple(told.get("missing", ())),
        openssl=one("openssl"),
        current=None if current is None else int(current.rpartition("/")[2]),
        current_sha256=one("current_sha256"),
        generations=tuple(
            Generation(int(number), ticket)
            for number, _, ticket in (text.partition(" ") for text in told.get("generation", ()))
        ),
        sudo=one("sudo"),
        cat=one("cat") or "/usr/bin/cat",
        hostname=one("hostname"),
        # a VLAN has the MAC of the device that it is on, which the kernel lists before it
        interfaces={
            mac: name for name, mac in (text.split(" ") for text in reversed(told.get("interface", [])))
        },
    )


def csr(output: bytes) -> bytes:
    """The certificate request in a script's output.

    Raises:
        OtherSide: there is none.
    """
    text = output.decode("utf-8", "replace")
    found = _CSR.search(text)
    if found is None or len(found.group()) > 16 * 1024 or "\nend=key" not in text:
        raise _strange("it holds no certificate request")
    return found.group().encode()


def failure(output: bytes) -> str | None:
    """What the install script says went wrong, if it says so."""
    for line in output.decode("utf-8", "replace").splitlines():
        if line.startswith("failed="):
            return line.removeprefix("failed=")[:500]
    return None


def _strange(why: str) -> OtherSide:
    return OtherSide(
        "the node's answer makes no sense",
        why=why,
        next_step="log in to the node by hand and look what its shell prints",
    )
