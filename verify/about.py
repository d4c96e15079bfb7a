"""What a node's checks are measured against: its own agent.yaml, the certified machine, the controller's clock."""

import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inventory.errors import MusterError, Refused

if TYPE_CHECKING:
    from inventory.agent_config import AgentConfig
    from inventory.ticket import Receipt
    from verify.runner import Exec, Findings

MACHINE_UUID = Path("/sys/class/dmi/id/product_uuid")
_READ_S = 20.0
_MOST = 128 * 1024
_BEGIN = "== muster: agent.yaml =="
# The login may read the uuid through sudo; the rest is the owner's. A failure leaves its part empty.
_SCRIPT = """\
cat=$(command -v cat)
printf 'machine_uuid=%s\\n' "$({ cat MACHINE || sudo -n "$cat" MACHINE </dev/null; } 2>/dev/null)"
printf 'installed_uuid=%s\\n' "$(AS cat FOLDER/uuid </dev/null 2>/dev/null)"
printf 'BEGIN\\n'
AS cat FOLDER/agent.yaml </dev/null
"""


def of_node(
    place: "Exec", receipt: "Receipt", folder: str, *, clock: Callable[[], float] = time.time
) -> tuple[dict[str, Any], "AgentConfig | None"]:
    """Ask a node of a believed receipt; what it said, and its agent.yaml where that can be read.

    `folder` is where the identity in force lies. Whatever the node says is bounded, and judged by the checks.

    Raises:
        OtherSide: the session broke, or did not answer in time.
    """
    process = place.start(command(receipt, folder))
    said: list[str] = []
    size = 0
    try:
        process.close_stdin()
        for line in process.lines(timeout_s=_READ_S):
            size += len(line) + 1
            if size > _MOST:
                said.clear()
                break
            said.append(line.decode("utf-8", "replace"))
        ended = process.finish(timeout_s=_READ_S) if size <= _MOST else None
        trouble = ended.stderr.decode("utf-8", "replace").strip()[-300:] if ended else "it is too long"
    finally:
        process.kill()
    head, config, faults = _taken_apart(said, trouble, Path(folder), receipt.node)
    about = {
        "machine_uuid": head.get("machine_uuid") or None,
        "installed_uuid": head.get("installed_uuid") or None,
        "certified_uuid": receipt.vm_uuid,
        "controller_clock": clock(),
        **(faults if config is None else fabrics(config)),
    }
    return about, config


def of_this_machine(config: "AgentConfig", *, uuid_file: Path = MACHINE_UUID) -> dict[str, Any]:
    """What this very machine is measured against; what was certified is noted beside its key."""
    return {"machine_uuid": _word(uuid_file), **fabrics(config)}


def fabrics(config: "AgentConfig") -> dict[str, Any]:
    """The fabrics that an agent.yaml declares, as JSON values."""
    return {
        "fabrics": [
            {
                "name": fabric.name,
                "interface": fabric.interface,
                "rate_gbps": fabric.rate_gbps,
                "mtu": fabric.mtu,
            }
            for fabric in config.fabrics
        ]
    }


def command(receipt: "Receipt", folder: str) -> str:
    """One command line for a POSIX shell that tells all of it."""
    owner = shlex.quote(receipt.owner)
    act = "" if receipt.user in ("root", receipt.owner) else f"sudo -n -u {owner} --"
    script = _SCRIPT.replace("MACHINE", str(MACHINE_UUID)).replace("FOLDER", shlex.quote(folder))
    return f"exec sh -c {shlex.quote(script.replace('AS ', f'{act} ').replace('BEGIN', _BEGIN))}"


def check_receipt(receipt: "Receipt") -> None:
    """Refuse the receipt of a node whose identity has ended; raises Refused."""
    if receipt.kind == "decommissioned":
        raise Refused(
            f"{receipt.node} was not verified",
            why="its receipt says that it was decommissioned",
            next_step=f"onboard-node {receipt.node} gives it a new identity",
        )


def against_receipt(findings: "Findings", receipt: "Receipt") -> tuple[str, ...]:
    """What the node shows, set against what the security holder signed."""
    facts, faults = findings.identity, []
    if facts.fault is None:
        if facts.serial is None or int(facts.serial, 16) != int(receipt.serial, 16):
            faults.append(
                f"identity: the node shows certificate {facts.serial}, the receipt is for {receipt.serial}"
            )
        if receipt.ca_fingerprint not in facts.ca_fingerprints:
            trusted = ", ".join(facts.ca_fingerprints) or "none"
            faults.append(
                f"identity: the node trusts {trusted}, the receipt names the root {receipt.ca_fingerprint}"
            )
    return tuple(faults)


def files_in(folder: str) -> dict[str, str | None]:
    """The identity's files, where onboard-node puts them."""
    return {
        "cert_file": f"{folder}/chain.pem",
        "key_file": f"{folder}/key.pem",
        "ca_file": f"{folder}/bundle.pem",
        "crl_file": f"{folder}/crl.pem",
    }


def files_of(config: "AgentConfig") -> dict[str, str | None]:
    """The identity's files, as an agent.yaml names them."""
    identity = config.identity
    return {
        "cert_file": str(identity.cert_file),
        "key_file": str(identity.key_file),
        "ca_file": str(identity.ca_file),
        "crl_file": None if identity.crl_file is None else str(identity.crl_file),
    }


def _taken_apart(
    said: list[str], trouble: str, folder: Path, node: str
) -> tuple[Mapping[str, str], "AgentConfig | None", dict[str, str]]:
    from inventory.agent_config import AgentConfig
    from inventory.document import loads

    if _BEGIN not in said:
        return {}, None, {"config_unread": f"the node did not tell: {trouble or 'no answer'}"}
    cut = said.index(_BEGIN)
    head = {
        key: value.strip().lower()[:100] for key, _, value in (line.partition("=") for line in said[:cut])
    }
    text = "\n".join(said[cut + 1 :])
    if not text.strip():
        return head, None, {"config_unread": f"{folder}/agent.yaml: {trouble or 'it is empty'}"}
    try:
        config = loads(text + "\n", AgentConfig, name="agent.yaml", base=folder)
    except MusterError as error:
        return head, None, {"config_fault": error.why[:500]}
    if config.node != node:
        return head, None, {"config_fault": f"agent.yaml is for {config.node}, this is {node}"}
    return head, config, {}


def _word(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip().lower()[:100] or None
    except OSError:
        return None
