"""Which accelerator really runs a guest here; an open /dev/kvm proves nothing, a guest that gets on does."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from inventory.errors import OtherSide
from lab.image import VmImage
from lab.lifeline import tied
from lab.qemu_command import CONSOLE, OVERLAY, Accelerator, proof_command
from lab.spawner import SANE_ENV, Spawner, end, last_words

MARK = b"lab-proof: this machine stands"
_KVM = Path("/dev/kvm")
_IMG_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.2


def accelerators() -> Iterator[Accelerator]:
    """What to try, best first."""
    why = why_no_kvm()
    if why is None:
        yield Accelerator("kvm", "", proof_s=20.0, boot_s=120.0)
    yield Accelerator("tcg", why or "no guest got on with KVM", proof_s=180.0, boot_s=600.0)


def why_no_kvm(cpuinfo: Path = Path("/proc/cpuinfo"), device: Path = _KVM) -> str | None:
    """Why KVM need not even be tried; None where it may work.

    Where a hypervisor lets no nested one run, the device can be there and even make a VM, whose kernel then crawls.
    """
    flags = {
        word for line in cpuinfo.read_text().splitlines() if line.startswith("flags") for word in line.split()
    }
    if not flags & {"vmx", "svm"}:
        return "this machine's processor shows neither vmx nor svm"
    if not os.access(device, os.R_OK | os.W_OK):
        return f"{device} cannot be opened"
    return None


def prove(image: VmImage, accelerator: Accelerator, state_dir: Path, spawner: Spawner) -> None:
    """Boot a machine that says on its console that it has what a node needs, and throw it away.

    Raises:
        OtherSide: it did not say so in time.
    """
    place = Path(tempfile.mkdtemp(prefix="proof-", dir=state_dir))
    try:
        make_overlay(image, place / OVERLAY, size_mib=0)
        process = start(proof_command(image, accelerator, place), place, spawner)
        try:
            until = time.monotonic() + accelerator.proof_s
            while not _said(place / CONSOLE):
                if process.poll() is not None:
                    raise _unproven(accelerator, last_words(place / "qemu.log"))
                if time.monotonic() > until:
                    told = last_words(place / CONSOLE)
                    raise _unproven(accelerator, f"no word of it in {accelerator.proof_s:.0f} s: {told}")
                time.sleep(_LOOK_EVERY_S)
        finally:
            end(process)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def start(command: list[str], place: Path, spawner: Spawner) -> "subprocess.Popen[bytes]":
    """Start QEMU in a directory of its own; it ends with the spawner's thread, however that ends."""
    # The paths of sockets are short there: sockaddr_un takes 107 bytes of them (unix(7)).
    at_home = ("env", f"--chdir={place}")
    return spawner.start([*tied([*at_home, *command])], env=SANE_ENV, log=place / "qemu.log")


def make_overlay(image: VmImage, overlay: Path, *, size_mib: int) -> None:
    """A node's own disk upon the image's; one that is there already keeps what is on it, and can only grow.

    Raises:
        OtherSide: there is no room for it.
    """
    size = max(image.disk.stat().st_size, size_mib << 20)
    if overlay.exists():
        _img("resize", "-q", "-f", "qcow2", str(overlay), str(max(size, _virtual_size(overlay))))
        return
    overlay.touch(0o600)
    _img("create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(image.disk), str(overlay), str(size))


def _virtual_size(overlay: Path) -> int:
    # The header's sixth field: docs/interop/qcow2.txt of QEMU.
    with overlay.open("rb") as file:
        return int.from_bytes(file.read(32)[24:32], "big")


def _img(*arguments: str) -> None:
    try:
        subprocess.run(
            ["qemu-img", *arguments],
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env=SANE_ENV,
            timeout=_IMG_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        raise OtherSide(
            "a VM's disk was not made",
            why=said.decode(errors="replace").strip() or str(error),
            next_step="see whether there is room on the disk, then start the VM again",
        ) from error


def _said(console: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return MARK in console.read_bytes()
    return False


def _unproven(accelerator: Accelerator, why: str) -> OtherSide:
    return OtherSide(
        f"no guest gets on with {accelerator.name.upper()} here",
        why=why,
        next_step="use another backend here",
    )
