"""The parts of a VM, without one: its command line, its image's name, its agent's answers, its accelerator."""

import base64
import os
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from inventory.errors import BadInput, OtherSide
from lab import demo, hardware, image, image_recipe, qemu_accel, running, seed_disc
from lab.guest_agent import AgentRefused, AgentSilent, GuestAgent
from lab.nodes import BACKENDS, NodeSpec, choose
from lab.qemu_command import Accelerator, Limits, command
from tests.lab.processes import with_text
from tests.lab.qemu_agent import SlowAgent
from tests.require import need, need_command

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 12, 1, tzinfo=UTC)
TCG = Accelerator("tcg", "no vmx", proof_s=1.0, boot_s=1.0)


def spec() -> NodeSpec:
    return NodeSpec(
        vmid=100,
        name="gpu-01",
        address="127.20.7.10",
        uuid="11111111-2222-3333-4444-555555555555",
        macs=("bc:24:11:00:00:01", "bc:24:11:00:00:02"),
        user="muster",
        ssh_keys=("ssh-ed25519 AAAA infra",),
        cores=8,
        memory_mib=1 << 20,
        instance_id="first",
    )


def line(wanted: NodeSpec) -> str:
    vm_image = image.VmImage(Path("/images/one"))
    place = Path("/state/a,b")
    return " ".join(command(wanted, vm_image, TCG, Limits(2, 4096), place=place, ssh_port=2222, now=NOW))


def test_the_command_line_has_the_configs_uuid_and_macs_and_no_more_than_the_limits() -> None:
    found = line(spec())

    assert "-smbios type=1,uuid=11111111-2222-3333-4444-555555555555" in found
    assert "virtio-net-pci,netdev=net0,mac=bc:24:11:00:00:01" in found
    assert "hubport,id=net1,hubid=1" in found
    assert "netdev=net1,mac=bc:24:11:00:00:02" in found
    assert "-smp cpus=2 -m 4096M" in found
    assert "file.filename=/state/a,,b/disk.qcow2 " in found


def test_a_vm_reaches_nothing_and_is_reached_by_ssh_alone() -> None:
    network = next(word for word in line(spec()).split() if word.startswith("user,"))

    assert "restrict=on" in network.split(",")
    assert [part for part in network.split(",") if part.startswith("hostfwd=")] == [
        "hostfwd=tcp:127.20.7.10:2222-127.20.7.10:22"
    ]


def test_a_clock_that_is_off_is_the_machines_own() -> None:
    assert line(spec()).endswith("-rtc base=utc")
    assert line(replace(spec(), clock_offset_s=-60)).endswith("-rtc base=2026-11-30T23:59:00")
    assert line(replace(spec(), clock_offset_s=-(1 << 40))).endswith("-rtc base=1970-01-01T00:00:00")


def test_a_vm_gets_the_least_that_debian_boots_with() -> None:
    limits = Limits(2, 4096)

    assert limits.memory_of(replace(spec(), memory_mib=64)) == 512
    assert limits.cores_of(replace(spec(), cores=0)) == 1


@pytest.mark.parametrize(
    ("flags", "device", "why"),
    [
        ("flags\t\t: fpu vme nx lm", "null", "neither vmx nor svm"),
        ("flags\t\t: fpu svm", "absent", "cannot be opened"),
        ("flags\t\t: vmx fpu", "null", None),
    ],
)
def test_a_device_alone_does_not_prove_kvm(tmp_path: Path, flags: str, device: str, why: str | None) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{flags}\n")
    (tmp_path / "null").touch()
    found = qemu_accel.why_no_kvm(tmp_path / "cpuinfo", tmp_path / device)

    assert (found is None) if why is None else (found is not None and why in found)


def test_emulation_is_always_tried_last_and_says_why() -> None:
    found = list(qemu_accel.accelerators())

    assert found[-1].name == "tcg"
    assert found[-1].why
    assert all(one.name == "kvm" and not one.why for one in found[:-1])


