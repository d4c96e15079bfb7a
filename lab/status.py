"""What the lab's API tells of a VM or of a task, in the form of a real host; pure."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from lab import agent, cloudinit, hardware
from lab.guests import Vm

Task = Mapping[str, Any]

_PRESSURE = [f"pressure{of}{kind}" for of in ("cpu", "io", "memory") for kind in ("some", "full")]
_MIB = 1 << 20
_WARNINGS = re.compile(r"WARNINGS: \d+")


def current(vm: Vm, *, now: float) -> dict[str, Any]:
    """A VM as `status/current` tells of it."""
    found = {**row(vm, now=now, full=True), "ha": {"managed": 0}}
    if agent.enabled(vm.config.get("agent")):
        found["agent"] = 1
    if "vga" in vm.config:
        found["clipboard"] = None
    if vm.lock:
        found["lock"] = vm.lock
    return found


def row(vm: Vm, *, now: float, full: bool) -> dict[str, Any]:
    """A VM as the list of its node tells of it, in short or in full."""
    found: dict[str, Any] = {
        "vmid": vm.vmid,
        "name": vm.config.get("name") or f"VM {vm.vmid}",
        "status": vm.status,
        "cpus": _cores(vm),
        **_usage(vm, now=now),
    }
    if "serial0" in vm.config:
        found["serial"] = 1
    if vm.config.get("tags"):
        found["tags"] = vm.config["tags"]
    if vm.template:
        found["template"] = 1
    if vm.status == "running":
        found |= {"pid": 1000 + vm.vmid, **dict.fromkeys(_PRESSURE, 0)}
    if full:
        found["qmpstatus"] = vm.qmpstatus
        if vm.status == "running":
            nics = [f"tap{vm.vmid}i{number}" for number, _mac, _bridge in cloudinit.nics(vm.config)]
            found["nics"] = {name: {"netin": 0, "netout": 0} for name in nics}
    return found


def counted(vm: Vm, *, now: float) -> dict[str, Any]:
    """What a host learns of a VM each time it counts them."""
    name = vm.config.get("name") or f"VM {vm.vmid}"
    more = {"name": name, "status": vm.status, "template": int(vm.template), "maxcpu": _cores(vm)}
    return {**more, "diskread": 0, "diskwrite": 0, **_usage(vm, now=now)}


def resource(vm: Vm, last: Mapping[str, Any] | None) -> dict[str, Any]:
    """A VM as the cluster lists it: hardly more than its id until the host has counted it."""
    found: dict[str, Any] = {"id": f"qemu/{vm.vmid}", "type": "qemu", "vmid": vm.vmid, "node": vm.node}
    found |= last or {"status": "unknown"}
    if vm.config.get("tags"):
        found["tags"] = vm.config["tags"]
    if vm.lock:
        found["lock"] = vm.lock
    if vm.pool:
        found["pool"] = vm.pool
    return found


def _cores(vm: Vm) -> int:
    return int(str(vm.config.get("cores", 1))) * int(str(vm.config.get("sockets", 1)))


def _usage(vm: Vm, *, now: float) -> dict[str, int]:
    memory = int(str(vm.config.get("memory", 512)).split(",")[0].removeprefix("current="))
    disks = [options for _, _, options in hardware.drives(vm.config) if options.get("media") != "cdrom"]
    running = vm.status == "running" and vm.started_at is not None
    return {
        "cpu": 0,
        "mem": 0,
        "memhost": 0,
        "maxmem": memory * _MIB,
        "disk": 0,
        "maxdisk": hardware.size_in_bytes(disks[0].get("size", "0")) if disks else 0,
        "netin": 0,
        "netout": 0,
        "uptime": int(now - (vm.started_at or now)) if running else 0,
    }


def config(vm: Vm, declared: hardware.Declared, *, waiting: bool) -> dict[str, Any]:
    """A VM's config; with what waits for its next start, unless that is not wanted."""
    merged = {**vm.config, **vm.pending} if waiting else vm.config
    present = {key: value for key, value in merged.items() if value is not None}
    return {**hardware.shown(present, declared), "digest": vm.digest()}


