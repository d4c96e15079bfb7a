"""Cloud images: fetched once by Proxmox itself, checked, and known again by their name."""

from provision.hypervisor import Unanswered
from provision.plan import Fetch
from provision.tasks import Tools, follow
from provision.wanted import WantedImage

DOWNLOAD_S = 7200.0
_SUFFIXES = {".img": ".qcow2"}  # distributions call their qcow2 files .img; Proxmox goes by the name


def volume_of(image: WantedImage, storage: str) -> str:
    """The volume of an image in a storage; a fetched one carries its checksum in its name, so it is known again."""
    if image.volume is not None:
        return image.volume
    name = str(image.url).partition("?")[0].rpartition("/")[2]
    stem, dot, suffix = name.rpartition(".")
    ending = _SUFFIXES.get(dot + suffix, dot + suffix)
    return f"{storage}:import/muster-{str(image.sha256).lower()[:16]}-{stem}{ending}"


def fetch(tools: Tools, step: Fetch) -> tuple[str, ...]:
    """Let Proxmox download the image, unless it is there by now; its task's warnings.

    Raises:
        OtherSide: the download failed, or its checksum is another.
    """
    hypervisor = tools.hypervisor
    if step.volume in hypervisor.images(step.host, step.storage):
        return ()
    what = f"the download of {step.url} to {step.volume}"
    try:
        upid: str | None = hypervisor.download(step)
    except Unanswered:
        upid = hypervisor.newest_download(step)
        if upid is None:
            raise
    return follow(tools, str(upid), what, timeout_s=DOWNLOAD_S)
