"""What concerns every node of one run: the cluster, its templates and storages, each asked for once."""

from collections.abc import Mapping

from inventory.errors import OtherSide, Refused
from provision.hypervisor import Guest, Hypervisor
from provision.plan import StorageFound, TemplateFound
from provision.wanted import NodeSpec


class Survey:
    """Looks at Proxmox on first need and remembers the answer for this run; it never writes."""

    def __init__(self, hypervisor: Hypervisor) -> None:
        """Nothing is asked yet."""
        self._hypervisor = hypervisor
        self._guests: tuple[Guest, ...] | None = None
        self._hosts: Mapping[str, bool] | None = None
        self._storages: dict[str, Mapping[str, StorageFound]] = {}
        self._templates: dict[int, TemplateFound] = {}

    @property
    def guests(self) -> tuple[Guest, ...]:
        """The VMs that the token may see."""
        if self._guests is None:
            self._guests = self._hypervisor.guests()
        return self._guests

    def host_of(self, vmid: int) -> str | None:
        """The Proxmox node that has this VM now."""
        return next((guest.host for guest in self.guests if guest.vmid == vmid), None)

    def storages(self, host: str) -> Mapping[str, StorageFound]:
        """The storages of a host."""
        if host not in self._storages:
            self._storages[host] = self._hypervisor.storages(host)
        return self._storages[host]

    def template(self, spec: NodeSpec) -> TemplateFound:
        """The template that `spec` names, on a host that is online, as is the one the VM will stand on.

        Raises:
            Refused: there is none, or more than one of that name, or it is no template.
            OtherSide: a host is offline.
        """
        guest = self._guest(spec)
        for host in {guest.host, spec.host or guest.host}:
            self._check_online(spec, host)
        if guest.vmid not in self._templates:
            config = self._hypervisor.config(guest.host, guest.vmid)
            if config is None:
                raise _refused(spec, f"template {guest.vmid} has gone from {guest.host} a moment ago")
            self._templates[guest.vmid] = TemplateFound(guest.vmid, guest.name, guest.host, config)
        return self._templates[guest.vmid]

    def _guest(self, spec: NodeSpec) -> Guest:
        key = "vmid" if isinstance(spec.template, int) else "name"
        found = [guest for guest in self.guests if getattr(guest, key) == spec.template]
        if not found:
            others = ", ".join(f"{guest.vmid} '{guest.name}'" for guest in self.guests if guest.template)
            raise _refused(
                spec,
                f"template {spec.template} does not exist, or this token may not see it"
                f" (templates it sees: {others or 'none'})",
            )
        if len(found) > 1:
            raise _refused(
                spec,
                f"template {spec.template!r} could be VM {' or '.join(str(guest.vmid) for guest in found)}",
            )
        if not found[0].template:
            raise _refused(spec, f"VM {found[0].vmid} '{found[0].name}' is not a template")
        return found[0]

    def _check_online(self, spec: NodeSpec, host: str) -> None:
        if self._hosts is None:
            self._hosts = self._hypervisor.hosts()
        if host not in self._hosts:
            known = ", ".join(self._hosts) or "none"
            raise _refused(spec, f"there is no Proxmox node {host!r} (there are: {known})")
        if not self._hosts[host]:
            raise OtherSide(
                f"{spec.name} was not made",
                why=f"Proxmox node {host} is offline",
                next_step=f"bring {host} up, or choose another template or node in the site file",
            )


def _refused(spec: NodeSpec, why: str) -> Refused:
    return Refused(
        f"{spec.name} was not made",
        why=why,
        next_step=f"mend profile {spec.profile} in the site file; nothing was changed",
    )
