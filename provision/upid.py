"""What a task's id tells: UPID:node:pid:pstart:starttime:type:id:user: (pve-common UPID.pm; pure)."""


def host_of(upid: str) -> str:
    """The Proxmox node that the task runs on."""
    return _part(upid, 1)


def kind_of(upid: str) -> str:
    """Its type, such as qmclone."""
    return _part(upid, 5)


def began_at(upid: str) -> int:
    """When it began: seconds of the epoch, by its node's clock; 0 where the id does not tell."""
    return _number(upid, 4)


def is_newer(upid: str, known: str | None) -> bool:
    """Whether this task began after `known`; within one second of one node its processes' start times tell."""
    if known is None or upid == known:
        return known is None
    if began_at(upid) == began_at(known) and host_of(upid) == host_of(known):
        return _number(upid, 3) > _number(known, 3)
    return began_at(upid) >= began_at(known)


def _number(upid: str, part: int) -> int:
    try:
        return int(_part(upid, part), 16)
    except ValueError:
        return 0


def _part(upid: str, number: int) -> str:
    parts = upid.split(":")
    return parts[number] if len(parts) > number else ""
