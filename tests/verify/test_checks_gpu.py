"""GPUs, their driver and their diagnosis: each verdict has fake tools that earn it."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.probe.pcicheck import redirects
from verify.probe.tls import Identity
from verify.probe.verdicts import FAILED, NOT_JUDGED

from .hosts import Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def smi(count: int) -> str:
    return "\n".join(f"echo 'GPU {number}: NVIDIA H100 (UUID: GPU-{number})'" for number in range(count))


@pytest.mark.parametrize(
    ("wanted", "on_bus", "listed", "verdict"),
    [
        (None, 8, 8, "pass"),
        (8, 8, 8, "pass"),
        (8, 8, 7, "critical"),
        (None, 8, 7, "critical"),
        (8, 4, 4, "critical"),
    ],
)
def test_gpus_are_counted_against_what_is_asked_and_what_is_on_the_bus(
    host: Host, good: Identity, wanted: int | None, on_bus: int, listed: int, verdict: str
) -> None:
    host.gpus(on_bus)
    host.tool("nvidia-smi", smi(listed))

    assert host.look(good, gpus=wanted).verdict("gpus") == verdict


def test_gpus_that_are_asked_and_not_there_are_critical(host: Host, good: Identity) -> None:
    seen = host.look(good, gpus=8, driver="570")

    assert (seen.verdict("gpus"), seen.verdict("gpu-driver"), seen.status) == ("critical", "critical", FAILED)


@pytest.mark.parametrize(
    ("driver", "verdict"), [(None, "info"), ("570", "pass"), ("570.124.06", "pass"), ("57", "critical")]
)
def test_the_driver_is_compared_by_its_first_numbers(
    host: Host, good: Identity, driver: str | None, verdict: str
) -> None:
    host.gpus(1)
    host.tool("nvidia-smi", smi(1))

    assert host.look(good, driver=driver).verdict("gpu-driver") == verdict


def test_a_wedged_nvidia_smi_cannot_be_judged_and_holds_nobody(host: Host, good: Identity) -> None:
    host.gpus(2)
    host.tool("nvidia-smi", "trap '' TERM; while :; do sleep 1; done")
    began = time.monotonic()
    seen = host.look(good, left_s=3.0)

    assert seen.found("gpus") == "nvidia-smi did not answer in 1 s"
    assert (seen.verdict("gpus"), seen.status) == ("unknown", NOT_JUDGED)
    assert seen.verdict("identity") == "pass"
    assert time.monotonic() - began < 100


def test_the_diagnosis_runs_only_where_it_disturbs_nobody(host: Host, good: Identity, tmp_path: Path) -> None:
    host.gpus(1)
    host.tool("nvidia-smi", smi(1))
    host.tool("dcgmi", f"touch {tmp_path}/ran; echo '| Memory | Fail - GPU: 0 |'")
    quiet = host.look(good)
    ran_quietly = (tmp_path / "ran").exists()
    loud = host.look(good, disruptive=True)

    assert not ran_quietly
    assert any("dcgmi" in item for item in quiet.missing)
    assert (loud.verdict("dcgm-diagnosis"), loud.found("dcgm-diagnosis")) == (
        "critical",
        "Memory | Fail - GPU: 0",
    )


@pytest.mark.parametrize(
    ("script", "verdict"), [("echo '| Memory | Pass - All |'", "pass"), ("exit 9", "critical")]
)
def test_the_diagnosis_is_judged_by_its_rows_and_its_exit_status(
    host: Host, good: Identity, script: str, verdict: str
) -> None:
    host.gpus(1)
    host.tool("nvidia-smi", smi(1))
    host.tool("dcgmi", script)

    assert host.look(good, disruptive=True).verdict("dcgm-diagnosis") == verdict


# -- from GPU to GPU -------------------------------------------------------------------------------------------------


def bridge(*capabilities: tuple[int, int], length: int = 4096) -> bytes:
    """A configuration space with those extended capabilities: its number, and what stands 6 bytes behind its start."""
    config = bytearray(4096)
    for number, (kind, control) in enumerate(capabilities):
        at, after = 0x100 + 0x20 * number, 0x120 + 0x20 * number
        head = kind | 1 << 16 | (after if number < len(capabilities) - 1 else 0) << 20
        config[at : at + 8] = head.to_bytes(4, "little") + b"\0\0" + control.to_bytes(2, "little")
    return bytes(config[:length])


ADVANCED_ERRORS, ACS = 0x0001, 0x000D
VALIDATES, REDIRECTS = 0x01, 0x1D


@pytest.mark.parametrize(
    ("config", "mode", "verdict", "found"),
    [
        (bridge((ADVANCED_ERRORS, 0xFF), (ACS, 0)), None, "pass", "no bridge redirects"),
        (bridge((ACS, VALIDATES)), "identity", "pass", "no bridge redirects"),
        (bridge(length=256), None, "pass", "no bridge redirects"),
        (bridge((ADVANCED_ERRORS, 0), (ACS, REDIRECTS)), None, "warning", "up to the root at 0000:40:01.0"),
        (bridge((ACS, 0)), "DMA-FQ", "warning", "translates 0000:00:00.0 (DMA-FQ), 0000:01:00.0 (DMA-FQ)"),
        (bridge((ACS, REDIRECTS), length=64), None, "unknown", "only root may read the settings of 0000:40"),
        (None, None, "unknown", "in a VM its host decides"),
    ],
)
def test_what_stands_between_two_gpus_is_told(
    host: Host, good: Identity, config: bytes | None, mode: str | None, verdict: str, found: str
) -> None:
    host.gpus(2)
    if mode:
        for number in (0, 1):
            host.file(f"/sys/bus/pci/devices/0000:{number:02x}:00.0/iommu_group/type", f"{mode}\n")
    if config is not None:
        host.file("/sys/bus/pci/devices/0000:40:01.0/class", "0x060400\n")
        (host.root / "sys/bus/pci/devices/0000:40:01.0/config").write_bytes(config)
    seen = host.look(good)

    assert (seen.verdict("gpu-peer-access"), seen.status == NOT_JUDGED) == (verdict, False)
    assert found in seen.found("gpu-peer-access")


def test_one_gpu_has_no_peer(host: Host, good: Identity) -> None:
    host.gpus(1)

    assert "gpu-peer-access" not in host.look(good).checks


@given(st.binary(max_size=600))
def test_whatever_a_bridge_holds_is_read_to_an_end(config: bytes) -> None:
    assert redirects(bytes(0x100) + config) in (True, False)
