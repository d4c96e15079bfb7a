"""Nodes in their later life, for tests: onboarded already, with revocation lists, or at the end of their time."""

from dataclasses import replace
from datetime import UTC, datetime

from inventory.model import Node, State
from inventory.ticket import Receipt
from onboard.desk import Desk
from onboard.service import onboard
from tests.onboard.kit import PASSPHRASE, Bench
from verify import receipts
from verify.report import NodeReport
from verify.service import Wish, verify_node


def onboarded(holder: Bench, **other: object) -> Node:
    """gpu-01 with its first identity, in service."""
    onboard(holder.signed(**other), holder.desk())
    store = holder.store()
    node = store.get("gpu-01")
    assert node is not None
    for state in (State.VERIFYING, State.IN_SERVICE):
        node = store.save(replace(node, state=state), why="a test says so")
    return node


def with_lists(holder: Bench, **more: int) -> int:
    """Sign revocation lists; the number of the one that is due."""
    authority = holder.authority()
    now = datetime.now(UTC)
    signed = authority.sign_lists(signer=authority.unlock(PASSPHRASE), now=now, actor="holder", **more)
    return signed.due(now).number


def policy_with(holder: Bench, **install: str) -> None:
    """Have further lines in the policy's `install`, quoted for YAML."""
    lines = (holder.folder / "ca" / "policy.yaml").read_text().splitlines()
    plain = next(line for line in lines if line.startswith("install:")).partition(", check_command")[0]
    plain = plain.partition(", reload_command")[0].removeprefix("install: ").removesuffix("}")
    more = "".join(f", {key}: '{text}'" for key, text in install.items())
    holder.set_policy(install=f"{plain}{more}}}")


def verifying(desk: Desk, *, ranks: int = 2, port: int | None = None) -> Desk:
    """The same desk, where renewing ends with a real verification; `port` is where it looks for the node."""

    def sign(receipt: Receipt) -> str:
        folder = desk.authority.layout.folder
        return receipts.hand_back(receipt, ssh_key=desk.key_file, ca_dir=folder, now=desk.clock())

    def verify(receipt: Receipt) -> NodeReport:
        return verify_node(
            receipt if port is None else replace(receipt, ssh_port=port),
            ssh_key=desk.key_file,
            store=desk.store,
            console=desk.console,
            wish=Wish(ranks=ranks),
            sign=sign,
        )

    return replace(desk, verify=verify)
