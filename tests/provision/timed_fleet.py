"""One run of provision-node against a Proxmox whose tasks take their time; pytest lends the API (see bench.fleet)."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.provision.kit import Place, furnish

_LOOK_S = 0.1
_MEASURE = """
import json, resource, subprocess, sys, time
began = time.monotonic()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
json.dump({"wall_s": time.monotonic() - began, "cpu_s": used.ru_utime + used.ru_stime,
           "peak_mib": used.ru_maxrss / 1024}, sys.stdout)
sys.exit(done.returncode)
"""  # a small parent: a child begins with its parent's memory, and its peak counts from there


def test_a_fleet_is_timed(fakepve: Any, fakepve_cafile: str, tmp_path: Path) -> None:
    count = int(os.environ["BENCH_NODES"])
    place = furnish(fakepve, tmp_path, Path(fakepve_cafile))
    if boot := os.environ.get("BENCH_TIMES"):  # else every task is over before its request is answered
        disk_s, start_s, boot_s = map(float, boot.split(","))
        slow_down(place, disk_s=disk_s, start_s=start_s)
        threading.Thread(target=boot_guests, args=(place, boot_s), daemon=True).start()

    command = place.command(f"gpu-[01-{count:02}]", "--yes")
    done = subprocess.run([sys.executable, "-S", "-c", _MEASURE, *command], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    Path(os.environ["BENCH_OUT"]).write_bytes(done.stdout)


def slow_down(place: Place, *, disk_s: float, start_s: float) -> None:
    """Let whatever moves a disk, and a start, take so long."""
    pve = place.pve
    pve.time_scale = 1.0
    pve.storages["ceph"] = {"type": "rbd", "active": 1, "content": "images", "files": set(), "shared": 1}
    pve.ceph_slow(disk_s)
    pve.vms[0].config["scsi0"] = "ceph:base-9000-disk-0,size=8G"
    pve.vms.agent_for = lambda vm: setattr(vm, "start_secs", start_s)
    place.write_site(profile_storage="ceph")


def boot_guests(place: Place, boot_s: float) -> None:
    """Give each VM its agent when it has run for so long."""
    while True:
        for vm in list(place.pve.vms):
            runs = not vm.template and vm.status == "running" and vm.started_at
            if runs and vm.agent is None and time.time() - vm.started_at >= boot_s:
                vm.agent = place.new_agent(vm)
        time.sleep(_LOOK_S)
