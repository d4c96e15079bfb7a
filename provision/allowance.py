"""What a site file's token must be allowed, worked out from the file alone: nobody is asked, nothing is touched."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from inventory.errors import MusterError
from provision.api_token import read_token
from provision.grants import Grant, Need, commands, grants, needs
from provision.images import volume_of
from provision.plan import Fetch, ImageFound, Source, TemplateFound, plan
from provision.spec import Site
from provision.wanted import NodeSpec, want

VERSIONS = (9, 8)
_ANYWHERE = "<any>"
_BRIDGES = "/sdn/zones/localnetwork/"
_IMAGES = "<a storage with content import>"


def allowance(site: Site, *, version: int, profile: str | None = None) -> tuple[Grant, ...]:
    """The smallest roles, one a path, with which every profile (or one of them) can be made.

    What the file does not tell, such as the id of a template that it names, stands in <>.

    Raises:
        BadInput: there is no such profile.
    """
    names = [profile] if profile is not None else list(site.profiles)
    return grants(need for name in names for need in _needs(site, name, version))


def token_of(site: Site) -> str:
    """The token's id; what it would look like, where there is no token file yet."""
    try:
        return read_token(site.proxmox.token_file)[0].id
    except MusterError:
        return "<user@realm!name>"


def as_lines(site: Site, *, profile: str | None = None) -> list[str]:
    """What an administrator of Proxmox types, and where its versions differ."""
    token = token_of(site)
    newest, *others = VERSIONS
    lines = [f"# Proxmox VE {newest}", *_commands(site, token, newest, profile)]
    for version in others:
        other = [line for line in _commands(site, token, version, profile) if line not in lines]
        if other:
            lines += [f"# Proxmox VE {version}: these in the place of those of the same role", *other]
    return lines


def as_document(site: Site, *, profile: str | None = None) -> dict[str, Any]:
    """The same for --json, without its schema number."""
    token = token_of(site)
    told = {}
    for version in VERSIONS:
        given = allowance(site, version=version, profile=profile)
        rows = [{"path": each.path, "role": each.role, "privileges": list(each.privileges)} for each in given]
        told[str(version)] = {"grants": rows, "commands": _commands(site, token, version, profile)}
    return {"ok": True, "token": token, "user": token.partition("!")[0], "proxmox": told}


def _commands(site: Site, token: str, version: int, profile: str | None) -> list[str]:
    user = token.partition("!")[0].removesuffix(">") + (">" if token.startswith("<") else "")
    return commands(allowance(site, version=version, profile=profile), token=token, user=user)


def _needs(site: Site, profile: str, version: int) -> Iterator[Need]:
    spec = want(site, "some-node", profile, ssh_keys=(), nodes=())
    source = _source(spec)
    steps = plan(spec, template=source, machine=None, uuid=None, known=False)
    config = source.config if isinstance(source, TemplateFound) else {}
    for need in needs(spec, steps, config, version=version):
        path = need.path
        if path == "/vms/0":
            path = f"/vms/<template {spec.tag or spec.template}>"
        if spec.image is None and path.startswith(_BRIDGES):
            # A clone begins with the template's NICs, which the file does not tell: most are on the same bridge,
            # and may have another VLAN or none.
            path = "/".join(path.split("/")[:5])
        yield replace(need, path=path.replace(f"/{_ANYWHERE}", ""))
    if spec.host is None:
        # Without it a host's free memory is not told, and the VM may land where there is none.
        yield Need("/nodes", "Sys.Audit")


def _source(spec: NodeSpec) -> Source:
    host = spec.host or _ANYWHERE
    if spec.image is None:
        vmid = spec.template if isinstance(spec.template, int) else 0
        return TemplateFound(vmid, "", host, {"scsi0": f"{spec.storage}:disk,size=1M"})
    if spec.image.volume is not None:
        return ImageFound(spec.image.volume, host, None)
    volume = volume_of(spec.image, _IMAGES)
    step = Fetch(str(spec.image.url), str(spec.image.sha256), host, _IMAGES, volume)
    return ImageFound(volume, host, step)
