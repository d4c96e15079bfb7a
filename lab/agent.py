"""The guest agent of a lab VM: each call is answered from the live node, in the form of the Proxmox API."""

import base64
import time
from collections.abc import Callable, Mapping
from typing import Any

from lab.guest_agent import AgentRefused, AgentSilent
from lab.nodes import LiveNode, Powered

_NOT_ALLOWED = "Command guest-{command} has been disabled: the command is not allowed"
_READ_LIMIT = 16 * 1024 * 1024  # PVE::API2::Qemu::Agent reads at most 16 MiB of a file


class AgentError(Exception):
    """What the agent answered instead of a result; the API puts `Agent error: ` before it."""


def enabled(option: object) -> bool | None:
    """What the `agent` option says: None when it is absent."""
    if option is None:
        return None
    first = str(option).split(",")[0]
    return first.removeprefix("enabled=") in {"1", "on", "yes", "true"}


def answer(node: LiveNode, command: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The `data` of an agent call; it may take as long as reading the node does.

    Raises:
        AgentError: the agent refused, in its own words.
        lab.guest_agent.AgentSilent: it gave no answer in time.
    """
    if command == "file-read":
        return _file_read(node, values)
    calls: dict[str, Callable[[], Any]] = {
        "ping": dict,
        "info": lambda: {"version": "7.2.22", "supported_commands": _supported(calls)},
        "network-get-interfaces": node.interfaces,
        "get-osinfo": node.osinfo,
        "get-host-name": lambda: {"host-name": _host_name(node)},
        "get-time": lambda: time.time_ns() + node.spec.clock_offset_s * 1_000_000_000,
        "get-timezone": lambda: {"zone": "UTC", "offset": 0},
    }
    if command not in calls:
        # The lab has no use for commands inside a node through the API, and Muster never needs one.
        raise AgentError(_NOT_ALLOWED.format(command=command))
    if not isinstance(node, Powered):
        return {"result": calls[command]()}
    try:
        return {"result": node.ask_agent(f"guest-{command}")}
    except AgentRefused as error:
        raise AgentError(str(error)) from error


def _supported(calls: Mapping[str, object]) -> list[dict[str, Any]]:
    names = sorted({*calls, "file-open", "file-read", "file-close"})
    return [{"name": f"guest-{name}", "enabled": True, "success-response": True} for name in names]


def _host_name(node: LiveNode) -> str:
    try:
        return node.read_file("/etc/hostname").decode().strip()
    except OSError:
        return node.spec.name


def _file_read(node: LiveNode, values: Mapping[str, Any]) -> dict[str, Any]:
    path = str(values["file"])
    try:
        content = node.read_file(path)
    except AgentSilent:
        raise
    except OSError as error:
        raise AgentError(f"failed to open file '{path}' (mode: 'r'): {error.strerror}") from error
    offset, count = int(values.get("offset", 0)), min(int(values.get("count", _READ_LIMIT)), _READ_LIMIT)
    part = content[offset : offset + count]
    # Proxmox hands the bytes on one by one, so that each becomes one character of the JSON text.
    text = part.decode("latin-1") if int(values.get("decode", 1)) else base64.b64encode(part).decode()
    found: dict[str, Any] = {"content": text, "bytes-read": len(part)}
    if offset + len(part) < len(content):
        found["truncated"] = 1
    return found
