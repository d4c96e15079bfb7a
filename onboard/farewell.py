"""The end of a node's identity: revoked first, then wiped on the node, then told to infra by a signed receipt."""

from dataclasses import replace
from pathlib import Path

from ca.record import Record
from inventory.errors import MusterError, OtherSide, Refused
from inventory.files import lock, write_whole
from inventory.model import Node, State
from inventory.reach import open_session
from inventory.ticket import Receipt, sign_receipt
from onboard import scripts
from onboard.desk import Desk, Shown, brief
from verify import receipts

_TIMEOUT_S = 60.0
_MAY_END = frozenset(
    {
        State.ONBOARD_FAILED,
        State.AWAITING_VERIFICATION,
        State.VERIFY_FAILED,
        State.IN_SERVICE,
        State.DECOMMISSIONING,
        State.DECOMMISSION_FAILED,
    }
)


def decommission(name: str, desk: Desk) -> bool:
    """End the identity of a node; False if that was done before.

    The certificate is revoked before the node is asked anything, so that a node out of reach is ended as well;
    that its key could not be wiped is then a warning, and the same again tries to wipe it.

    Raises:
        BadInput: there is no receipt of its onboarding.
        Refused: the holder does not agree, or the node's state forbids it.
        Damaged: it could not be written down.
    """
    folder = desk.authority.layout.folder
    receipt = receipts.find(name, file=None, ca_dir=folder, signers=None, ssh_key=desk.key_file)
    live = [record for record in desk.authority.records(name) if record.live(desk.clock())]
    node = desk.store.get(name)
    if receipt.kind == "decommissioned" and not live and (node is None or node.state not in _MAY_END):
        return _unwiped(receipt, desk).exists() and _wiped_later(node, receipt, desk)
    if node is not None and node.state not in _MAY_END:
        raise Refused(
            f"{name} was not decommissioned",
            why=f"it is {node.state}",
            next_step=f"node-inventory show {name}",
        )
    desk.put(name, _shown(receipt, live, desk))
    if desk.dry_run:
        return True
    desk.agree(name)
    with lock(folder / f".onboarding-{name}.lock", timeout_s=1.0):
        # First of all, so that neither the record nor the node can be in the way.
        for record in live:
            desk.authority.revoke(
                record.serial, reason="cessation-of-operation", now=desk.clock(), actor=desk.actor
            )
        with desk.store.lease(name, "onboard-node --decommission", say=desk.console.warn):
            _ended(node, receipt, desk)
    return True


def _ended(node: Node | None, receipt: Receipt, desk: Desk) -> None:
    """The certificate is revoked: the key on the node, the record and the receipt follow."""
    node = _moved(node, State.DECOMMISSIONING, desk, "its identity is to end")
    try:
        wiped = _wipe(receipt, desk)
        _unwiped(receipt, desk).unlink(missing_ok=True)
    except MusterError as error:
        write_whole(_unwiped(receipt, desk), f"{receipt.serial}\n".encode())
        wiped = f"revoked; its key could not be wiped: {error.why}"
        desk.console.warn(f"{receipt.node}: {wiped}")
    _hand_back(node, receipt, desk, wiped)


def _unwiped(receipt: Receipt, desk: Desk) -> Path:
    """Is there while the key of an ended identity may still lie on its node."""
    return desk.authority.layout.receipts / f"{receipt.node}.unwiped"


def _wiped_later(node: Node | None, receipt: Receipt, desk: Desk) -> bool:
    """The node was out of reach when its identity ended; a node that still is stays so, and that is an error."""
    desk.put(receipt.node, _shown(receipt, [], desk))
    if desk.dry_run:
        return True
    desk.agree(receipt.node)
    _wipe(receipt, desk)
    _unwiped(receipt, desk).unlink(missing_ok=True)
    if node is not None:
        desk.store.save(node, why="the key of the identity that had ended was wiped on the node")
    return True


def _shown(receipt: Receipt, live: list[Record], desk: Desk) -> Shown:
    name = receipt.node
    lines = [
        f"  {name}: certificate {record.serial} is to be revoked, and its key wiped on the node"
        for record in live
    ] or [f"  {name}: no certificate of it counts any more; its key is to be wiped on the node"]
    serials = ", ".join(record.serial for record in live) or "none"
    left = f", {brief(live[-1].not_after - desk.clock())} left" if live else ""
    row = (f"certificate {serials}{left}", "not asked", "not asked", "revoke it, then wipe the key there")
    return Shown(tuple(lines), row)


def _wipe(receipt: Receipt, desk: Desk) -> str:
    place = scripts.Place(receipt.install_dir, receipt.owner, receipt.owner)
    with open_session(
        host=receipt.address.ip,
        port=receipt.ssh_port,
        user=receipt.user,
        host_keys=receipt.host_keys,
        key_file=desk.key_file,
        jump=desk.jump,
    ) as session:
        done = session.run(scripts.run(place), stdin=scripts.wipe(place), timeout_s=_TIMEOUT_S)
    if b"end=wipe" not in done.stdout:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no word"]
        raise OtherSide(
            f"{receipt.node} was not wiped",
            why=f"the node says: {last[0][:300]}",
            next_step=f"remove {receipt.install_dir}/generations there by hand",
        )
    return "revoked, and its key wiped on the node"


def _hand_back(node: Node | None, receipt: Receipt, desk: Desk, why: str) -> None:
    ended = replace(receipt, kind="decommissioned", made_at=desk.clock(), audit_head=desk.authority.head)
    text = sign_receipt(ended, key_file=desk.key_file)
    write_whole(desk.authority.layout.receipts / f"{receipt.node}.receipt", text.encode())
    if node is not None:
        moved = replace(node, state=State.AWAITING_RETIREMENT, receipt=text, reason=None)
        desk.store.save(moved, why=f"certificate {receipt.serial} {why}")


def _moved(node: Node | None, state: State, desk: Desk, why: str) -> Node | None:
    return None if node is None else desk.store.save(replace(node, state=state, reason=None), why=why)
