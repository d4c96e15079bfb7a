"""GPUs, their driver and their diagnosis: each verdict has fake tools that earn it."""

import time
from pathlib import Path

import pytest

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
    assert time.monotonic() - began < 15


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
