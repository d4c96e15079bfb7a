"""A node's own cloud-init disc on its way: uploaded, attached, taken away after the first boot; each noted first."""

from collections.abc import Iterable
from dataclasses import replace

from inventory.errors import OtherSide, Refused
from provision.hypervisor import Unanswered
from provision.journal import Journal
from provision.plan import AttachSeed, MachineFound, RemoveSeed, UploadSeed
from provision.properties import Config
from provision.slots import attached_seeds, is_seed_of
from provision.tasks import Tools, follow, past_locks
from provision.user_data import UserData


class Seeding:
    """The disc of one node."""

    def __init__(self, tools: Tools, journal: Journal) -> None:
        """Nothing is asked or written yet."""
        self._tools = tools
        self._hypervisor = tools.hypervisor
        self._journal = journal
        self.warnings: list[str] = []

    @property
    def _uuid(self) -> str:
        return str(self._journal.node.uuid)

    def upload(self, step: UploadSeed, machine: MachineFound, user_data: UserData) -> None:
        """Make the disc and put it on its storage; doing so again replaces it."""
        from provision import seed

        self._check_ours(step.volume)
        self._journal.note_seed("upload-seed", step.volume)
        config = self._config(machine)
        ask, vm = self._hypervisor.cloud_init_file, (machine.host, machine.vmid)
        own = seed.ProxmoxFiles(ask(*vm, "user"), ask(*vm, "meta"), ask(*vm, "network"))
        data = seed.disc(config, user_data, own)
        what = f"the upload of {step.volume}"
        for last in self._tools.turns_of_a_lock():
            try:
                upid = self._hypervisor.upload_disc(step.host, step.volume, data)
            except Unanswered:
                if last:
                    raise
                self._tools.console.detail(f"the answer to {what} was lost; it is begun again")
            else:
                self._journal.note("upload-seed", upid=upid)
                timeout_s = self._tools.patience.resize_s
                self.warnings += follow(self._tools, upid, what, timeout_s=timeout_s)
                return

    def attach(self, step: AttachSeed, machine: MachineFound) -> MachineFound:
        """Put the disc into its slot, while the VM is off."""
        self._journal.note("attach-seed")
        self._put(machine, {step.key: f"{step.volume},media=cdrom"}, f"attaching {step.volume}")
        config = self._config(machine)
        if attached_seeds(config, self._uuid).get(step.key) != step.volume:
            raise self._not_taken(machine, step.key, config)
        return replace(machine, config=config)

    def remove(self, step: RemoveSeed, machine: MachineFound) -> MachineFound:
        """Give the slot back, and delete every disc of this node that may lie on a storage."""
        self._journal.note_seed("remove-seed", step.volume)
        config = self._config(machine)
        attached = attached_seeds(config, self._uuid)
        for key in attached:
            drive = {key: f"{step.storage}:cloudinit,media=cdrom"}
            self._put(machine, drive, f"taking {attached[key]} out of {key}")
            config = self._config(machine)
            waiting = {each.key for each in self._hypervisor.pending(machine.host, machine.vmid)}
            if key in attached_seeds(config, self._uuid) and key not in waiting:
                raise self._not_taken(machine, key, config)
        self.delete({*self._journal.seeds, *attached.values()})
        return replace(machine, config=config)

    def delete(self, volumes: Iterable[str]) -> None:
        """Delete discs of this node, where they are still there.

        Raises:
            Refused: the name of one is not this node's; it is left alone.
            OtherSide: one could not be deleted.
        """
        for volume in sorted(volumes):
            self._check_ours(volume)
            host, storage = str(self._journal.node.proxmox_node), volume.partition(":")[0]
            if volume not in self._hypervisor.discs(host, storage):
                continue
            self._journal.note("remove-seed")
            lost: Unanswered | None = None
            try:
                upid = self._hypervisor.delete_disc(host, volume)
                if upid is not None:
                    what, timeout_s = f"the removal of {volume}", self._tools.patience.destroy_s
                    self.warnings += follow(self._tools, upid, what, timeout_s=timeout_s)
            except Unanswered as error:
                lost = error
            if volume in self._hypervisor.discs(host, storage):
                raise lost or OtherSide(
                    f"{volume} is still there",
                    why="its removal ended without an error, and the storage still lists it; it may hold secrets",
                    next_step=f"look at {storage} on {host} in Proxmox, then run the command again",
                )

    def _put(self, machine: MachineFound, changes: dict[str, str], what: str) -> None:
        def put() -> None:
            digest = self._config(machine).get("digest")
            self._hypervisor.configure(machine.host, machine.vmid, changes=changes, delete=(), digest=digest)

        try:
            past_locks(self._tools, f"{what} ({machine.vmid})", put)
        except Unanswered:
            self._tools.console.detail(f"the answer to {what} was lost; the config tells")

    def _config(self, machine: MachineFound) -> Config:
        found = self._hypervisor.config(machine.host, machine.vmid)
        if found is None:
            raise OtherSide(
                f"VM {machine.vmid} has gone from {machine.host}",
                why="it was there a moment ago",
                next_step="look who removed it, then run the command again",
            )
        return found

    def _not_taken(self, machine: MachineFound, key: str, config: Config) -> OtherSide:
        return OtherSide(
            f"VM {machine.vmid} did not take its config",
            why=f"{key} is {config.get(key, 'empty')!r}",
            next_step="look at its hardware in Proxmox, then run the command again",
        )

    def _check_ours(self, volume: str) -> None:
        if not is_seed_of(volume, self._journal.node.uuid):
            raise Refused(
                f"{volume} was not touched",
                why=f"its name does not carry {self._journal.node.name}'s uuid, {self._uuid}",
                next_step=f"look at it in Proxmox; what {self._journal.node.name} needs of it is in its record",
            )
