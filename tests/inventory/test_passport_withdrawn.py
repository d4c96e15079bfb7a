"""What counts no more: keys of signers, by each form of such a file; a certificate, by list and by ledger."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ca import passport as ca_passport
from ca.authority import Authority
from inventory.errors import BadInput, Refused
from inventory.passport import desk, making, openssl
from inventory.passport.identity import Absent
from inventory.passport.leaf import Listed
from inventory.passport.withdrawn import Withdrawn
from inventory.signature import is_revocation_file
from inventory.ticket import sign_receipt
from tests.ca.material import CHEAP, PASSPHRASE, new_authority
from tests.ca.test_rotating import activated, prepared
from tests.inventory.kit import keygen, signers_line
from tests.inventory.passports import BOTH, World, world
from tests.inventory.test_passport_cli import check
from tests.require import need_command

REVOKED_AFTER = timedelta(seconds=30)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> World:
    return world(tmp_path_factory.mktemp("withdrawn"))


def listed(file: Path, *keys: Path) -> Path:
    """Public keys, one a line, with a comment as people write it."""
    file.write_text("# lost in the train\n" + "".join(key.with_suffix(".pub").read_text() for key in keys))
    return file


def krl(file: Path, *keys: Path) -> Path:
    """What ssh-keygen -k makes of them."""
    publics = [str(key.with_suffix(".pub")) for key in keys]
    subprocess.run(["ssh-keygen", "-q", "-k", "-f", str(file), *publics], check=True, timeout=600)
    return file


@pytest.mark.parametrize("form", [listed, krl])
def test_a_passport_by_a_revoked_key_is_not_believed(
    gpu: World, tmp_path: Path, form: Callable[..., Path]
) -> None:
    other = keygen(tmp_path, "other")

    assert gpu.judge(gpu.signed(), withdrawn=Withdrawn(keys=form(tmp_path / "no", other))).ok
    with pytest.raises(Refused, match="the key of holder@lab is revoked") as refused:
        gpu.judge(gpu.signed(), withdrawn=Withdrawn(keys=form(tmp_path / "yes", other, gpu.holder)))
    assert str(tmp_path / "yes") in refused.value.why
    assert gpu.judge(gpu.signed(), withdrawn=Withdrawn(ticket_keys=tmp_path / "yes")).ok


@pytest.mark.parametrize("which", ["keys", "ticket_keys"])
@pytest.mark.parametrize("signers", [True, False])
def test_a_ticket_by_a_revoked_key_breaks_the_passport(
    gpu: World, tmp_path: Path, which: str, *, signers: bool
) -> None:
    file = krl(tmp_path / "krl", gpu.infra)
    gone = Withdrawn(keys=file) if which == "keys" else Withdrawn(ticket_keys=file)
    verdict = gpu.judge(gpu.signed(), withdrawn=gone, ticket_signers=gpu.ticket_signers if signers else None)

    (broken,) = verdict.broken
    assert broken.startswith("the ticket's key, ED25519 key SHA256:")
    assert broken.endswith(f"is revoked ({file})")


def test_a_former_receipt_by_a_revoked_key_is_a_note_and_the_newest_breaks_it(
    gpu: World, tmp_path: Path
) -> None:
    lost = keygen(tmp_path, "lost")
    gone = Withdrawn(keys=krl(tmp_path / "krl", lost))
    signers = tmp_path / "signers"
    signers.write_text(
        "".join(signers_line(key, name="holder@lab", options=BOTH) for key in (gpu.holder, lost))
    )
    known = gpu.known()

    def with_receipt(number: int) -> str:
        receipts = list(known.receipts)
        text = sign_receipt(gpu.receipt, key_file=lost)
        receipts[number] = replace(receipts[number], text=text)
        told = replace(known, receipts=tuple(receipts))
        return gpu.signed(making.gather(told, certificate=gpu.certificate, maker=gpu.maker))

    assert gpu.judge(with_receipt(1), signers=signers).ok
    former = gpu.judge(with_receipt(0), signers=signers, withdrawn=gone)
    assert former.ok, former.broken
    assert "receipt 1: its key" in "\n".join(former.to_json()["notes"])
    (broken,) = gpu.judge(with_receipt(1), signers=signers, withdrawn=gone).broken
    assert broken.startswith("receipt 2: its key")


def test_a_file_by_which_every_key_would_be_revoked_is_no_file_of_revoked_keys(
    gpu: World, tmp_path: Path
) -> None:
    good = krl(tmp_path / "krl", gpu.holder)
    (tmp_path / "cut").write_bytes(good.read_bytes()[:-9])
    (tmp_path / "words").write_text("all of them\n")
    (tmp_path / "one").write_text(gpu.holder.with_suffix(".pub").read_text() + "and others\n")
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    (tmp_path / "none").write_text("# nobody yet\n\n")

    for name in ("krl", "none"):
        assert is_revocation_file(tmp_path / name), name
    assert is_revocation_file(listed(tmp_path / "list", gpu.holder, gpu.infra))
    for name in ("cut", "words", "one", "bytes", "absent"):
        assert not is_revocation_file(tmp_path / name), name
        with (
            pytest.raises(BadInput, match="is no list of revoked keys"),
            desk.trust(desk.Given(gpu.signers, revoked=tmp_path / name), now=gpu.now),
        ):
            pass


@pytest.fixture
def held(tmp_path: Path) -> tuple[World, Authority]:
    """A world whose authority can be changed."""
    made = world(tmp_path)
    return made, Authority.open(made.ca_dir, now=made.now, kdf_floor=CHEAP)


def lists(authority: Authority, now: datetime) -> str:
    """The lists that are handed out at a time."""
    authority.sign_lists(signer=authority.unlock(PASSPHRASE), now=now, actor="tester")
    return authority.due_list(now)[1].decode()


def by(judge: object, text: str) -> Withdrawn:
    assert judge in {ca_passport, openssl}
    found = ca_passport.listed if judge is ca_passport else openssl.listed
    return Withdrawn(certificates=lambda of: found(of.chain, text))


def test_a_list_tells_whether_the_certificate_was_revoked_and_when(
    held: tuple[World, Authority],
) -> None:
    need_command("openssl")
    gpu, authority = held
    text, chain = gpu.signed(), gpu.certificate.chain
    clean, at = lists(authority, gpu.now), gpu.now + REVOKED_AFTER
    prepared(authority)
    activated(authority)
    authority.revoke(gpu.receipt.serial, reason="key-compromise", now=at, actor="tester")
    after = lists(authority, at)  # of either issuing authority

    assert after.count("BEGIN X509 CRL") == 2
    for judge in (ca_passport, openssl):
        told = gpu.judge(text, withdrawn=by(judge, clean)).to_json()
        assert any("certificate was not revoked by" in held for held in told["holds"])
        assert any("valid now, until 20" in held and "asked" not in held for held in told["holds"])
        later = gpu.judge(text, withdrawn=by(judge, clean + after))
        assert later.ok
        assert later.to_json()["notes"] == [f"the certificate was revoked at {at:%Y-%m-%dT%H:%M:%SZ}"]
        assert not any("valid now" in held for held in later.to_json()["holds"])
    assert openssl.listed(chain, after) == ca_passport.listed(chain, after)
    assert openssl.listed(chain, clean) == ca_passport.listed(chain, clean)


def test_a_passport_that_says_in_service_after_a_revocation_lies(
    held: tuple[World, Authority],
) -> None:
    gpu, authority = held
    before = gpu.now - timedelta(minutes=10)
    authority.revoke(gpu.receipt.serial, reason="key-compromise", now=before, actor="tester")
    text = lists(authority, gpu.now)
    words = f"the certificate was revoked at {before:%Y-%m-%dT%H:%M:%SZ}"
    ledger = Withdrawn(
        certificates=lambda of: ca_passport.standing(of.serial, ca_dir=gpu.ca_dir, now=gpu.now)
    )

    for withdrawn in (by(ca_passport, text), by(openssl, text), ledger):
        assert gpu.judge(gpu.signed(), withdrawn=withdrawn).broken == (words,)


def test_a_list_that_says_nothing_of_it_leaves_it_unchecked(
    held: tuple[World, Authority], tmp_path: Path
) -> None:
    gpu, authority = held
    (tmp_path / "other").mkdir()
    other = lists(new_authority(tmp_path / "other"), gpu.now)
    own = lists(authority, gpu.now)
    forged = own.replace(own[200:204], "AAAA" if own[200:204] != "AAAA" else "BBBB")

    for judge in (ca_passport, openssl):
        for text, words in (
            (other, "the file has no list that the certificate's issuing authority signed"),
            ("", "the file has no list"),
            ("junk", ""),
            (forged, ""),
        ):
            verdict = gpu.judge(gpu.signed(), withdrawn=by(judge, text))
            assert verdict.ok
            told = "\n".join(verdict.to_json()["not_checked"])
            assert f"whether the certificate was revoked: {words}" in told
    verdict = gpu.judge(gpu.signed(), withdrawn=Withdrawn(certificates=unknown))
    assert "revoked: it is not known here" in "\n".join(verdict.to_json()["not_checked"])


def unknown(_: object) -> Listed:
    raise ValueError("it is not known here")


@pytest.mark.parametrize(
    ("made", "due", "words"),
    [
        (timedelta(days=-40), timedelta(days=-10), "the list holds from"),
        (timedelta(days=10), timedelta(days=40), "the list holds from"),
        (timedelta(days=60), timedelta(days=90), "it ended before the list"),
    ],
)
def test_a_list_of_another_time_leaves_it_unchecked(
    gpu: World, made: timedelta, due: timedelta, words: str
) -> None:
    told = Listed(gpu.now + made, gpu.now + due, None)
    verdict = gpu.judge(gpu.signed(), withdrawn=Withdrawn(certificates=lambda _: told))

    assert verdict.ok
    assert words in "\n".join(verdict.to_json()["not_checked"])


@pytest.fixture(scope="module")
def today(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Made by this host's clock, for the command has no other."""
    return world(tmp_path_factory.mktemp("today"), now=datetime.now(UTC).replace(microsecond=0))


