"""What passes over the wire, how often a node is called, and what a revocation list does to an enrolment."""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from inventory.agent_config import AgentConfig
from inventory.document import load
from inventory.errors import Refused
from onboard import enroll
from onboard.service import onboard
from tests.onboard.kit import PASSPHRASE, Bench, bench, openssl
from tests.onboard.node import Node, node, tools


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with node(tmp_path_factory.mktemp("wire") / "node") as running:
        yield running


@pytest.fixture
def holder(tmp_path: Path, there: Node) -> Bench:
    there.forget()
    return bench(tmp_path, there.server)


def test_no_byte_of_the_key_passes_over_the_wire(holder: Bench, there: Node) -> None:
    onboard(holder.signed(), holder.desk())
    pem = holder.current("key.pem").read_bytes()
    heard = there.heard
    key = load_pem_private_key(pem, None)
    assert isinstance(key, EllipticCurvePrivateKey)
    scalar = key.private_numbers().private_value.to_bytes(32, "big")
    forms = [*pem.splitlines()[1:-1], scalar, scalar.hex().encode(), scalar.hex().upper().encode()]
    for kind in (PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL):
        der = key.private_bytes(Encoding.DER, kind, NoEncryption())
        forms += [der, base64.b64encode(der)]
    # Base64 looks different at each of three offsets; what is cut off is what the neighbours have a part in.
    forms += [base64.b64encode(b"\0" * offset + scalar)[4:-4] for offset in range(3)]

    assert b"BEGIN CERTIFICATE REQUEST" in heard
    assert b"put chain.pem '" + holder.current("chain.pem").read_bytes() in heard
    assert [form for form in forms if form in heard] == []


def test_an_enrolment_is_one_connection_and_three_commands(holder: Bench, there: Node) -> None:
    log = there.folder.parent / "sshd" / "log"
    before = log.read_bytes().count(b"Accepted publickey")
    onboard(holder.signed(), holder.desk())

    assert there.commands == 3
    assert log.read_bytes().count(b"Accepted publickey") == before + 1


def test_the_due_revocation_list_comes_with_the_identity_and_is_on_record(holder: Bench) -> None:
    authority, now = holder.authority(), datetime.now(UTC)
    onboard(holder.signed(id="aa01"), holder.desk())
    without = load(holder.current("agent.yaml"), AgentConfig)
    authority.sign_lists(signer=authority.unlock(PASSPHRASE), now=now, actor="holder")
    onboard(holder.signed(id="aa02"), holder.desk())
    chain, bundle, crl = (holder.current(name) for name in ("chain.pem", "bundle.pem", "crl.pem"))
    after = holder.authority()

    assert (without.identity.crl_file, after.holding_older_crl(now)) == (None, ())
    assert load(holder.current("agent.yaml"), AgentConfig).identity.crl_file == crl
    assert crl.read_bytes() == after.due_list(now)[1]
    arguments = ("-crl_check", "-CRLfile", crl, "-CAfile", bundle, "-untrusted", chain, chain)
    assert "OK" in openssl("verify", "-x509_strict", *arguments)


def test_the_node_itself_judges_by_the_list(holder: Bench, there: Node, tmp_path: Path) -> None:
    authority, now = holder.authority(), datetime.now(UTC)
    holder.set_policy(lifetime_days="90")
    authority.sign_lists(signer=authority.unlock(PASSPHRASE), now=now, actor="holder", days=7)
    later = int((now + timedelta(days=30)).timestamp())
    folder = tools(tmp_path / "bin", "openssl")
    (folder / "openssl").write_text(
        f'#!/bin/sh\n[ "$1" != verify ] || {{ shift; set -- verify -attime {later} "$@"; }}\n'
        'exec /usr/bin/openssl "$@"\n'
    )
    (folder / "openssl").chmod(0o755)
    there.path(folder)

    with pytest.raises(enroll.RolledBack, match="CRL has expired"):
        onboard(holder.signed(), holder.desk())


def test_a_list_that_has_ended_lets_nobody_in(holder: Bench) -> None:
    authority, now = holder.authority(), datetime.now(UTC)
    assert enroll.list_due(authority, now) is None
    authority.sign_lists(signer=authority.unlock(PASSPHRASE), now=now, actor="holder", days=7)

    assert enroll.list_due(authority, now) is not None
    with pytest.raises(Refused, match="not handed out"):
        enroll.list_due(authority, now + timedelta(days=8))
