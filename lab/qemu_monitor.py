"""Presses the buttons of a running QEMU through its monitor (docs/interop/qmp-spec.txt of QEMU)."""

import contextlib
import io
import json
from pathlib import Path

from lab.qemu_socket import dial


def tell(socket: Path, *commands: str, timeout_s: float) -> bool:
    """Whether QEMU took the commands, each in time; False where it has ended, or is about to."""
    with (
        contextlib.suppress(OSError, ValueError),
        dial(socket, timeout_s=timeout_s) as connection,
        connection.makefile("rwb") as line,
    ):
        line.readline()  # its greeting
        return all(_tell(line, command) for command in ("qmp_capabilities", *commands))
    return False


def _tell(line: io.BufferedRWPair, command: str) -> bool:
    line.write(json.dumps({"execute": command}).encode() + b"\n")
    line.flush()
    while answer := line.readline():
        told = json.loads(answer)
        if "event" not in told:
            return "return" in told
    return False