def test_the_command_asks_the_files_that_are_named_and_the_authority_of_its_host(
    today: World, tmp_path: Path
) -> None:
    made = tmp_path / "passport.json"
    made.write_text(today.signed())
    krl(tmp_path / "krl", today.holder)
    crl = tmp_path / "crl.pem"
    with_policy = ["--ca-dir", today.ca_dir]
    authority = Authority.open(today.ca_dir, now=today.now, kdf_floor=CHEAP)
    crl.write_text(lists(authority, today.now))

    done = check(today, made, "--revoked", tmp_path / "krl")
    assert (done.returncode, done.stdout) == (3, "")
    assert f"the key of holder@lab is revoked ({tmp_path / 'krl'})" in done.stderr
    for more in (["--ca", today.root, "--crl", crl], with_policy):
        done = check(today, made, *more)
        assert done.returncode == 0, done.stderr
        assert "holds\tthe certificate was not revoked by" in done.stdout
    authority.revoke(today.receipt.serial, reason="superseded", now=datetime.now(UTC), actor="tester")
    authority.close()
    told = json.loads(check(today, made, *with_policy, "--json").stdout)
    assert any("the certificate was revoked at" in note for note in told["notes"])
    assert check(today, made, "--crl", tmp_path / "none").returncode == 2

    policy = today.ca_dir / "policy.yaml"
    policy.write_text(
        json.dumps({**json.loads(policy.read_text()), "ticket_revoked_keys": "revoked_tickets"})
    )
    listed(today.ca_dir / "revoked_tickets", today.infra)
    done = check(today, made, *with_policy)
    assert done.returncode == 3
    assert "BROKEN\tthe ticket's key, ED25519 key SHA256:" in done.stdout


def test_where_nobody_can_read_certificates_a_list_is_not_asked(today: World) -> None:
    verdict = today.judge(today.signed(), judge=Absent("cryptography is not installed"))

    assert not any("revoked" in text for text in verdict.to_json()["holds"])
