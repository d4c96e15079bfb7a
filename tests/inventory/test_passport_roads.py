"""Passports of less simple roads: two logins on one record, a record without reports, a rotation of the authority."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from ca import passport as ca_passport
from ca.authority import Authority
from inventory.passport import making, openssl
from inventory.passport.judging import Trust
from inventory.passport.statement import Certificate, Passport
from inventory.passport.withdrawn import Withdrawn
from inventory.store import Store
from tests.ca.material import CHEAP, issue, reopened
from tests.ca.test_rotating import activated, prepared
from tests.inventory.passports import NAME, UUID, World, world
from tests.inventory.test_shared_roles import BOTH, HOLDER, INFRA, made
from tests.postgres import Server
from tests.require import need_command


@pytest.fixture(scope="module")
def shared(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The road by two people's logins on one server."""
    known = postgres.psql("SELECT rolname FROM pg_roles", database="postgres").splitlines()
    for name in {INFRA, HOLDER, BOTH}.difference(known):
        postgres.create_login(name)
    record = made(postgres)
    infra, holder = (
        postgres.url(record.database, user=user, schema=record.schema) for user in (INFRA, HOLDER)
    )
    return world(tmp_path_factory.mktemp("shared"), urls=(infra, holder))


def test_the_database_vouches_in_the_passport_for_who_wrote_what(shared: World) -> None:
    passport = shared.passport()
    verdict = shared.judge(shared.signed(passport))

    assert verdict.ok, verdict.broken
    assert verdict.passport == passport
    assert [(move.role, move.db_user) for move in passport.events] == [
        *[("infra", INFRA)] * 3,
        *[("holder", HOLDER)] * 4,
    ]
    assert {receipt.db_user for receipt in passport.receipts} == {HOLDER}
    assert passport.verification is not None
    assert passport.verification.db_user == HOLDER
    assert passport.missing == ()


def test_a_file_vouches_for_nobody_and_tells_the_same_road(shared: World, tmp_path: Path) -> None:
    alone = world(tmp_path).passport()

    assert {(move.role, move.db_user) for move in alone.events} == {(None, None)}
    assert [(move.actor, move.why) for move in alone.events] == [
        (move.actor, move.why) for move in shared.passport().events
    ]


def test_where_the_reports_are_on_another_host_the_passport_says_that_it_has_none(
    tmp_path: Path,
) -> None:
    """The holder who verified has the reports in a record of their own; infra's passport lacks them, and says so."""
    there = world(tmp_path)
    here = Store.open(f"sqlite:///{tmp_path}/infra.db", clock=lambda: there.now)
    node = there.known().node
    here.add(node, why="imported")
    passport = making.gather(making.known(here, NAME), certificate=there.certificate, maker=there.maker)

    assert passport.verification is None
    told = {each.what: each.why for each in passport.missing}
    assert told["verification"] == (
        "the record has no report; it may lie in the record on the host where verify-node ran"
    )
    text = there.signed(passport)
    assert {each["what"] for each in there.judge(text).to_json()["missing"]} >= {"verification"}


@pytest.fixture(params=[False, True], ids=["issuing", "root"])
def rotated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[World, Authority]]:
    """A node with a certificate of the former authority, after a new issuing authority, or a new root, took over."""
    gpu = world(tmp_path)
    authority = Authority.open(gpu.ca_dir, now=gpu.now, kdf_floor=CHEAP)
    prepared(authority, new_root=request.param)
    if request.param:
        authority.distribute(now=gpu.now, actor="tester")
    activated(authority, forced=(NAME,) if request.param else ())
    yield gpu, authority
    authority.close()


def found_again(gpu: World) -> Certificate:
    """The node's certificate, as the rotated authority knows it."""
    found = ca_passport.certificate(
        NAME, vm_uuid=UUID, serial=gpu.receipt.serial, ca_dir=gpu.ca_dir, now=gpu.now
    )
    assert found is not None
    return found


def test_a_certificate_of_the_former_authority_keeps_its_own_chain_and_holds(
    rotated: tuple[World, Authority],
) -> None:
    gpu, authority = rotated
    certificate = found_again(gpu)
    passport = making.gather(gpu.known(), certificate=certificate, maker=gpu.maker)
    here = Trust(
        gpu.signers,
        gpu.ticket_signers,
        ca_passport.roots(gpu.ca_dir, now=gpu.now),
        ca_passport,
        Withdrawn(certificates=lambda of: ca_passport.standing(of.serial, ca_dir=gpu.ca_dir, now=gpu.now)),
    )

    assert certificate.chain == gpu.certificate.chain
    assert certificate.chain[1].encode() != authority.issuing_pem
    text, verdict = making.sign(passport, key_file=gpu.holder, trust=here)
    assert verdict.ok, verdict.broken
    assert any("certificate was not revoked by" in held for held in verdict.to_json()["holds"])
    assert gpu.judge(text, roots=certificate.chain[2]).ok


def test_once_the_former_root_is_retired_only_who_kept_it_still_believes(
    rotated: tuple[World, Authority],
) -> None:
    gpu, authority = rotated
    passport = making.gather(gpu.known(), certificate=found_again(gpu), maker=gpu.maker)
    newer = authority.layout.root.read_text()
    same_root = newer == passport_root(passport)

    text = gpu.signed(passport)
    assert gpu.judge(text, roots=newer).ok is same_root
    assert gpu.judge(text, roots=passport_root(passport)).ok


def passport_root(passport: Passport) -> str:
    """The root in a passport."""
    assert passport.certificate is not None
    return passport.certificate.chain[2]


def test_a_certificate_of_the_new_authority_has_the_new_chain(rotated: tuple[World, Authority]) -> None:
    gpu, authority = rotated
    issued = issue(reopened(authority, now=gpu.now), now=gpu.now, vm_uuid=UUID)
    found = ca_passport.certificate(NAME, vm_uuid=UUID, serial=issued.serial, ca_dir=gpu.ca_dir, now=gpu.now)

    assert found is not None
    assert found.chain[1] != gpu.certificate.chain[1]
    assert authority.issuing_pem.decode().startswith(found.chain[1])  # a cross certificate may follow
    assert ca_passport.faults(found.chain, roots=found.chain[2], at=gpu.now + timedelta(seconds=1)) == ()
    need_command("openssl")
    assert openssl.faults(found.chain, roots=found.chain[2], at=gpu.now + timedelta(seconds=1)) == ()
