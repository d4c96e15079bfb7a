"""The end of a node's identity: revoked first, then wiped on the node, then told to infra by a signed receipt."""

from dataclasses import replace

from inventory.errors import MusterError, OtherSide, Refused
from inventory.files import lock, write_whole
from inventory.model import Node, State
from inventory.reach import open_session
from inventory.ticket import Receipt, sign_receipt
from onboard import scripts
from onboard.service import Desk
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
    that its key could not be wiped is then a warning.

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
        return False
    if node is not None and node.state not in _MAY_END:
        raise Refused(
            f"{name} was not decommissioned",
            why=f"it is {node.state}",
            next_step=f"node-inventory show {name}",
        )
    for record in live:
        desk.console.say(
            f"{name}: certificate {record.serial} is to be revoked, and its key wiped on the node"
        )
    if desk.dry_run:
        return True
    desk.agree(name)
    with lock(folder / f".onboarding-{name}.lock", timeout_s=1.0):
        node = _moved(node, State.DECOMMISSIONING, desk, "its identity is to end")
        for record in live:
            desk.authority.revoke(
                record.serial, reason="cessation-of-operation", now=desk.clock(), actor=desk.actor
            )
        try:
            wiped = _wipe(receipt, desk)
        except MusterError as error:
            wiped = f"revoked; its key could not be wiped: {error.why}"
            desk.console.warn(f"{name}: {wiped}")
        _hand_back(node, receipt, desk, wiped)
    return True


def _wipe(receipt: Receipt, desk: Desk) -> str:
    place = scripts.Place(receipt.install_dir, receipt.owner, receipt.owner)
    with open_session(
        host=receipt.address.ip,
        port=receipt.ssh_port,
        user=receipt.user,
        host_keys=receipt.host_keys,
        key_file=desk.key_file,
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
    ended = replace(receipt, kind="decommissioned", made_at=desk.clock())
    text = sign_receipt(ended, key_file=desk.key_file)
    write_whole(desk.authority.layout.receipts / f"{receipt.node}.receipt", text.encode())
    if node is not None:
        moved = replace(node, state=State.AWAITING_RETIREMENT, receipt=text, reason=None)
        desk.store.save(moved, why=f"certificate {receipt.serial} {why}")


def _moved(node: Node | None, state: State, desk: Desk, why: str) -> Node | None:
    return None if node is None else desk.store.save(replace(node, state=state, reason=None), why=why)
