"""Which VM of the cluster has a uuid; every config is read once a run, for Proxmox has no list of uuids."""

import uuid as uuids
from dataclasses import dataclass

from inventory.errors import BadInput, OtherSide
from provision.adopt_look import AGAIN, refused
from provision.hypervisor import Unreachable
from provision.properties import Config, split
from provision.survey import Survey
from provision.tasks import Tools


@dataclass(frozen=True, slots=True)
class Found:
    """A VM. uuid: as its smbios1 has it, in lower case."""

    vmid: int
    host: str
    uuid: str


class Uuids:
    """The uuids of the VMs that the token may see."""

    def __init__(self, survey: Survey, tools: Tools) -> None:
        """Nothing is asked yet."""
        self._survey = survey
        self._tools = tools
        self._seen: dict[int, str | None] | None = None
        self._silent: dict[int, str] = {}

    @property
    def silent(self) -> tuple[str, ...]:
        """The VMs whose config nobody tells at the moment."""
        return tuple(f"VM {vmid} on {host}" for vmid, host in sorted(self._silent.items()))

    def find(self, name: str, *, vmid: int | None, uuid: str | None) -> Found:
        """The one VM that is meant, by its id, its uuid, or both.

        Raises:
            BadInput: neither is known.
            Refused: there is none, or it is not to be told from another.
            OtherSide: a host that may have it is silent.
        """
        seen = self._all()
        if vmid is None and uuid is None:
            raise BadInput(
                f"which VM is to be {name} was not told",
                why="no uuid is on record for that name",
                next_step="name it with --vmid N or --uuid U, or import a list that has it",
            )
        wanted = None if uuid is None else uuid.lower()
        if vmid is None:
            mine = [each for each, found in seen.items() if found == wanted]
            if not mine and self._silent:
                raise OtherSide(
                    f"{name} was not adopted",
                    why=f"no VM that answers has uuid {wanted}; nobody tells of {', '.join(self.silent)}",
                    next_step=f"see that these hosts are up, then: {AGAIN}",
                )
            if not mine:
                why = f"no VM that this token may see has uuid {wanted}"
                raise refused(
                    name, why, "look at smbios1 of the VM in Proxmox, and at the token's rights on it"
                )
            vmid = mine[0]
        guest = next((guest for guest in self._survey.guests if guest.vmid == vmid), None)
        if guest is None:
            why = f"VM {vmid} does not exist, or this token may not see it"
            raise refused(name, why, "look for it in Proxmox: qm list")
        if guest.template:
            raise refused(name, f"VM {vmid} '{guest.name}' is a template", "name a VM that runs")
        if vmid in self._silent:
            raise OtherSide(
                f"{name} was not adopted",
                why=f"{guest.host or 'its host'} does not tell of VM {vmid}",
                next_step=f"see that the host is up, then: {AGAIN}",
            )
        found = seen.get(vmid)
        if found is None:
            why = f"VM {vmid} on {guest.host} has no uuid of its own in smbios1, so nothing would prove that it is it"
            raise refused(
                name, why, f"give it one: qm set {vmid} --smbios1 uuid=$(uuidgen), then stop and start it"
            )
        if wanted is not None and found != wanted:
            raise refused(name, f"VM {vmid} has uuid {found}, not {wanted}", "name the right one of the two")
        if alike := [str(each) for each, other in seen.items() if other == found and each != vmid]:
            why = f"VM {vmid} and VM {', '.join(alike)} have the same uuid {found}, so it proves neither"
            raise refused(name, why, "give the copy a uuid of its own (smbios1), then stop and start it")
        return Found(vmid, guest.host, found)

    def _all(self) -> dict[int, str | None]:
        """The uuid of each VM; templates do not run, and their uuid disturbs nobody."""
        if self._seen is not None:
            return self._seen
        seen: dict[int, str | None] = {}
        guests = [guest for guest in self._survey.guests if not guest.template]
        self._tools.console.detail(f"reading the uuids of {len(guests)} VMs")
        for guest in guests:
            try:
                config = self._tools.hypervisor.config(guest.host, guest.vmid) if guest.reported else None
            except Unreachable:
                config = None
            if config is None:
                self._silent[guest.vmid] = guest.host or "its host"
            else:
                seen[guest.vmid] = uuid_of(config)
        self._seen = seen
        return seen


def uuid_of(config: Config) -> str | None:
    """The uuid of a VM's config, in lower case; None where it has none that could prove anything."""
    text = split(str(config.get("smbios1", ""))).get("uuid", "")
    try:
        found = uuids.UUID(text)
    except ValueError:
        return None
    return str(found) if found.int and str(found) == text.lower() else None
