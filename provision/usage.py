"""What may be typed together: refused before anything is asked of anybody."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from inventory.errors import BadInput
from inventory.model import check_node_name
from inventory.nodeset import expand


def names_of(texts: Iterable[str]) -> tuple[str, ...]:
    """The nodes that are named, node sets spelled out, each once.

    Raises:
        BadInput: one cannot name a node, or a set is malformed.
    """
    try:
        names = expand(texts)
    except ValueError as error:
        raise BadInput(
            "the nodes were not understood",
            why=str(error),
            next_step="name nodes like gpu-07, and sets of them like 'gpu-[01-16]'",
        ) from None
    for name in names:
        check_node_name(name)
    return names


def check(
    names: tuple[str, ...],
    *,
    modes: Mapping[str, bool],
    plan_only: bool,
    detailed: bool,
    orphan: bool,
    out: Path | None,
    receipt: Path | None = None,
    which: Mapping[str, bool] | None = None,
) -> None:
    """Refuse what cannot be meant. modes: the flags that each make another command of this one.

    which: the options that say which VM is to be adopted.

    Raises:
        BadInput: some of it does not go together.
    """
    chosen = [flag for flag, given in modes.items() if given]
    if len(chosen) > 1:
        raise _apart(*chosen[:2], why="each of them is something else to do")
    mode = chosen[0] if chosen else ""
    if not names and mode != "--grants":
        raise BadInput(
            "no node is named",
            why="there is nothing to do without one",
            next_step="name it: provision-node gpu-07",
        )
    if names and mode == "--grants":
        raise _apart(names[0], mode, why="rights are for a site file, not for one node")
    if plan_only and mode == "--grants":
        raise _apart("--plan", mode, why="--grants changes nothing by itself")
    if plan_only and mode == "--reissue-ticket":
        raise _apart("--plan", mode, why="a new ticket needs no plan: Proxmox is not written to")
    if plan_only and mode == "--drift":
        raise _apart("--plan", mode, why="--drift changes nothing by itself")
    if detailed and not plan_only and mode != "--drift":
        raise _lost(
            "--detailed-exitcode", "it tells of a plan, and none was asked for", "add --plan or --drift"
        )
    if orphan and mode != "--retire":
        raise _lost("--orphan-identity", "it is about a node that is retired", "add --retire")
    if receipt is not None and mode != "--retire":
        raise _lost("--receipt", "it says that the identity of a node to retire was ended", "add --retire")
    if receipt is not None and orphan:
        raise _apart("--receipt", "--orphan-identity", why="the one shows what the other does without")
    if receipt is not None and len(names) > 1 and not receipt.is_dir():
        raise BadInput(
            f"{receipt} cannot hold {len(names)} receipts",
            why="it is not a folder, and a receipt is for one node",
            next_step="name the folder that has NAME.receipt for each",
        )
    for flag in (flag for flag, given in (which or {}).items() if given):
        if mode != "--adopt":
            raise _lost(flag, "it says which VM is to be adopted", "add --adopt")
        if len(names) > 1:
            raise _apart(flag, f"{len(names)} nodes", why="it is one VM, and each node is another")
    if out is not None and mode not in {"", "--reissue-ticket", "--adopt"}:
        raise _apart("--ticket-out", mode, why="it makes no ticket")
    if out is not None and len(names) > 1 and not out.is_dir():
        raise BadInput(
            f"{out} cannot take {len(names)} tickets",
            why="it is not a folder",
            next_step=f"mkdir {out}",
        )


def _apart(one: str, other: str, *, why: str) -> BadInput:
    return BadInput(f"{one} and {other} do not go together", why=why, next_step="leave one of them away")


def _lost(flag: str, why: str, next_step: str) -> BadInput:
    return BadInput(f"{flag} was not understood", why=why, next_step=f"{next_step}, or leave it away")
