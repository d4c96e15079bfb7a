"""What the image of the lab's VMs is made of, and the name that its contents go by (pure)."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MACHINE = "x86_64"
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "kmod", "procps", "netbase", "iproute2"),
    *("linux-image-cloud-amd64", "initramfs-tools"),
    *("cloud-init", "cloud-guest-utils", "fdisk", "qemu-guest-agent"),
    *("openssh-server", "sudo", "openssl", "python3"),
)
FILE_SYSTEM_MIB = 1200
_SECTOR = 512
_FIRST_SECTOR = (1 << 20) // _SECTOR  # the first MiB is left to the partition table, as fdisk(8) does
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*")
# The drivers of the machine in qemu_command.py; with all of Debian's the initramfs is three times as big.
_DRIVERS = ("virtio_pci", "virtio_scsi", "sd_mod", "sr_mod", "ext4")
_BEFORE = f"""\
mkdir -p "$1/etc/initramfs-tools/conf.d"
echo MODULES=list >"$1/etc/initramfs-tools/conf.d/lab"
printf '%s\\n' {" ".join(_DRIVERS)} >"$1/etc/initramfs-tools/modules"
"""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One image.

    suite: Debian's code name. prepare: run inside with /bin/sh -eu. pack: makes the disk of it.
    """

    suite: str
    prepare: str
    pack: str
    packages: tuple[str, ...] = PACKAGES
    before: str = _BEFORE
    left_out: tuple[str, ...] = _LEFT_OUT
    file_system_mib: int = FILE_SYSTEM_MIB

    @property
    def name(self) -> str:
        """The suite, and what tells this recipe from every other."""
        text = json.dumps(asdict(self), sort_keys=True)
        return f"{self.suite}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def recipe(suite: str) -> Recipe:
    """The recipe of today, with the scripts that lie beside this file."""
    here = Path(__file__)
    return Recipe(
        suite,
        prepare=here.with_name("image_prepare.sh").read_text(),
        pack=here.with_name("image_pack.sh").read_text(),
    )


def bootstrap(
    made: Recipe, *, mode: str, target: Path, sources: Sequence[Path], apt_options: Path
) -> list[str]:
    """The command line that makes the image's file tree, a tar archive; it names no archive, apt's own files do."""
    inside = f"chroot \"$1\" /bin/sh -eu <<'PREPARED'\n{made.prepare}\nPREPARED\n"
    return [
        *("mmdebstrap", "--quiet", f"--mode={mode}", "--variant=minbase", "--format=tar"),
        f"--include={','.join(made.packages)}",
        f"--aptopt={apt_options}",
        "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt=path-exclude={path}" for path in made.left_out),
        f"--essential-hook={made.before}",
        f"--customize-hook={inside}",
        made.suite,
        str(target),
        *map(str, sources),
    ]


def pack_command(made: Recipe) -> list[str]:
    """The command line that makes a disk of the archive in the working directory."""
    return ["/bin/sh", "-eu", "-c", made.pack, "sh", str(made.file_system_mib)]


def partition_table(made: Recipe) -> dict[int, bytes]:
    """An MBR with one Linux partition, as bytes by their offset on the disk."""
    sectors = made.file_system_mib * (1 << 20) // _SECTOR
    beyond = b"\xfe\xff\xff"  # cylinder, head and sector cannot tell; LBA does
    entry = b"\x80" + beyond + b"\x83" + beyond
    entry += _FIRST_SECTOR.to_bytes(4, "little") + sectors.to_bytes(4, "little")
    return {440: b"LAB0", 446: entry, 510: b"\x55\xaa"}
