"""What cloud-init leaves on a node: its names, its host keys, its login, its word that it is done."""

import io
import json
import re
import secrets
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from inventory.errors import BadInput
from lab.nodes import NodeSpec
from lab.scenarios import CLEAN, CloudInitEnd, Image, date_command

# The paths as the node knows them, without the leading slash.
AUTHORIZED_KEYS = "run/cloud-init/authorized_keys"
DATE = "usr/local/sbin/date"  # nothing comes before it on a path that root has
_DATASOURCE = "DataSourceNoCloud [seed=/dev/sr0][dsmode=net]"
_STAGES = ("init-local", "init", "modules-config", "modules-final")
# Of cloud-init's own words: result.json of a machine whose user-data breaks the schema, or whose runcmd failed.
_ENDS: Mapping[CloudInitEnd, Mapping[str, object]] = {
    "done": {"errors": [], "recoverable_errors": {}},
    "degraded": {
        "errors": [],
        "recoverable_errors": {
            "WARNING": [
                "Invalid cloud-config provided: Please run 'sudo cloud-init schema --system' to see the schema errors."
            ]
        },
    },
    "failed": {
        "errors": ["('scripts_user', RuntimeError('Runparts: 1 failures (runcmd) in 1 attempted commands'))"],
        "recoverable_errors": {"WARNING": ["Failed to run module scripts_user (scripts in /var/lib/cloud)"]},
    },
}
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class NodeFile:
    """One file of a node.

    path: without the leading slash.
    content: its bytes; None for a symlink.
    target: where the symlink leads.
    """

    path: str
    content: bytes | None = None
    mode: int = 0o644
    target: str = ""


def check(spec: NodeSpec) -> None:
    """Refuse what would not be a name on a real machine either.

    Raises:
        BadInput: the node's name is no DNS label, or its user no user name (useradd(8)).
    """
    for what, text, shape in (("name", spec.name, _LABEL), ("user", spec.user, _USER)):
        if not shape.fullmatch(text):
            raise BadInput(
                f"VM {spec.vmid} was not started",
                why=f"its {what} {text!r} is not a {what} that a machine takes",
                next_step=f"give it a {what} of lower case letters, digits and hyphens",
            )


def first_boot(image: Image = CLEAN) -> tuple[NodeFile, ...]:
    """What a machine makes when it starts from a template for the first time, or finds there."""
    machine_id = image.machine_id or secrets.token_hex(16)
    return (NodeFile("etc/machine-id", f"{machine_id}\n".encode(), 0o444),)


def new_instance(spec: NodeSpec, host_keys: Iterable[NodeFile]) -> tuple[NodeFile, ...]:
    """What cloud-init does once per instance-id."""
    hosts = f"127.0.0.1 localhost\n{spec.address} {spec.name}\n::1 localhost ip6-localhost ip6-loopback\n"
    return (
        NodeFile("etc/hostname", f"{spec.name}\n".encode()),
        NodeFile("etc/hosts", hosts.encode()),
        NodeFile("var/lib/cloud/data/instance-id", f"{spec.instance_id}\n".encode()),
        *host_keys,
    )


def every_boot(spec: NodeSpec, *, now: datetime) -> tuple[NodeFile, ...]:
    """What is made anew on each boot: cloud-init's word how it ended, with its symlinks from /run."""
    stamp = now.timestamp() + spec.clock_offset_s
    ended = _ENDS[spec.image.cloud_init]
    stage = {"errors": [], "finished": stamp, "recoverable_errors": {}, "start": stamp}
    stages = {**dict.fromkeys(_STAGES, stage), _STAGES[-1]: {**stage, **ended}}
    status = {"v1": {"datasource": _DATASOURCE, **stages, "stage": None}}
    result = {"v1": {"datasource": _DATASOURCE, **ended}}
    return (
        _as_json("var/lib/cloud/data/result.json", result),
        _as_json("var/lib/cloud/data/status.json", status),
        NodeFile("run/cloud-init/result.json", target="../../var/lib/cloud/data/result.json"),
        NodeFile("run/cloud-init/status.json", target="../../var/lib/cloud/data/status.json"),
        NodeFile("run/cloud-init/instance-data.json", b"{}\n"),
        NodeFile(AUTHORIZED_KEYS, _lines(spec.ssh_keys), 0o600),
    )


def clock(spec: NodeSpec) -> tuple[NodeFile, ...]:
    """Where the node's clock is another than this machine's: a program on the path before date(1)."""
    if spec.clock_offset_s == 0:
        return ()
    return (NodeFile(DATE, date_command(spec.clock_offset_s).encode(), 0o755),)


def sshd_config(host_keys: Iterable[NodeFile]) -> NodeFile:
    """The node's own configuration of OpenSSH's server; address and port come on its command line."""
    private = [file.path for file in host_keys if not file.path.endswith(".pub")]
    lines = [
        *(f"HostKey /{path}" for path in private),
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "AuthorizedKeysFile .ssh/authorized_keys",
        "UsePAM no",
        "UseDNS no",
        "PidFile none",
        "PrintMotd no",
        # A lab full of parallel commands is no attack.
        "MaxStartups 100",
        "Subsystem sftp internal-sftp",
    ]
    return NodeFile("etc/ssh/sshd_config", _lines(lines))


def pack(files: Sequence[NodeFile]) -> bytes:
    """The files as a tar archive, owned by root, with the directories that cloud-init makes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for directory in ("run/cloud-init", "var/lib/cloud", "var/lib/cloud/data"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for file in files:
            entry = tarfile.TarInfo(file.path)
            entry.mode = file.mode
            if file.content is None:
                entry.type, entry.linkname = tarfile.SYMTYPE, file.target
                archive.addfile(entry)
            else:
                entry.size = len(file.content)
                archive.addfile(entry, io.BytesIO(file.content))
    return packed.getvalue()


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _as_json(path: str, value: object) -> NodeFile:
    return NodeFile(path, f"{json.dumps(value, indent=1)}\n".encode())