def pending(vm: Vm, declared: hardware.Declared) -> list[dict[str, Any]]:
    """Each key of a VM's config, and what it will be after the next start."""
    now = {**hardware.shown(vm.config, declared), "digest": vm.digest()}
    later = hardware.shown({key: value for key, value in vm.pending.items() if value is not None}, declared)
    rows = []
    for key in sorted({*now, *vm.pending}):
        found: dict[str, Any] = {"key": key}
        if key in now:
            found["value"] = now[key]
        if key in later:
            found["pending"] = later[key]
        elif key in vm.pending:
            found["delete"] = 1
        rows.append(found)
    return rows


# Tasks


def task(record: Task) -> dict[str, Any]:
    """A task as its `status` tells of it."""
    found = {key: value for key, value in record.items() if key not in {"log", "endtime"}}
    return {**found, **_who(record)}


def tasks(records: Iterable[Task], asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tasks that pass a query's filters, the newest first, as the list of a node tells of them."""
    rows = [_task_row(record) for record in records if _wanted(record, asked)]
    newest = sorted(enumerate(rows), key=lambda pair: (-pair[1]["starttime"], -pair[0]))
    return [found for _, found in newest]


def _wanted(record: Task, asked: Mapping[str, Any]) -> bool:
    running = record["status"] == "running"
    source = asked.get("source", "archive")
    if source != "all" and running != (source == "active"):
        return False
    outcome = str(record.get("exitstatus", ""))
    if int(asked.get("errors", 0)) and (running or _verdict(outcome) != "error"):
        return False
    if "statusfilter" in asked and _verdict(outcome) not in re.split(r"[,; ]+", asked["statusfilter"]):
        return False
    return (
        str(asked.get("vmid", record["id"])) == record["id"]
        and str(asked.get("userfilter", "")) in record["user"]
        and asked.get("typefilter", record["type"]) == record["type"]
        and int(asked.get("since", 0)) <= record["starttime"] <= int(asked.get("until", record["starttime"]))
    )


def _verdict(outcome: str) -> str:
    if outcome in {"", "OK"}:
        return "ok" if outcome else "unknown"
    return "warning" if _WARNINGS.fullmatch(outcome) else "error"


def _task_row(record: Task) -> dict[str, Any]:
    found = {key: value for key, value in record.items() if key not in {"log", "exitstatus"}}
    if record["status"] == "running":
        found |= {"status": "RUNNING", "saved": "0"}
    else:
        found["status"] = record["exitstatus"]
    return {**found, **_who(record)}


def _who(record: Task) -> dict[str, str]:
    user, _, token = record["user"].partition("!")
    return {"user": user, "tokenid": token} if token else {"user": user}


def log(lines: Sequence[str], *, start: int, limit: int) -> dict[str, Any]:
    """A page of a task's log; without a limit all of the rest."""
    rows = [{"n": n, "t": text} for n, text in enumerate(lines or ["no content"], 1)]
    return {"data": rows[start : start + limit if limit else None], "total": len(rows)}


# The cluster


def nodes(known: Mapping[str, Mapping[str, Any]], audited: Collection[str]) -> list[dict[str, Any]]:
    """The nodes; what a node carries is told only of those that may be audited."""
    load = {"cpu": 0.02, "maxcpu": hardware.MAX_CORES, "mem": 2 << 30, "maxmem": 8 << 30, "disk": 4 << 30}
    rows = []
    for name, state in sorted(known.items()):
        online = state.get("online", True)
        found = {"node": name, "id": f"node/{name}", "type": "node", "level": ""}
        found["status"] = "online" if online else "offline"
        more = {**load, "maxdisk": 64 << 30, "uptime": 3600} if online and name in audited else {}
        rows.append({**found, **more})
    return rows


def network(node: str) -> dict[str, Any]:
    """The network zone that every host has."""
    zone = "localnetwork"
    return {
        "id": f"network/{node}/zone/{zone}",
        "type": "network",
        "network": zone,
        "network-type": "zone",
        "node": node,
        "status": "ok",
    }


def is_kind(found: Mapping[str, Any], kind: str) -> bool:
    """Whether a resource is of the kind that was asked for; one of them has two names."""
    return (found["type"], kind) in {("qemu", "vm"), ("network", "sdn")}
