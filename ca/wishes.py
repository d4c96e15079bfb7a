"""What `node-ca issue-many` is given and gives: a folder of requests or a list of them, and a folder for each node."""

import contextlib
import secrets
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ca.batch import Asked, sync_all
from ca.issue import Issued
from ca.request import read_file
from inventory.document import Model, RelativePath, load
from inventory.errors import BadInput, Refused
from inventory.files import sync_folder

_SUFFIX = ".csr"


class Wish(Model):
    """One certificate that is wanted; what `node-ca issue` takes as options."""

    csr: RelativePath
    node: str
    vm_uuid: str | None = None
    names: list[str] = Field(default_factory=list)
    addresses: list[str] = Field(default_factory=list)


class Wishes(Model):
    """A list of them, as a file."""

    certificates: Annotated[list[Wish], Field(min_length=1)]


def read(place: Path) -> list[Asked]:
    """The requests of a list, or those of a folder: each NODE.csr there.

    Raises:
        BadInput: the list has faults, a request cannot be read, or there is none.
    """
    if place.is_dir():
        wishes = [Wish(csr=file, node=file.stem) for file in sorted(place.glob(f"*{_SUFFIX}"))]
    else:
        wishes = load(place, Wishes).certificates
    nodes = [wish.node for wish in wishes]
    if twice := sorted(node for node, count in Counter(nodes).items() if count > 1):
        raise _bad(f"{', '.join(twice)}: named twice in {place}", "name each node once")
    if not wishes:
        raise _bad(
            f"there is no NODE{_SUFFIX} in {place}", f"name each request after its node: gpu-01{_SUFFIX}"
        )
    return [
        Asked(
            read_file(wish.csr),
            wish.node,
            vm_uuid=wish.vm_uuid,
            names=tuple(wish.names),
            addresses=tuple(wish.addresses),
        )
        for wish in wishes
    ]


def look_before(asked: Sequence[Asked], out: Path) -> None:
    """A certificate never replaces another file; looked at before anything is signed.

    Raises:
        Refused: there is something in `out` under the name of a node.
        BadInput: `out` is no folder.
    """
    if out.exists() and not out.is_dir():
        raise _bad(f"{out} is not a folder", "choose another --out")
    if there := [out / each.node for each in asked if (out / each.node).exists()]:
        raise Refused(
            "nothing was signed",
            why=f"{there[0]} exists" + (f", and {len(there) - 1} more" if len(there) > 1 else ""),
            next_step="choose another --out, or move that away",
        )


def hand_over(issued: Sequence[tuple[str, Issued]], bundle_pem: bytes, out: Path) -> None:
    """Write NODE/cert.pem and NODE/bundle.pem for each; a folder is there whole or not at all.

    Raises:
        BadInput: the disk did not take them; the certificates are issued all the same.
    """
    beside = out / f".{secrets.token_hex(8)}"
    try:
        beside.mkdir(parents=True)
        files = []
        for node, each in issued:
            (beside / node).mkdir()
            for name, data in (("cert.pem", each.chain_pem), ("bundle.pem", bundle_pem)):
                (beside / node / name).write_bytes(data)
                files.append(beside / node / name)
        sync_all(out, files)
        for node, _ in issued:
            (beside / node).rename(out / node)
        beside.rmdir()
        sync_folder(out)
    except OSError as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(beside)
        raise BadInput(
            f"the certificates are issued, but not all of them are in {out}",
            why=f"{error.filename or out}: {error.strerror or error}",
            next_step="mend that; they lie in the authority's folder, under issued/, by serial number",
        ) from error


def _bad(why: str, next_step: str) -> BadInput:
    return BadInput("nothing was signed", why=why, next_step=next_step)
