"""The lab's templates: named the same everywhere, acted by the nodes, refused where a node cannot act them."""

import subprocess
import time
from datetime import UTC, datetime
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from inventory.errors import BadInput, Refused
from lab import running
from lab.cli import up
from lab.machines import Machines
from lab.personalise import NodeFile
from lab.places import Places
from lab.scenarios import FIRST_VMID, GOOD, KNOWN, Template, check_names, date_command, profiles, templates
from tests.lab.nodes_kit import claimed_prefix, make_backend
from tests.require import need_command

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
KEY = NodeFile("etc/ssh/ssh_host_ed25519_key", b"key", 0o600)


def made(*names: str) -> dict[int, Template]:
    return templates(names, now=NOW, machine_id="a" * 32, host_keys=(KEY,))


def test_help_tells_each_template_and_what_is_wrong_with_it() -> None:
    listed = dict(
        line.strip().split(None, 1) for line in str(up.__doc__).split("\b\n")[1].splitlines() if line.strip()
    )

    assert list(listed) == list(KNOWN)
    assert listed["slow"] in KNOWN["slow"].told
    assert listed["clock-off"] in KNOWN["clock-off"].told


def test_a_name_counts_once_and_an_unknown_one_is_answered_with_the_known() -> None:
    with pytest.raises(BadInput, match="there is no template 'rotten'") as caught:
        check_names(["slow", "rotten"])

    assert check_names(["slow", "cloned", "slow"]) == ("slow", "cloned")
    assert all(name in caught.value.why for name in KNOWN)


def test_the_good_template_is_always_the_first() -> None:
    assert made() == {FIRST_VMID: GOOD}
    assert [(vmid, template.name) for vmid, template in made("slow", "cloned").items()] == [
        (FIRST_VMID, GOOD.name),
        (FIRST_VMID + 1, "slow"),
        (FIRST_VMID + 2, "cloned"),
    ]


def test_only_a_template_that_was_booted_has_an_identity() -> None:
    booted, slow = made("cloned", "slow")[FIRST_VMID + 1], made("cloned", "slow")[FIRST_VMID + 2]

    assert (booted.image.machine_id, booted.image.host_keys) == ("a" * 32, (KEY,))
    assert (slow.image.machine_id, slow.image.host_keys) == (None, ())


def test_a_clock_of_1970_starts_at_the_epoch() -> None:
    assert NOW.timestamp() + made("clock-1970")[FIRST_VMID + 1].clock_offset_s == 0


def test_each_template_but_the_good_one_has_a_profile_that_says_what_is_wrong() -> None:
    lines = list(profiles(made("slow", "moving-lease"), like="small"))

    assert lines[:3] == [
        f"  slow:   # {KNOWN['slow'].told}",
        "    extends: small",
        f"    template: {FIRST_VMID + 1}",
    ]
    assert lines[-1] == "    network: {bridge: vmbr0, address: dhcp}"


@pytest.mark.parametrize("offset_s", [-420, 3600])
def test_date_tells_the_other_time_but_what_it_is_asked_about_stays(tmp_path: Path, offset_s: int) -> None:
    program = tmp_path / "date"
    program.write_text(date_command(offset_s))

    def date(*words: str) -> str:
        return subprocess.run(
            ["sh", str(program), *words], capture_output=True, text=True, check=True, timeout=600
        ).stdout.strip()

    before = int(time.time())
    told = int(date("+%s"))
    assert before <= told - offset_s <= time.time()
    assert date("-u", "-d", "@0", "+%Y") == "1970"
    assert date("-r", str(program), "+%s") == str(int(program.stat().st_mtime))


def test_a_machine_that_is_switched_off_while_it_boots_never_comes_up(tmp_path: Path) -> None:
    slow = Template("slow", "", boot_delay_s=60.0)
    with claimed_prefix() as prefix:
        backend = make_backend("plain", tmp_path, prefix)
        machines = Machines(backend, IPv4Network(f"{prefix}.0/24"), templates={FIRST_VMID: slow})
        machines.cloned(100, FIRST_VMID)
        machine = machines.start(100, {"ipconfig0": f"ip={prefix}.10/24"}, name="gpu-01")
        began = time.monotonic()
        machines.stop(100).result(120)
        took = time.monotonic() - began
        machines.close()
        backend.close()

    assert took < 50
    assert machine.node is None
    assert machine.booting.done()


def test_a_lease_that_moves_is_another_at_each_start_and_free_for_the_next_who_asks(tmp_path: Path) -> None:
    moving = Template("moving-lease", "", boot_delay_s=60.0, leased=True)
    with claimed_prefix() as prefix:
        backend = make_backend("plain", tmp_path, prefix)
        machines = Machines(backend, IPv4Network(f"{prefix}.0/24"), templates={FIRST_VMID: moving})

        def address(vmid: int) -> str:
            """The address of a machine that is switched on anew."""
            machines.stop(vmid).result(120)
            config = {"net0": f"virtio=02:00:00:00:00:{vmid - 100:02x},bridge=vmbr0", "ipconfig0": "ip=dhcp"}
            return machines.start(vmid, config, name="gpu-01").spec.address

        machines.cloned(101, FIRST_VMID)
        moved = [address(101), address(101)]
        stays = [address(102), address(102)]
        machines.close()
        backend.close()

    assert moved[0] != moved[1]
    assert stays == [moved[0]] * 2


def test_a_backend_whose_nodes_cannot_act_a_template_says_why(tmp_path: Path) -> None:
    need_command("ssh-keygen")
    with pytest.raises(BadInput, match="cannot have a template 'sudo-asks'") as caught:
        running.start(
            Places(tmp_path / "lab"), backend="directory", templates=("sudo-asks",), tied=True, ephemeral=True
        )

    assert "with the directory backend that starts here, " in caught.value.why
    assert not (tmp_path / "lab").exists()


def test_a_lab_that_is_up_gets_no_further_template(tmp_path: Path) -> None:
    need_command("ssh-keygen")
    places = Places(tmp_path / "lab")
    lab, server = running.start(places, templates=("slow",), tied=True, ephemeral=True, authority=False)
    same, fresh = running.up(places, backend=None, templates=["slow"])
    with pytest.raises(Refused, match="no lab with the template cloned"):
        running.up(places, backend=None, templates=["cloned"])
    site = places.site.read_text()
    running.end(server)

    assert (same, fresh) == (lab, False)
    assert "  slow:" in site
    assert running.facts(lab)["templates"] == ["slow"]
