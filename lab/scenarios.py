"""Templates as they are in life: what can be wrong with the machine that nodes are cloned from (pure)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from inventory.errors import BadInput

if TYPE_CHECKING:
    from lab.personalise import NodeFile

FIRST_VMID = 9000
GOOD_NAME = "debian-12-lab"
SLOW_S = 8.0
BEHIND_S = 7 * 60  # more than the 300 s that a policy allows unless it says otherwise

CloudInitEnd = Literal["done", "degraded", "failed"]


@dataclass(frozen=True, slots=True)
class Image:
    """What a template's disk brings along, beside the operating system.

    machine_id: left there by a boot, so that every clone has it; None: each clone makes its own.
    host_keys: SSH host keys left there, which cloud-init was told to keep; none: each clone makes its own.
    cloud_init: how its cloud-init ends. sudo_asks: whether the login's sudo wants a password, which it has not.
    """

    machine_id: str | None = None
    host_keys: "tuple[NodeFile, ...]" = ()
    cloud_init: CloudInitEnd = "done"
    sudo_asks: bool = False


CLEAN = Image()


@dataclass(frozen=True, slots=True)
class Template:
    """One template of the lab.

    name: what `node-lab up --template` calls it, and its profile. told: what is wrong with it, for a person.
    agent: whether a guest agent answers. boot_delay_s: how long it boots before anything answers.
    clock_offset_s: seconds that its clock is ahead of the right time.
    leased: its profile takes addresses from DHCP, and each boot gets another one.
    booted: it was booted once and not cleaned; its image then has an identity.
    """

    name: str
    told: str
    image: Image = CLEAN
    agent: bool = True
    boot_delay_s: float = 0.0
    clock_offset_s: int = 0
    leased: bool = False
    booted: bool = False


GOOD = Template(GOOD_NAME, "as it should be")
_EPOCH = "clock-1970"

KNOWN: Mapping[str, Template] = MappingProxyType(
    {
        template.name: template
        for template in (
            Template(
                "cloned", "it keeps its machine-id and SSH host keys, so all clones share them", booted=True
            ),
            Template("no-agent", "it has no guest agent", agent=False),
            Template("degraded", "its cloud-init ends degraded", Image(cloud_init="degraded")),
            Template("cloud-init-fails", "its cloud-init ends with an error", Image(cloud_init="failed")),
            Template(
                "slow", f"nothing in it answers for {SLOW_S:.0f} s after the start", boot_delay_s=SLOW_S
            ),
            Template("clock-off", f"its clock is {BEHIND_S // 60} minutes behind", clock_offset_s=-BEHIND_S),
            Template(_EPOCH, "its clock starts in 1970"),
            Template("moving-lease", "DHCP gives it another address at each boot", leased=True),
            Template("sudo-asks", "its sudo asks for a password", Image(sudo_asks=True)),
        )
    }
)


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names of templates, each once, in the order that they were given.

    Raises:
        BadInput: there is no template of a name.
    """
    wanted = tuple(dict.fromkeys(names))
    if unknown := [name for name in wanted if name not in KNOWN]:
        raise BadInput(
            f"there is no template '{unknown[0]}'",
            why="the lab knows: " + ", ".join(KNOWN),
            next_step="name one of them, or none to get the good one alone",
        )
    return wanted


def templates(
    names: Iterable[str], *, now: datetime, machine_id: str, host_keys: "tuple[NodeFile, ...]"
) -> dict[int, Template]:
    """The lab's templates by vmid: the good one first, then those of the names.

    machine_id, host_keys: what a template that was booted before it became one has left in its image.
    """
    made = [GOOD]
    for name in names:
        template = KNOWN[name]
        if template.booted:
            image = replace(template.image, machine_id=machine_id, host_keys=host_keys)
            template = replace(template, image=image)
        if name == _EPOCH:
            template = replace(template, clock_offset_s=-int(now.timestamp()))
        made.append(template)
    return dict(enumerate(made, start=FIRST_VMID))


def profiles(known: Mapping[int, Template], *, like: str) -> Iterator[str]:
    """The lines of a site file's `profiles` for all templates but the good one; each extends `like`."""
    for vmid, template in known.items():
        if template == GOOD:
            continue
        yield f"  {template.name}:   # {template.told}"
        yield f"    extends: {like}"
        yield f"    template: {vmid}"
        if template.leased:
            yield "    network: {bridge: vmbr0, address: dhcp}"


def date_command(offset_s: int) -> str:
    """A date(1) for nodes whose clock cannot be set: it tells another time, and passes on what names one."""
    return f"""\
#!/bin/sh
# The clock of this node as its template's would be; the kernel's is this machine's.
real=/usr/bin/date
[ -x "$real" ] || real=/bin/date
for word in "$@"; do
    case $word in -d* | --date* | -r* | --reference* | -f* | --file* | -s* | --set*) exec "$real" "$@" ;; esac
done
exec "$real" -d "@$(($("$real" +%s) + {offset_s}))" "$@"
"""
