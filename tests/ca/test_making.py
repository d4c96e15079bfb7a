"""Making and opening an authority: whole or not at all, and with care."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from ca.authority import Authority
from ca.keys import generate
from ca.keystore import check_private, read_key, write_key
from ca.kinds import KeyType
from ca.layout import ROOT_KEY
from ca.making import Plan, Secrets, make_authority
from ca.policy import Policy
from inventory.document import load
from inventory.errors import BadInput, Damaged, Refused
from tests.ca.material import (
    CHEAP,
    NOW,
    PASSPHRASE,
    issue,
    kinds,
    new_authority,
    policy_text,
    reopened,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "policy.yaml"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


def test_an_authority_is_private_and_opens_again(authority: Authority) -> None:
    again = reopened(authority)

    assert again.fingerprint_sha256 == authority.fingerprint_sha256
    assert (again.entries, again.head) == (authority.entries, authority.head)
    assert kinds(again) == ["init"]
    folder = authority.layout.folder
    private = [folder, folder / "issued", folder / "receipts", folder / "root-take-away"]
    assert [path.stat().st_mode & 0o777 for path in private] == [0o700] * 4
    check_private(authority.layout.issuing_key)
    check_private(authority.layout.take_away / ROOT_KEY)
    assert sorted(path.name for path in folder.parent.iterdir() if path.name.startswith(".ca")) == []


def test_the_root_key_lies_apart_under_its_own_passphrase(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(policy_text())
    away = tmp_path / "usb" / "keys"

    authority = Authority.create(
        tmp_path / "ca",
        policy_file=tmp_path / "policy.yaml",
        passphrase=PASSPHRASE,
        root_passphrase=b"another",
        now=NOW,
        kdf=CHEAP,
        root_out=away,
        organisation="Lab",
        actor="holder@host",
    )

    signer = read_key(away / ROOT_KEY, certificate=authority.root, passphrase=b"another", floor=CHEAP)
    assert signer.public_key == authority.root.public_key()
    assert not authority.layout.take_away.exists()
    assert authority.root_key == away / ROOT_KEY
    assert "O=Lab" in authority.issuing.subject.rfc4514_string()
    assert any("still on this host" in text for text in authority.warnings(NOW))
    shutil.rmtree(away)
    assert authority.warnings(NOW) == ()


@pytest.mark.parametrize("place", ["ca", "usb/root-key.json", "usb/root.pem"])
def test_nothing_of_an_authority_is_ever_overwritten(tmp_path: Path, place: str) -> None:
    (tmp_path / "policy.yaml").write_text(policy_text())
    (tmp_path / place).mkdir(parents=True)

    with pytest.raises(Refused, match="is ever overwritten"):
        Authority.create(
            tmp_path / "ca",
            policy_file=tmp_path / "policy.yaml",
            passphrase=PASSPHRASE,
            now=NOW,
            kdf=CHEAP,
            root_out=tmp_path / "usb",
        )


def test_an_authority_that_cannot_be_finished_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(policy_text())
    (tmp_path / "usb").write_text("a file where a folder should be")

    with pytest.raises(Refused, match="no authority was made"):
        Authority.create(
            tmp_path / "ca",
            policy_file=tmp_path / "policy.yaml",
            passphrase=PASSPHRASE,
            now=NOW,
            kdf=CHEAP,
            root_out=tmp_path / "usb",
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.yaml", "usb"]


def test_of_two_that_make_an_authority_at_once_the_later_is_refused(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(policy_text())
    numbers = iter([1 << 100, 1 << 101])

    def meanwhile() -> int:
        (tmp_path / "ca").mkdir(exist_ok=True)
        (tmp_path / "ca" / "audit.jsonl").write_text("of the other run")
        return next(numbers)

    with pytest.raises(Refused, match="no authority was made"):
        make_authority(
            tmp_path / "ca",
            Plan(policy_file=tmp_path / "policy.yaml", organisation="Lab", root_out=tmp_path / "usb"),
            passphrases=Secrets(PASSPHRASE, PASSPHRASE, CHEAP),
            actor="tester",
            now=NOW,
            serials=meanwhile,
        )
    assert (tmp_path / "ca" / "audit.jsonl").read_text() == "of the other run"
    assert list((tmp_path / "usb").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca", "policy.yaml", "usb"]


@pytest.mark.parametrize("organisation", ["", "x" * 65, "ä" * 33, "a\nb"])
def test_an_organisation_must_fit_into_a_name(tmp_path: Path, organisation: str) -> None:
    (tmp_path / "policy.yaml").write_text(policy_text())

    with pytest.raises(BadInput, match="organisation"):
        Authority.create(
            tmp_path / "ca",
            policy_file=tmp_path / "policy.yaml",
            passphrase=PASSPHRASE,
            now=NOW,
            organisation=organisation,
        )


def test_the_policy_comes_along_with_its_comments_and_its_files(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(EXAMPLE, source)
    (source / "allowed_signers").write_text("infra@lab.example ssh-ed25519 AAAA\n")
    (source / "revoked_keys").write_text("ssh-ed25519 BBBB\n")
    (source / "id_holder").write_text("not copied")

    Authority.create(
        tmp_path / "ca", policy_file=source / "policy.yaml", passphrase=PASSPHRASE, now=NOW, kdf=CHEAP
    )

    text = (tmp_path / "ca" / "policy.yaml").read_text()
    found = load(tmp_path / "ca" / "policy.yaml", Policy)
    assert found.ticket_signers == tmp_path / "ca" / "allowed_signers"
    assert found.ticket_signers.read_text() == "infra@lab.example ssh-ed25519 AAAA\n"
    assert found.ticket_revoked_keys == tmp_path / "ca" / "revoked_keys"
    assert found.ticket_revoked_keys.read_text() == "ssh-ed25519 BBBB\n"
    assert found.ssh is not None
    assert found.ssh.key_file == source / "id_holder"
    assert not (tmp_path / "ca" / "id_holder").exists()
    assert "# OpenSSH format; without it there is no onboarding" in text
    moved = {key: getattr(found, key) for key in ("ticket_signers", "ticket_revoked_keys", "ssh")}
    same = load(EXAMPLE, Policy).model_copy(update=moved)
    assert found == same


@pytest.mark.parametrize(
    "value",
    [
        "'keys/allowed signers'",
        '"policy.yaml"',
        "&anchor policy.yaml",
        "!!str policy.yaml",
        ">-\n  policy.yaml",
    ],
)
def test_a_path_in_any_form_of_yaml_still_points_to_the_copy(tmp_path: Path, value: str) -> None:
    source = tmp_path / "source"
    (source / "keys").mkdir(parents=True)
    (source / "keys" / "allowed signers").write_text("signers")
    (source / "policy.yaml").write_text(
        f"trust_domain: lab\nnames: ['{{node}}.lab']\nticket_signers: {value}\nssh:\n  key_file: 'a key'  # mine\n"
    )

    authority = Authority.create(
        tmp_path / "ca", policy_file=source / "policy.yaml", passphrase=PASSPHRASE, now=NOW, kdf=CHEAP
    )

    assert authority.policy.ticket_signers is not None
    assert authority.policy.ticket_signers.parent == tmp_path / "ca"
    assert authority.policy.ticket_signers.is_file()
    assert authority.policy.ticket_signers.name != "policy.yaml"
    assert authority.policy.ssh is not None
    assert authority.policy.ssh.key_file == source / "a key"


def test_a_policy_whose_signers_are_missing_makes_no_authority(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(policy_text(ticket_signers="nobody"))

    with pytest.raises(BadInput, match="names it as ticket_signers"):
        Authority.create(
            tmp_path / "ca", policy_file=tmp_path / "policy.yaml", passphrase=PASSPHRASE, now=NOW
        )
    assert not (tmp_path / "ca").exists()


def test_a_folder_without_an_authority_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        Authority.open(tmp_path / "none", now=NOW)
    assert "node-ca init" in caught.value.next_step


def test_a_folder_that_others_may_change_is_not_opened(authority: Authority) -> None:
    authority.layout.folder.chmod(0o770)

    with pytest.raises(Refused) as caught:
        reopened(authority)
    assert caught.value.next_step == f"chmod go-w {authority.layout.folder}"


def test_a_weakly_protected_authority_is_opened_but_not_unlocked(authority: Authority) -> None:
    strict = Authority.open(authority.layout.folder, now=NOW)

    with pytest.raises(Refused, match="protected too weakly"):
        strict.unlock(PASSPHRASE)


@pytest.mark.parametrize("name", ["root.pem", "issuing.pem", "issuing-key.json"])
def test_a_part_of_another_authority_is_noticed(authority: Authority, tmp_path: Path, name: str) -> None:
    (tmp_path / "other").mkdir()
    other = new_authority(tmp_path / "other")
    shutil.copy(other.layout.folder / name, authority.layout.folder / name)

    with pytest.raises(Damaged):
        reopened(authority)


@pytest.mark.parametrize("name", ["root.pem", "issuing.pem", "issuing-key.json", "audit.jsonl"])
def test_a_part_that_was_overwritten_is_noticed(authority: Authority, name: str) -> None:
    (authority.layout.folder / name).write_bytes(b"")

    with pytest.raises(Damaged):
        reopened(authority)


def test_a_clock_before_the_authoritys_birth_is_refused(authority: Authority) -> None:
    with pytest.raises(Refused, match="clock"):
        reopened(authority, now=NOW - timedelta(days=1))


def test_the_end_of_the_authority_is_told_long_before(authority: Authority) -> None:
    shutil.rmtree(authority.layout.take_away)
    end = authority.issuing.not_valid_after_utc

    assert authority.warnings(end - timedelta(days=250)) == ()
    assert "expires in 20 days" in authority.warnings(end - timedelta(days=20, hours=1))[0]
    assert "has expired" in authority.warnings(end)[0]


def test_missing_ticket_signers_are_told(tmp_path: Path) -> None:
    (tmp_path / "signers").write_text("infra ssh-ed25519 AAAA")
    authority = new_authority(tmp_path, text=policy_text(ticket_signers="signers"))
    (tmp_path / "ca" / "signers").unlink()

    assert any("which does not exist" in text for text in reopened(authority).warnings(NOW))


def test_a_policy_that_became_wider_is_told_and_grants_no_more(authority: Authority) -> None:
    authority.layout.policy.write_text(policy_text(names=["{node}.nodes.lab.example", "{node}.org"]))
    wide = reopened(authority)

    assert any("wider than this authority" in text for text in wide.warnings(NOW))
    with pytest.raises(Refused, match="outside the authority's own domains"):
        issue(wide)
    assert kinds(wide) == ["init"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"addresses": ["10.0.0.0/8"]}, "10.0.0.0/8 lies outside the authority's own address ranges"),
        ({"addresses": ["10.0.0.0/15"]}, "10.0.0.0/15 lies outside"),
        ({"addresses": ["fd00::/64"]}, "fd00::/64 lies outside"),
        ({"names": ["{node}.lab.example"]}, "n.lab.example lies outside the authority's own domains"),
        ({"names": ["{node}.xnodes.lab.example"]}, "n.xnodes.lab.example lies outside"),
    ],
)
def test_each_way_in_which_a_policy_is_too_wide_is_named_when_it_is_opened_and_refused_when_it_is_used(
    authority: Authority, changes: dict[str, list[str]], said: str
) -> None:
    authority.layout.policy.write_text(policy_text(**changes))

    wide = reopened(authority)

    assert any(f"policy.yaml is wider than this authority: {said}" in text for text in wide.warnings(NOW))
    beyond = {"10.0.0.0/8": "10.9.0.1", "10.0.0.0/15": "10.1.0.1", "fd00::/64": "fd00::1"}
    with pytest.raises(Refused) as caught:
        issue(wide, address=beyond.get(changes.get("addresses", [""])[0]))
    assert "the policy became wider than the authority" in caught.value.next_step
    assert kinds(wide) == ["init"]


def test_a_narrower_policy_is_no_cause_for_a_word(authority: Authority) -> None:
    shutil.rmtree(authority.layout.take_away)
    authority.layout.policy.write_text(
        policy_text(
            addresses=["10.0.7.0/24"], names=["{node}.a.nodes.lab.example", "{node}.nodes.lab.example"]
        )
    )

    assert [text for text in reopened(authority).warnings(NOW) if "wider" in text] == []


def test_a_key_that_does_not_match_its_certificate_is_refused_with_its_mend(authority: Authority) -> None:
    other = generate(KeyType.P256)
    layout = authority.layout
    layout.issuing_key.unlink()
    write_key(layout.issuing_key, other, certificate=authority.issuing, passphrase=PASSPHRASE, kdf=CHEAP)

    with pytest.raises(Damaged, match="does not match the certificate") as caught:
        reopened(authority).unlock(PASSPHRASE)
    assert "restore" in caught.value.next_step


def test_a_run_that_opens_its_authority_again_keeps_the_policy_that_it_began_with(tmp_path: Path) -> None:
    begun = new_authority(tmp_path)
    begun.layout.policy.write_text("names: [")

    again = Authority.open(begun.layout.folder, now=NOW, kdf_floor=CHEAP, policy=begun.policy)

    assert again.policy == begun.policy
    with pytest.raises(BadInput):
        Authority.open(begun.layout.folder, now=NOW, kdf_floor=CHEAP)