def test_an_image_goes_by_the_name_of_all_that_it_is_made_of() -> None:
    made = image_recipe.recipe("bookworm")
    others = [
        replace(made, suite="trixie"),
        replace(made, packages=(*made.packages, "vim")),
        replace(made, prepare=f"{made.prepare}\n"),
        replace(made, pack=f"{made.pack}\n"),
    ]

    assert image_recipe.recipe("bookworm").name == made.name
    assert len({made.name, *(other.name for other in others)}) == 5


def test_a_recipe_names_no_archive(tmp_path: Path) -> None:
    made = image_recipe.bootstrap(
        image_recipe.recipe("bookworm"),
        mode="root",
        target=tmp_path / "root.tar",
        sources=[Path("/etc/apt/sources.list")],
        apt_options=tmp_path / "apt.conf",
    )

    assert made[-3:] == ["bookworm", str(tmp_path / "root.tar"), "/etc/apt/sources.list"]
    assert "://" not in " ".join(made)


def test_the_partition_table_has_one_bootable_linux_partition_over_the_whole_file_system() -> None:
    made = image_recipe.recipe("bookworm")
    table = image_recipe.partition_table(made)
    boots, kind, start, sectors = struct.unpack("<B3xB3xII", table[446])

    assert (boots, kind, table[510]) == (0x80, 0x83, b"\x55\xaa")
    assert (start * 512, sectors * 512) == (1 << 20, made.file_system_mib << 20)


def test_images_lie_in_the_cache_and_a_relative_one_is_ignored() -> None:
    assert image.images_home({"XDG_CACHE_HOME": "/c"}) == Path("/c/muster/images")
    assert image.images_home({"XDG_CACHE_HOME": "c", "HOME": "/h"}) == Path("/h/.cache/muster/images")


def test_a_build_that_is_killed_leaves_no_process_and_no_image(tmp_path: Path) -> None:
    need_command("mmdebstrap", "mke2fs", "unshare")
    need(os.geteuid() == 0, "root", "run the tests as root, in a machine that you can lose")
    start = (
        f"from pathlib import Path; from lab.image import obtain; obtain(Path({str(tmp_path / 'images')!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", start], cwd=ROOT) as builder:
        until = time.monotonic() + 60.0
        while not with_text(str(tmp_path), but=[builder.pid]) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(1.0)
        builder.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60.0
    while (left := with_text(str(tmp_path))) and time.monotonic() < until:
        time.sleep(0.05)

    assert left == []
    assert image.find(tmp_path / "images") is None
    assert (tmp_path / "images").stat().st_mode & 0o777 == 0o700


def test_a_late_answer_is_not_taken_for_the_next_ones(tmp_path: Path) -> None:
    answers = {"guest-ping": {}, "guest-get-host-name": {"host-name": "gpu-01"}}
    with SlowAgent(tmp_path / "agent", answers, {"guest-ping": 0.6}):
        agent = GuestAgent(tmp_path / "agent")
        with pytest.raises(AgentSilent):
            agent.ask("guest-ping", timeout_s=0.3)
        found = agent.ask("guest-get-host-name", timeout_s=60.0)

    assert found == {"host-name": "gpu-01"}


def test_an_agent_that_is_not_there_is_silent(tmp_path: Path) -> None:
    with pytest.raises(AgentSilent):
        GuestAgent(tmp_path / "agent").ask("guest-ping", timeout_s=0.2)


