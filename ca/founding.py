"""Carrying out a ceremony: the key in a file or a token, the root made here or asked for elsewhere."""

from datetime import datetime
from pathlib import Path

from ca.ceremony import Ceremony
from ca.custody import InFile, NewKey, OnToken
from ca.external import begin, refuse_existing
from ca.keys import kind_of
from ca.keystore import DEFAULT_KDF, Kdf
from ca.kinds import KeyType
from ca.making import Secrets, look_before, make_authority
from ca.policy import Policy
from inventory.errors import Refused


def look(ca_dir: Path, ceremony: Ceremony) -> Policy:
    """Everything that can be refused before a secret is asked for; the checked policy comes back.

    Raises:
        Refused: something exists that would have to be overwritten.
        BadInput: the policy has faults or contradicts the trust domain, or the organisation is no name.
    """
    policy = look_before(ca_dir, ceremony.plan)
    if ceremony.root.request_out is not None:
        refuse_existing(ceremony.root.request_out)
    return policy


def found(
    ca_dir: Path,
    ceremony: Ceremony,
    *,
    secret: bytes,
    root_secret: bytes,
    actor: str,
    now: datetime,
    kdf: Kdf = DEFAULT_KDF,
) -> None:
    """Make the authority, or the folder that waits for its certificate.

    `secret` is the passphrase of the issuing key, or its token's PIN; `root_secret` that of the root's key,
    of no use where the root is kept elsewhere.

    Raises:
        Refused, BadInput: as `look`, or the token refuses, or the disk did not take it.
    """
    look(ca_dir, ceremony)
    new_key = _new_key(ceremony, secret, kdf)
    if ceremony.root.request_out is not None:
        begin(ca_dir, ceremony.plan, new_key=new_key, request_out=ceremony.root.request_out)
        return
    make_authority(
        ca_dir,
        ceremony.plan,
        passphrases=Secrets(secret, root_secret, kdf),
        new_key=new_key,
        actor=actor,
        now=now,
    )


def _new_key(ceremony: Ceremony, secret: bytes, kdf: Kdf) -> NewKey:
    wanted = ceremony.issuing
    if wanted.token is None:
        return InFile.fresh(wanted.key, passphrase=secret, kdf=kdf)
    from ca.token import open_token

    token = open_token(wanted.token, pin=secret)
    # A key that lies there already is taken: the token's own ceremony, or a run that stopped, made it.
    signer = token.signer() if token.has_key() else token.make_key(wanted.key)
    kind = kind_of(signer.public_key) or KeyType.P256
    if kind is not wanted.key:
        raise Refused(
            "no authority was made",
            why=f"the key {signer.uri.object!r} in the token is on {kind.spelling}, not {wanted.key.spelling}",
            next_step=f"pass --key-type {kind}, or name another object in the URI",
        )
    return OnToken(signer, wanted.token)
