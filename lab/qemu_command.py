"""The machine that QEMU is told to be for a node: its command line, and what of the config it cannot give (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Interface
from pathlib import Path

from lab.image import VmImage
from lab.nodes import NodeSpec

PROGRAM = "qemu-system-x86_64"
AGENT_SOCKET, MONITOR_SOCKET = "agent.sock", "monitor.sock"
OVERLAY, SEED, CONSOLE = "disk.qcow2", "seed.iso", "console.log"
_LEAST_MIB = 512  # with less, Debian's initramfs does not get through
_PREFIX = 24


@dataclass(frozen=True, slots=True)
class Accelerator:
    """What runs the guest's code.

    name: QEMU's. why: why it is not KVM, for a person; empty if it is.
    proof_s: in how many seconds a guest must have shown that it gets on.
    boot_s: how long a boot may take until SSH answers.
    """

    name: str
    why: str
    proof_s: float
    boot_s: float

    @property
    def options(self) -> tuple[str, ...]:
        """Its part of the command line."""
        if self.name == "kvm":
            return ("-accel", "kvm", "-cpu", "host")
        return ("-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max")

    @property
    def kernel_words(self) -> tuple[str, ...]:
        """Its part of the kernel's command line: every look at an emulated timer costs thousands of instructions."""
        return () if self.name == "kvm" else ("tsc=reliable", "mitigations=off")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of this machine one VM may be given.

    cores: of its processors. memory_mib: of its memory.
    """

    cores: int
    memory_mib: int

    def cores_of(self, spec: NodeSpec) -> int:
        """How many cores a VM gets."""
        return max(1, min(spec.cores, self.cores))

    def memory_of(self, spec: NodeSpec) -> int:
        """How many MiB a VM gets."""
        return max(_LEAST_MIB, min(spec.memory_mib, self.memory_mib))


def command(
    spec: NodeSpec,
    image: VmImage,
    accelerator: Accelerator,
    limits: Limits,
    *,
    place: Path,
    ssh_port: int,
    now: datetime,
) -> list[str]:
    """The command line; `place` holds the node's overlay and its cloud-init disc, and is the working directory."""
    return [
        *_board(accelerator, place, cores=limits.cores_of(spec), memory_mib=limits.memory_of(spec)),
        *("-name", f"guest={spec.name}", "-smbios", f"type=1,uuid={spec.uuid}"),
        *_kernel(image, accelerator, "quiet"),
        *_disk(place),
        *("-blockdev", f"driver=raw,node-name=seed,read-only=on,file.driver=file,{_file(place / SEED)}"),
        *("-device", "scsi-cd,drive=seed,bus=scsi.0"),
        *_network(spec, ssh_port=ssh_port),
        *("-device", "virtio-serial-pci", "-chardev", _socket("agent", AGENT_SOCKET)),
        *("-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"),
        *("-chardev", _socket("monitor", MONITOR_SOCKET), "-mon", "chardev=monitor,mode=control"),
        *_clock(spec, now),
    ]


def proof_command(image: VmImage, accelerator: Accelerator, place: Path) -> list[str]:
    """The command line of a machine that says on its console whether it gets on, and is then thrown away."""
    return [
        *_board(accelerator, place, cores=1, memory_mib=_LEAST_MIB),
        *_kernel(image, accelerator, "quiet", "init=/usr/local/sbin/lab-proof"),
        *_disk(place),
        *("-nic", "none"),
    ]


def _board(accelerator: Accelerator, place: Path, *, cores: int, memory_mib: int) -> list[str]:
    return [
        *(PROGRAM, "-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35"),
        *accelerator.options,
        *("-smp", f"cpus={cores}", "-m", f"{memory_mib}M"),
        *("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
        *("-object", "rng-random,id=random,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=random"),
        *("-serial", f"file:{place / CONSOLE}"),
    ]


def _kernel(image: VmImage, accelerator: Accelerator, *words: str) -> list[str]:
    line = ("root=LABEL=root", "ro", "console=ttyS0", *accelerator.kernel_words, *words)
    return ["-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", " ".join(line)]


def _disk(place: Path) -> list[str]:
    # What the guest syncs need not reach this machine's disk: a VM that outlives the lab is none of the lab's.
    overlay = f"driver=qcow2,node-name=disk,cache.no-flush=on,file.driver=file,{_file(place / OVERLAY)}"
    disk = ("-blockdev", overlay, "-device", "scsi-hd,drive=disk,bus=scsi.0")
    return ["-device", "virtio-scsi-pci,id=scsi", *disk]


def _file(path: Path) -> str:
    # A comma ends an option, two of them are one: qemu(1).
    return f"file.filename={path}".replace(",", ",,")


def _network(spec: NodeSpec, *, ssh_port: int) -> list[str]:
    """The management network, which leads nowhere but from this machine to SSH; further ones, to nothing at all."""
    network = IPv4Interface(f"{spec.address}/{_PREFIX}").network
    told = ("id=net0", "ipv6=off", "restrict=on", f"net={network}", f"host={network.network_address + 1}")
    further = (
        f"dns={network.network_address + 2}",
        f"dhcpstart={spec.address}",
        f"hostfwd=tcp:{spec.address}:{ssh_port}-{spec.address}:22",
    )
    options = ["-netdev", ",".join(("user", *told, *further))]
    for number, mac in enumerate(spec.macs):
        if number:
            options += ["-netdev", f"hubport,id=net{number},hubid={number}"]
        options += ["-device", f"virtio-net-pci,netdev=net{number},mac={mac}"]
    return options


def _socket(name: str, path: str) -> str:
    return f"socket,id={name},path={path},server=on,wait=off"


def _clock(spec: NodeSpec, now: datetime) -> Sequence[str]:
    if not spec.clock_offset_s:
        return ("-rtc", "base=utc")
    told = datetime.fromtimestamp(max(0.0, now.timestamp() + spec.clock_offset_s), UTC)
    return ("-rtc", f"base={told.strftime('%Y-%m-%dT%H:%M:%S')}")
