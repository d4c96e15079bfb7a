"""The probe as one artefact, and the command that starts it on a node without touching its disk."""

import hashlib
import importlib.resources
import io
import json
import shlex
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

_EPOCH = (1980, 1, 1, 0, 0, 0)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# reads length and zip from stdin into memory and imports from there; stdin stays open for the probe
BOOT = """\
import os, sys
def read(n):
    data = b""
    while len(data) < n:
        piece = os.read(0, n - len(data))
        if not piece: sys.exit("muster: the probe did not arrive whole")
        data += piece
    return data
if sys.version_info < (3, 9): sys.exit("muster: Python 3.9 or newer is needed, this is %d.%d" % sys.version_info[:2])
memory = os.memfd_create("muster-probe")
with open(memory, "wb", closefd=False) as out: out.write(read(int.from_bytes(read(4), "big")))
sys.path.insert(0, "/proc/self/fd/%d" % memory)
from probe.main import main
main()
"""


_MAIN = b"""\
import sys
if sys.version_info < (3, 9):
    sys.exit("muster: Python 3.9 or newer is needed, this is %d.%d" % sys.version_info[:2])
from probe.alone import main
main()
"""


@dataclass(frozen=True, slots=True)
class Artefact:
    """The probe's modules in one zip.

    sha256: hex; the same for the same Muster, wherever it was built.
    """

    data: bytes
    sha256: str


@cache
def artefact() -> Artefact:
    """Build the artefact from the installed package; stored, not deflated, so that no zlib changes its sum."""
    data = _zipped({})
    return Artefact(data, hashlib.sha256(data).hexdigest())


def _zipped(others: Mapping[str, bytes], *, before: bytes = b"") -> bytes:
    modules = sorted(
        (file for file in importlib.resources.files("verify.probe").iterdir() if file.name.endswith(".py")),
        key=lambda file: file.name,
    )
    memory = io.BytesIO()
    memory.write(before)
    files = {f"probe/{module.name}": module.read_bytes() for module in modules}
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_STORED) as archive:
        for name, data in {**files, **others}.items():
            about = zipfile.ZipInfo(name, date_time=_EPOCH)
            about.create_system = 3
            about.external_attr = 0o644 << 16
            archive.writestr(about, data)
    return memory.getvalue()


def alone(settings: Mapping[str, Any]) -> bytes:
    """One executable file: the probe with its settings inside, for a node that has Python 3.9 and nothing else.

    Settings need no run id: each run of the file makes its own.
    """
    inside = {**settings, "probe_sha256": artefact().sha256}
    return _zipped(
        {"__main__.py": _MAIN, "settings.json": json.dumps(inside).encode()},
        before=b"#!/usr/bin/env python3\n",
    )


def stdin_for(settings: Mapping[str, Any]) -> bytes:
    """What goes into the started command: the artefact and its settings, each behind its length."""
    return _framed(artefact().data) + _framed(json.dumps(settings).encode())


def command(*, python: str = "python3", login: str | None = None, owner: str | None = None) -> str:
    """The command line, for a POSIX shell, that starts the probe as the owner of the node's key.

    The environment is emptied: what a login shell inherited must not reach the probe.

    `login` is who starts it, `owner` who must run it; without an owner it runs as whoever starts it.
    """
    words = ["env", "-i", f"PATH={_PATH}", "LC_ALL=C.UTF-8", python, "-I", "-S", "-c", BOOT]
    line = shlex.join(words)
    if owner is None or login == owner:
        return f"exec {line}"
    who = shlex.quote(owner)
    if login == "root":
        # root needs no sudo, and a small node may have none
        return f'exec setpriv --reuid={who} --regid="$(id -g {who})" --init-groups {line}'
    return f"exec sudo -n -u {who} -- {line}"


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data