def test_a_path_longer_than_a_socket_address_is_reached(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with SlowAgent(tmp_path / "agent", {"guest-ping": {}}, {}):
        (deep / "agent").symlink_to(tmp_path / "agent")

        assert GuestAgent(deep / "agent").ask("guest-ping", timeout_s=60.0) == {}


def test_a_file_is_read_to_its_end_and_closed(tmp_path: Path) -> None:
    part = {"count": 5, "buf-b64": base64.b64encode(b"hello").decode(), "eof": True}
    answers = {"guest-file-open": 7, "guest-file-read": part, "guest-file-close": {}}
    with SlowAgent(tmp_path / "agent", answers, {}):
        agent = GuestAgent(tmp_path / "agent")
        found = agent.read_file("/etc/motd", limit=100, timeout_s=60.0)
        with pytest.raises(OSError, match="too large"):
            agent.read_file("/etc/motd", limit=3, timeout_s=60.0)

    assert found == b"hello"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("failed to open file '/x' (mode: 'r'): No such file or directory", FileNotFoundError),
        ("failed to open file '/x' (mode: 'r'): Permission denied", PermissionError),
        ("failed to read file: Is a directory", IsADirectoryError),
        ("something new", OSError),
    ],
)
def test_an_agents_refusal_is_the_error_of_the_guests_kernel(
    tmp_path: Path, said: str, kind: type[OSError]
) -> None:
    answers = {"guest-file-open": {"error": {"class": "GenericError", "desc": said}}}
    with SlowAgent(tmp_path / "agent", answers, {}), pytest.raises(kind) as caught:
        GuestAgent(tmp_path / "agent").read_file("/x", limit=1, timeout_s=60.0)

    assert isinstance(caught.value.__cause__, AgentRefused)


def test_a_drive_without_the_apis_files_says_what_the_spec_says(tmp_path: Path) -> None:
    need_command("genisoimage")
    made = seed_disc.seed_of(spec())
    seed_disc.write_seed(made, tmp_path / "seed.iso")
    seed_disc.write_seed(made, tmp_path / "seed.iso")
    label = (tmp_path / "seed.iso").read_bytes()[0x8028:0x8048].decode().strip()

    assert "user: muster\n" in made.user
    assert "address: '127.20.7.10'" in made.network
    assert made.meta == "instance-id: first\n"
    assert label == "cidata"
    assert (tmp_path / "seed.iso").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["seed.iso"]


@pytest.mark.parametrize(
    ("config", "size_mib"),
    [
        ({"boot": "order=scsi1;scsi0", "scsi0": "l:a,size=4G", "scsi1": "l:b,size=8G"}, 8192),
        ({"scsi0": "l:a,size=1500K"}, 2),
        ({"ide2": "l:vm-1-cloudinit,media=cdrom,size=4M"}, 0),
    ],
)
def test_the_disk_that_a_vm_boots_from_has_the_configs_size(config: dict[str, str], size_mib: int) -> None:
    assert hardware.boot_disk_mib(config) == size_mib


def test_vms_are_made_by_name_only(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no backend 'paper'") as caught:
        choose(tmp_path, wanted="paper")

    assert "qemu" in BACKENDS
    assert "qemu" in caught.value.why


def test_a_machine_without_qemu_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.spawner.SANE_PATH", str(tmp_path))
    with pytest.raises(OtherSide) as caught:
        choose(tmp_path / "state", wanted="qemu", trial_address="127.20.0.250")

    assert "apt-get install --no-install-recommends qemu-system-x86 qemu-utils mmdebstrap" in caught.value.why
    assert caught.value.why.endswith("genisoimage")


def test_a_user_without_further_numbers_can_build_no_image(tmp_path: Path) -> None:
    (tmp_path / "subuid").write_text("alice:100000:65536\n")

    assert image.has_subids("alice", tmp_path / "subuid")
    assert not image.has_subids("bob", tmp_path / "subuid")
    assert not image.has_subids("alice", tmp_path / "absent")


def test_two_kinds_of_node_at_once_are_refused() -> None:
    with pytest.raises(BadInput, match="two kinds"):
        running.backend_named("directory", vm=True)

    assert running.backend_named("qemu", vm=True) == running.backend_named(None, vm=True) == "qemu"
    assert running.backend_named("directory", vm=False) == "directory"


def test_a_vm_is_given_the_time_that_it_needs() -> None:
    usual, slow = demo.steps("small"), demo.steps("small", backend="qemu")

    assert running.start_timeout_s("qemu") > image.BUILD_TIMEOUT_S + TCG.proof_s
    assert running.start_timeout_s(None) == running.START_TIMEOUT_S
    assert running.long_wait(None) is None
    assert running.long_wait("qemu")
    assert [step.arguments for step in usual[:2]] == [step.arguments for step in slow[:2]]
    assert "--deadline" in slow[2].arguments
