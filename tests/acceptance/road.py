"""The steps of the acceptance run, each judged by what Proxmox and the record say afterwards."""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from inventory.model import State
from provision.config import is_ours
from provision.grants import Need
from tests.acceptance.ours import Done, Ours
from tests.acceptance.outcome import Failed, Outcomes

FOREIGN_TAG = "changed-by-hand"
FOREIGN_USER = "somebody"
_UNMADE = frozenset({State.PROVISIONING, State.PROVISION_FAILED})
_GONE = frozenset({State.RETIRED, State.PLANNED})


def walk(ours: Ours, outcomes: Outcomes) -> None:
    """Every step, until one fails; then what was made is taken away, and looked for, in any case.

    Raises:
        KeyboardInterrupt, SystemExit: somebody ended the run; the clean-up was done all the same.
    """
    steps: list[tuple[str, Callable[[Ours, list[str]], None]]] = [
        ("grants", grants),
        ("make", make),
        ("plan again", plan_again),
        ("drift found", drift_found),
        ("drift mended", drift_mended),
        ("host-key drift refused", host_keys_kept),
        ("two at once", two_at_once),
        ("killed and resumed", killed_and_resumed),
        ("rolled back", rolled_back),
        ("retired", retired),
    ]
    try:
        for number, (name, step) in enumerate(steps):
            with outcomes.step(name) as found:
                step(ours, found)
            if outcomes.done[-1].verdict == "failed":
                for other, _ in steps[number + 1 :]:
                    outcomes.skip(other)
                break
    finally:
        clean_up(ours, outcomes)


def grants(ours: Ours, found: list[str]) -> None:
    """The token has what --grants prints: by a look of ours, and by the command's own refusal."""
    told = json.loads(_well(ours.run("--grants", "--profile", ours.profile, "--json"), "--grants").stdout)
    versions = sorted(map(int, told["proxmox"]))
    version = min(max(ours.looking.version(), versions[0]), versions[-1])
    printed = told["proxmox"][str(version)]["grants"]
    held = ours.looking.permissions()
    ids = ours.site.vmids.range if ours.site.vmids else None
    wanted = [
        _need(grant["path"], privilege, ids)
        for grant in printed
        for privilege in grant["privileges"]
        if "<" not in grant["path"]
    ]
    missing = [f"{need.privilege} on {need.path}" for need in wanted if not need.met(held)]
    more = sum(len(names) for names in held.values()) - len(wanted)
    plan = ours.run(ours.names[0], "--profile", ours.profile, "--plan")
    if missing:
        found.append(f"the token lacks {', '.join(missing)}")
    plan.expect(0, "--plan")
    if missing:
        raise Failed("the command did not say so")
    unknown = sum("<" in grant["path"] for grant in printed)
    found.append(f"{len(wanted)} privileges are held" + (f", and {more} more are listed" if more > 0 else ""))
    if unknown:
        found.append(f"{unknown} paths are not told by the site file; the plan was not refused")


def _need(path: str, privilege: str, ids: range | None) -> Need:
    """A printed privilege; one on new VMs may stand elsewhere too, as the command itself takes it."""
    if path.startswith("/pool/"):
        return Need(path, privilege, ("/vms",), ids)
    return Need(path, privilege, ids=ids if path == "/vms" else None)


def make(ours: Ours, found: list[str]) -> None:
    """One VM, with the uuid on record."""
    name = ours.names[0]
    _made(ours, ours.run(name, "--profile", ours.profile, "--yes", "--json"), name)
    node = ours.node(name)
    found.append(
        f"VM {node.vmid} on {node.proxmox_node}, {node.address.ip if node.address else 'no address'}"
    )


def plan_again(ours: Ours, found: list[str]) -> None:
    """Nothing is left to do."""
    done = _well(ours.run(ours.names[0], "--plan", "--detailed-exitcode", "--json"), "--plan")
    if steps := [step for node in done.nodes for step in node["plan"]]:
        raise Failed(f"the plan has {steps}")
    found.append("no changes")


def drift_found(ours: Ours, found: list[str]) -> None:
    """A key that a person changed is told."""
    _change(ours, {"tags": FOREIGN_TAG})
    done = ours.run(ours.names[0], "--drift", "--detailed-exitcode", "--json").expect(10, "--drift")
    keys = [
        change["key"]
        for node in done.nodes
        for step in node["drift"]["mendable"]
        for change in step.get("changes", ())
    ]
    if not any(key == "tags" for key in keys):
        raise Failed(f"the tags were changed, and the drift is {keys or 'none'}")
    found.append(f"drift in {', '.join(keys)}")


def drift_mended(ours: Ours, found: list[str]) -> None:
    """The same command mends it, and the person's own tag stays."""
    name = ours.names[0]
    _well(ours.run(name, "--yes"), "the mending")
    _well(ours.run(name, "--drift", "--detailed-exitcode"), "--drift afterwards")
    tags = str(ours.machine(name).get("tags", ""))
    if FOREIGN_TAG not in tags:
        raise Failed(f"the tag that was not ours is gone: {tags}")
    found.append(f"tags are {tags}")


def host_keys_kept(ours: Ours, found: list[str]) -> None:
    """A changed login user is refused, and is set back by hand."""
    name = ours.names[0]
    before = str(ours.machine(name)["ciuser"])
    _change(ours, {"ciuser": FOREIGN_USER})
    try:
        ours.run(name, "--yes").expect(3, "a run with another login user")
        if (user := str(ours.machine(name)["ciuser"])) != FOREIGN_USER:
            raise Failed(f"it was refused, and the login user is {user}")
    finally:
        _change(ours, {"ciuser": before})
    found.append("refused with exit 3, nothing mended; set back by hand")


