"""What a test needs of the machine: without it the test is skipped by name, or fails where all is required.

`MUSTER_REQUIRE=all` is the machine's promise to have everything; there a skip is a failure.
"""

import os
import shutil
from typing import NoReturn

import pytest

ALL_REQUIRED = os.environ.get("MUSTER_REQUIRE") == "all"  # read at once: the tests' environment is scrubbed

_PACKAGES = {  # Debian's, where the package is not named like its command
    "ansible": "ansible-core",
    "ansible-inventory": "ansible-core",
    "bwrap": "bubblewrap",
    "dash": "dash",
    "ip": "iproute2",
    "isoinfo": "genisoimage",
    "nsenter": "util-linux",
    "promtool": "prometheus",
    "ps": "procps",
    "qemu-img": "qemu-utils",
    "qemu-system-x86_64": "qemu-system-x86",
    "softhsm2-util": "softhsm2",
    "ssh": "openssh-client",
    "ssh-add": "openssh-client",
    "ssh-agent": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "unshare": "util-linux",
    "visudo": "sudo",
}


def need(condition: object, what: str, how: str) -> None:
    """Go on only where `condition` holds.

    Args:
        condition: what was found of the machine.
        what: what is missing otherwise, "an IPv6 loopback".
        how: how to get it, "apt-get install bubblewrap".
    """
    if not condition:
        _not_run(f"{what}: {how}")


def need_command(*names: str) -> None:
    """Go on only where every one of these commands is installed; /sbin counts, also where PATH lacks it."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    missing = [name for name in names if shutil.which(name, path=path) is None]
    packages = " ".join(sorted({_PACKAGES.get(name, name) for name in missing}))
    need(not missing, ", ".join(missing), f"apt-get install {packages}")


def need_root() -> None:
    """Go on only as root."""
    need(os.geteuid() == 0, "root", "run the tests as root, in a machine that you can lose")


def _not_run(reason: str) -> NoReturn:
    if ALL_REQUIRED:
        pytest.fail(f"MUSTER_REQUIRE=all, but this machine lacks {reason}", pytrace=False)
    pytest.skip(reason)
