"""The acceptance run on the lab: with exactly the printed rights it passes; with one less it names that one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inventory.errors import Refused
from lab.world import PROFILE, TOKEN
from provision.api_token import read_token
from provision.spec import load_site
from tests.acceptance.looking import Looking
from tests.acceptance.ours import begin
from tests.acceptance.place import Ground, ground
from tests.acceptance.pveum import Pveum
from tests.require import need_command

ROOT = Path(__file__).parents[2]
STEPS = [
    "grants", "make", "plan again", "drift found", "drift mended", "host-key drift refused", "two at once",
    "killed and resumed", "rolled back", "retired", "nothing left",
]  # fmt: skip


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    need_command("ssh-keygen")
    with ground(tmp_path_factory.mktemp("lab") / "state", backend="directory") as found:
        yield found


@pytest.fixture
def nobody_may(lab: Ground) -> Ground:
    """The lab, with no rights granted and no VM but the template."""
    lab.forget_rights()
    for vm in [vm for vm in lab.pve.vms if vm.vmid != 9000]:
        lab.pve.vms.remove(vm)  # of a test that failed
    return lab


@pytest.fixture(scope="module")
def printed(lab: Ground) -> list[str]:
    """The lines for Proxmox 9 that --grants prints, as text."""
    done = subprocess.run(
        [Path(sys.executable).with_name("provision-node"), "--grants", "--site", lab.site],
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    return done.stdout.partition("# Proxmox VE 8")[0].splitlines()


def command(lab: Ground, *more: str, own: bool = True) -> list[str]:
    flags = ["--own-addresses"] if own else []
    return [
        sys.executable, "-m", "tests.acceptance", "--site", str(lab.site), "--profile", PROFILE, *flags, *more
    ]  # fmt: skip


def walk(lab: Ground, *more: str, own: bool = True) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(lab, *more, own=own),
        capture_output=True, text=True, timeout=600, check=False, cwd=ROOT, env=environ(lab),
    )  # fmt: skip


def environ(lab: Ground) -> dict[str, str]:
    """A temporary folder of its own, in which nothing may stay."""
    lab.temporary.mkdir(exist_ok=True)
    return {**os.environ, "TMPDIR": str(lab.temporary)}


def test_with_exactly_the_printed_rights_the_whole_road_is_walked(
    nobody_may: Ground, printed: list[str]
) -> None:
    Pveum(nobody_may.pve).type(printed)

    done = walk(nobody_may, "--json")

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["schema"], told["ok"], told["left"]) == (1, True, [])
    assert [(step["step"], step["verdict"]) for step in told["steps"]] == [(name, "passed") for name in STEPS]
    assert len(told["names"]) == len(set(told["names"])) == 5
    assert [vm.vmid for vm in nobody_may.pve.vms] == [9000]
    assert not list(nobody_may.temporary.iterdir())
    # The lab forgets rights that stand on a VM when that VM goes; the rest are as they were granted.
    assert nobody_may.pve.acl.keys() == {TOKEN, TOKEN.partition("!")[0]}


@pytest.mark.parametrize(
    ("path", "privilege"),
    [
        ("/vms/9000", "VM.Clone"),
        ("/vms", "VM.GuestAgent.FileRead"),
        ("/sdn/zones/localnetwork/vmbr0", "SDN.Use"),
    ],
)
def test_with_one_right_less_it_fails_and_names_that_one(
    nobody_may: Ground, printed: list[str], path: str, privilege: str
) -> None:
    lines = without(printed, privilege)
    Pveum(nobody_may.pve).type(lines)
    before = list(nobody_may.pve.tasklog)

    done = walk(nobody_may)

    assert done.returncode == 5, done.stderr
    rows = rows_of(done.stdout)
    assert rows[0] == ["STEP", "VERDICT", "SECONDS", "FOUND"]
    assert rows[1][:2] == ["grants", "failed"]
    assert rows[1][3].startswith(f"the token lacks {privilege} on {path};")
    assert f"lacks {privilege} on {path}" in rows[1][3].partition("exit 3 instead of 0")[2]
    assert {row[1] for row in rows[2:-1]} == {"not run"}
    assert rows[-1][:2] == ["nothing left", "passed"]
    assert nobody_may.pve.tasklog == before


def without(lines: list[str], privilege: str) -> list[str]:
    """The printed lines without a privilege; a role that would hold nothing is left away, with what gives it."""
    rest = []
    empty = [
        line.split()[3]
        for line in lines
        if line.startswith("pveum role add") and f"--privs {privilege} " in line
    ]
    for line in lines:
        if not any(role in line.split() for role in empty):
            rest.append(line.replace(f"{privilege},", "").replace(f",{privilege}", ""))
    assert rest != lines
    return rest


def test_a_failed_step_is_cleaned_up_after_and_what_stays_is_named(
    nobody_may: Ground, printed: list[str]
) -> None:
    Pveum(nobody_may.pve).type(printed)
    nobody_may.pve.fail("POST", "/status/start", 500, "VM is locked (backup)", times=1)
    nobody_may.pve.fail("DELETE", "/nodes/lab/qemu/100", 500, "protection mode enabled", times=1)

    done = walk(nobody_may)

    rows = {row[0]: row for row in rows_of(done.stdout)}
    name = nobody_may.pve.vm(100).name
    assert done.returncode == 5, done.stderr
    assert (rows["grants"][1], rows["make"][1], rows["plan again"][1]) == ("passed", "failed", "not run")
    assert "VM is locked (backup)" in rows["make"][3]
    assert (rows["cleaned up"][1], rows["nothing left"][1]) == ("failed", "failed")
    assert f"still there: VM 100 {name} on lab" in rows["nothing left"][3]
    assert "their record is kept, to go on by hand" in done.stderr
    url = done.stderr.partition("--inventory ")[2].split()[0]
    by_hand = subprocess.run(
        [
            Path(sys.executable).with_name("provision-node"),
            *(name, "--rollback", "--yes", "--site", nobody_may.site, "--inventory", url),
        ],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert by_hand.returncode == 0, by_hand.stderr
    assert [vm.vmid for vm in nobody_may.pve.vms] == [9000]
    shutil.rmtree(Path(url.removeprefix("sqlite:///")).parent)


def test_an_interrupted_run_takes_away_what_it_made(nobody_may: Ground, printed: list[str]) -> None:
    Pveum(nobody_may.pve).type(printed)
    process = subprocess.Popen(
        command(nobody_may),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environ(nobody_may),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while len(nobody_may.pve.vms) == 1 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=600)

    rows = {row[0]: row for row in rows_of(stdout)}
    assert process.returncode == 130, stderr
    assert rows["make"][1:2] == ["failed"]
    assert rows["make"][3].endswith("interrupted")
    assert (rows["cleaned up"][1], rows["nothing left"][1]) == ("passed", "passed")
    assert [vm.vmid for vm in nobody_may.pve.vms] == [9000]


def test_static_addresses_that_may_be_somebodys_are_refused(nobody_may: Ground) -> None:
    done = walk(nobody_may, own=False)

    assert done.returncode == 3
    assert "--own-addresses" in done.stderr
    assert done.stdout == ""


def test_without_a_site_file_it_is_wrong_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.acceptance", "--profile", PROFILE],
        capture_output=True, text=True, timeout=600, check=False, cwd=ROOT,
    )  # fmt: skip

    assert done.returncode == 2
    assert "docs/acceptance.md" in done.stderr


@pytest.fixture
def looking(nobody_may: Ground, printed: list[str]) -> Iterator[Looking]:
    """The port, as the token with the printed rights."""
    Pveum(nobody_may.pve).type(printed)
    part = load_site(nobody_may.site).proxmox
    token, _ = read_token(part.token_file)
    with Looking(url=part.url, token=token, ca_file=part.ca_file) as found:
        yield found


def test_it_does_not_begin_where_a_vm_has_a_name_that_it_would_give(
    nobody_may: Ground, looking: Looking
) -> None:
    nobody_may.pve.add_vm(777, "mustertest-0a0b-3", node="lab")
    nobody_may.pve.counted_every_s = 0.0
    try:
        with pytest.raises(Refused, match="mustertest-0a0b-3"):
            begin(
                load_site(nobody_may.site), nobody_may.site, PROFILE, looking,
                prefix="mustertest", own_addresses=True, timeout_s=10, token_hex=lambda _: "0a0b",
            )  # fmt: skip
    finally:
        nobody_may.pve.vms.remove(nobody_may.pve.vm(777))


def rows_of(stdout: str) -> list[list[str]]:
    return [line.split("\t") for line in stdout.splitlines()]