def two_at_once(ours: Ours, found: list[str]) -> None:
    """One command makes two VMs."""
    names = ours.names[1:3]
    _made(ours, ours.run(*names, "--profile", ours.profile, "--yes", "--json"), *names)
    vmids = [ours.node(name).vmid for name in names]
    if len({*vmids, ours.node(ours.names[0]).vmid}) != 3:
        raise Failed(f"the VM ids are {vmids}")
    found.append(f"VMs {', '.join(map(str, vmids))}")


def killed_and_resumed(ours: Ours, found: list[str]) -> None:
    """A run that is killed while Proxmox works for it is finished by the same command, with one VM."""
    name = ours.names[3]
    words = ("--profile", ours.profile, "--yes", "--json")
    step = ours.kill_at(name, _under_way, *words)
    before = ours.node(name)
    if before.state is not State.PROVISIONING:
        raise Failed(f"after the kill the record says {before.state}")
    _made(ours, ours.run(name, *words), name)
    after = ours.node(name)
    if after.uuid != before.uuid:
        raise Failed(f"the VM has the uuid {after.uuid}, and was begun as {before.uuid}")
    found.append(f"killed at its {step}, VM {after.vmid}")
    _one_of_each(ours)


def rolled_back(ours: Ours, found: list[str]) -> None:
    """A run that is killed can be undone: no VM is left, and the name is free."""
    name = ours.names[4]
    step = ours.kill_at(name, _under_way, "--profile", ours.profile, "--yes")
    vmid = ours.node(name).vmid
    _well(ours.run(name, "--rollback", "--yes"), "--rollback")
    if ours.node(name).state is not State.PLANNED:
        raise Failed(f"the record says {ours.node(name).state}")
    if stays := _left(ours, but=ours.names[:4]):
        raise Failed(f"it left {', '.join(stays)}")
    found.append(f"killed at its {step}, VM {vmid} is gone")


def retired(ours: Ours, found: list[str]) -> None:
    """All that were made go; the records stay."""
    names = ours.names[:4]
    _well(ours.run(*names, "--retire", "--orphan-identity", "--yes"), "--retire")
    if wrong := [name for name in names if ours.node(name).state is not State.RETIRED]:
        raise Failed(f"not retired: {', '.join(wrong)}")
    found.append(f"{len(names)} nodes")


def clean_up(ours: Ours, outcomes: Outcomes) -> None:
    """Take away what the steps left, then look at what is still there; both are judged."""
    rest = [node for node in ours.store.all() if node.state not in _GONE]
    if rest:
        with outcomes.step("cleaned up") as found:
            for flags, chosen in (
                (("--rollback",), [node.name for node in rest if node.state in _UNMADE]),
                (
                    ("--retire", "--orphan-identity"),
                    [node.name for node in rest if node.state not in _UNMADE],
                ),
            ):
                if chosen:
                    _well(ours.run(*chosen, *flags, "--yes"), " ".join(flags))
                    found.append(f"{', '.join(chosen)} by {flags[0]}")
    with outcomes.step("nothing left") as found:
        outcomes.left = _left(ours)
        outcomes.looked = True
        if outcomes.left:
            raise Failed(f"still there: {', '.join(outcomes.left)}")
        found.append(f"no VM and no volume of {len(ours.vmids)} VM ids")


def _under_way(journal: Mapping[str, Any]) -> bool:
    return "upid" in journal


def _well(done: Done, what: str) -> Done:
    return done.expect(0, what)


def _made(ours: Ours, done: Done, *names: str) -> None:
    _well(done, "provision-node")
    states = {node["name"]: node["state"] for node in done.nodes}
    if wrong := {name: states.get(name) for name in names if states.get(name) != "awaiting-identity"}:
        raise Failed(f"it ended with {wrong}")
    for name in names:
        ours.machine(name)


def _change(ours: Ours, changes: dict[str, str]) -> None:
    """What a person would change in Proxmox; only on the first node's VM, whose uuid was looked at."""
    node, config = ours.node(ours.names[0]), ours.machine(ours.names[0])
    ours.looking.configure(
        str(node.proxmox_node), int(node.vmid or 0), changes=changes, delete=[], digest=config.get("digest")
    )


def _one_of_each(ours: Ours) -> None:
    names = [guest.name for guest in ours.looking.guests() if guest.name in ours.names]
    if twice := {name for name in names if names.count(name) > 1}:
        raise Failed(f"there are several VMs named {', '.join(sorted(twice))}")


def _left(ours: Ours, *, but: Collection[str] = ()) -> list[str]:
    """VMs with a name or a uuid of ours, and volumes of VMs that are gone; `but` are nodes that are still there."""
    kept = {node.uuid for name in but if (node := ours.store.get(name)) is not None}
    guests = ours.looking.guests()
    left = []
    for guest in guests:
        if guest.name in ours.names:
            if guest.name not in but:
                left.append(f"VM {guest.vmid} {guest.name} on {guest.host}")
        elif (known := ours.vmids.get(guest.vmid)) is not None and known[0] not in kept:
            # A VM that was just made has no name in this list yet, and the id may be another's by now.
            config = ours.looking.config(guest.host, guest.vmid) or {}
            uuid, name = known
            if is_ours(config, name, uuid, configured=False):
                left.append(f"VM {guest.vmid} {name} on {guest.host}")
    taken = {guest.vmid for guest in guests}
    for host, load in ours.looking.hosts().items():
        for volume, vmid in ours.looking.volumes(host) if load.online else ():
            ownerless = vmid in ours.vmids and vmid not in taken
            if ownerless or any(
                f"{name}{end}" in volume for name in ours.names for end in "-." if name not in but
            ):
                left.append(f"volume {volume} on {host}")
    return left
