"""A VM's cloud-init drive: the files that the API was given, on a disc that cloud-init finds by its label."""

import shutil
import subprocess
from pathlib import Path

from inventory.errors import OtherSide
from lab.cloudinit import Seed
from lab.nodes import NodeSpec
from lab.spawner import SANE_ENV, find_program

_TIMEOUT_S = 30.0
# Both take the options of mkisofs; either will do.
_MAKERS = {"genisoimage": ("genisoimage",), "xorriso": ("xorriso", "-as", "mkisofs")}


def missing_packages() -> dict[str, str]:
    """The program that makes a disc and is not there, with its package; none where one of those that can is."""
    if any(find_program(program) is not None for program in _MAKERS):
        return {}
    return {"genisoimage or xorriso": "genisoimage"}


def seed_of(spec: NodeSpec) -> Seed:
    """The files of a node's drive: the API's; else what a machine with this spec would be given."""
    if spec.seed is not None:
        return spec.seed
    user = ["#cloud-config", f"hostname: {spec.name}", "manage_etc_hosts: true", f"fqdn: {spec.name}"]
    user += [f"user: {spec.user}", "ssh_authorized_keys:", *(f"  - {key}" for key in spec.ssh_keys)]
    user += ["users:", "  - default"]
    network = ["version: 1", "config:"]
    for number, mac in enumerate(spec.macs):
        network += ["    - type: physical", f"      name: eth{number}", f"      mac_address: '{mac.lower()}'"]
        if number == 0:
            network += ["      subnets:", "      - type: static"]
            network += [f"        address: '{spec.address}'", "        netmask: '255.255.255.0'"]
    return Seed(
        "".join(f"{line}\n" for line in user),
        "".join(f"{line}\n" for line in network),
        f"instance-id: {spec.instance_id}\n",
        spec.instance_id,
    )


def put_seed(spec: NodeSpec, disc: Path) -> None:
    """Write a node's drive, or the very disc that stands in its place (0600), in place of what was there.

    Raises:
        OtherSide: no disc could be made.
    """
    if spec.disc is None:
        write_seed(seed_of(spec), disc)
        return
    disc.unlink(missing_ok=True)
    disc.touch(0o600)
    disc.write_bytes(spec.disc)


def write_seed(seed: Seed, disc: Path) -> None:
    """Write a drive (0600: a password's hash may be on it), in place of the one that was there.

    Raises:
        OtherSide: no disc could be made.
    """
    folder = disc.with_suffix(".files")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    for name, text in (("user-data", seed.user), ("network-config", seed.network), ("meta-data", seed.meta)):
        (folder / name).write_text(text)
    disc.unlink(missing_ok=True)
    disc.touch(0o600)
    command = [*_maker(), "-quiet", "-output", str(disc), "-volid", "cidata", "-joliet", "-rock", str(folder)]
    try:
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env=SANE_ENV,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        raise OtherSide(
            "the cloud-init drive was not made",
            why=said.decode(errors="replace").strip() or str(error),
            next_step="see whether there is room on the disk, then start the VM again",
        ) from error
    finally:
        shutil.rmtree(folder)


def _maker() -> tuple[str, ...]:
    found = (command for program, command in _MAKERS.items() if find_program(program) is not None)
    return next(found, _MAKERS["genisoimage"])
