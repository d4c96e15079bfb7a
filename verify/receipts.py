"""Where verify-node finds a node: the signed receipt, believed only for the security holder's own key."""

import tempfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from inventory.command import ca_folder
from inventory.errors import BadInput, Refused
from inventory.files import write_whole
from inventory.signature import public_key_line
from inventory.ticket import RECEIPT_NAMESPACE, Receipt, read_receipt, sign_receipt

_MAX_BYTES = 65536


def find(
    name: str, *, file: Path | None, ca_dir: Path | None, signers: Path | None, ssh_key: Path
) -> Receipt:
    """The believed receipt of the node called `name`.

    `file` is the receipt, by default `receipts/NAME.receipt` in the CA's directory. `signers` says whose receipts
    count (OpenSSH allowed signers); by default only the holder of `ssh_key` itself.

    Raises:
        BadInput: there is no such file, or no public key beside `ssh_key`.
        Refused: it is not believed, or is another node's.
    """
    place = file or ca_folder(ca_dir) / "receipts" / f"{name}.receipt"
    text = _read(place, name)
    if signers is not None:
        receipt, _ = read_receipt(text, signers=signers)
    else:
        with tempfile.TemporaryDirectory(prefix="muster-signers-") as folder:
            own = Path(folder) / "allowed_signers"
            own.write_text(
                f'holder namespaces="{RECEIPT_NAMESPACE}" {public_key_line(ssh_key)}\n', encoding="utf-8"
            )
            receipt, _ = read_receipt(text, signers=own)
    if receipt.node != name:
        raise Refused(
            f"{place} is not the receipt of {name}",
            why=f"it is for {receipt.node}",
            next_step=f"give the receipt that onboard-node made for {name}",
        )
    return receipt


def hand_back(receipt: Receipt, *, ssh_key: Path, ca_dir: Path | None, now: datetime) -> str:
    """The signed receipt that a node was verified, kept where that of its onboarding was; its text.

    Raises:
        BadInput: the key does not sign, or the receipt cannot be written.
    """
    text = sign_receipt(replace(receipt, kind="verified", made_at=now), key_file=ssh_key)
    place = ca_folder(ca_dir) / "receipts" / f"{receipt.node}.receipt"
    try:
        write_whole(place, text.encode())
    except OSError as error:
        raise BadInput(
            f"the receipt that {receipt.node} was verified was not kept",
            why=f"{place}: {error.strerror}",
            next_step=f"make {place.parent} writable, then run verify-node {receipt.node} again",
        ) from error
    return text


def _read(place: Path, name: str) -> str:
    try:
        with place.open("rb") as file:
            return file.read(_MAX_BYTES + 1).decode("utf-8", "replace")
    except OSError as error:
        raise BadInput(
            f"there is no receipt of {name}",
            why=f"{place}: {error.strerror}",
            next_step=f"run onboard-node {name}, or name its receipt with --receipt FILE",
        ) from error
