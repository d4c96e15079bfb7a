"""An issuing key in a token (SoftHSM2): made there, never seen, and its certificates count."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from ca.authority import Authority
from ca.ceremony import Ceremony
from ca.custody import OnToken
from ca.external import complete
from ca.founding import found
from ca.kinds import KeyType
from inventory.errors import BadInput, Damaged, OtherSide, Refused
from tests.ca import outside_root
from tests.ca.judges import openssl_verify
from tests.ca.material import CHEAP, NOW, PASSPHRASE, issue, kinds
from tests.require import need, need_command

MODULES = [Path("/usr/lib/softhsm/libsofthsm2.so"), *Path("/usr/lib").glob("*/softhsm/libsofthsm2.so")]
PIN = b"123456"
TOKEN = "lab ca"  # noqa: S105 - its label


@dataclass(frozen=True, slots=True)
class Hsm:
    """A soft token of a test's own."""

    module: Path

    def uri(self, *, token: str = TOKEN, object: str = "issuing", module: str = "") -> str:
        return f"pkcs11:token={token.replace(' ', '%20')};object={object}?module-path={module or self.module}"


@pytest.fixture(scope="module")
def hsm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hsm]:
    need_command("softhsm2-util")
    modules = [module for module in MODULES if module.exists()]
    need(modules, "libsofthsm2.so", "apt-get install softhsm2")
    need(find_spec("pkcs11"), "python-pkcs11", "pip install 'passmuster[hsm]'")
    folder = tmp_path_factory.mktemp("hsm")
    (folder / "tokens").mkdir()
    conf = folder / "softhsm2.conf"
    conf.write_text(
        f"directories.tokendir = {folder / 'tokens'}\nobjectstore.backend = file\nlog.level = ERROR\n"
    )
    former = os.environ.get("SOFTHSM2_CONF")
    os.environ["SOFTHSM2_CONF"] = str(conf)  # the module reads it once, when it is loaded
    made = ["softhsm2-util", "--init-token", "--free", "--label", TOKEN]
    subprocess.run(
        [*made, "--pin", PIN.decode(), "--so-pin", "87654321"], check=True, capture_output=True, timeout=600
    )
    yield Hsm(modules[0])
    if former is None:
        del os.environ["SOFTHSM2_CONF"]
    else:
        os.environ["SOFTHSM2_CONF"] = former


def founded(folder: Path, uri: str, *, kind: KeyType = KeyType.P256, pin: bytes = PIN) -> Authority:
    wanted = Ceremony.model_validate({"trust_domain": "lab.example", "issuing": {"token": uri, "key": kind}})
    found(folder / "ca", wanted, secret=pin, root_secret=PASSPHRASE, actor="tester", now=NOW, kdf=CHEAP)
    return Authority.open(folder / "ca", now=NOW, kdf_floor=CHEAP)


@pytest.fixture
def authority(hsm: Hsm, tmp_path: Path) -> Authority:
    return founded(tmp_path, hsm.uri())


@pytest.mark.parametrize("kind", [KeyType.P256, KeyType.P384])
def test_a_certificate_that_a_token_signed_counts_for_openssl(
    hsm: Hsm, tmp_path: Path, kind: KeyType
) -> None:
    authority = founded(tmp_path, hsm.uri(object=f"of-{kind}"), kind=kind)

    issued = issue(authority, signer=authority.unlock(PIN))

    leaf = tmp_path / "leaf.pem"
    leaf.write_bytes(issued.certificate_pem)
    assert openssl_verify(authority.layout.folder, leaf, at=NOW) == ""
    assert kinds(authority) == ["init", "intent", "issued"]
    assert authority.issuing.signature_hash_algorithm is not None


def test_neither_the_key_nor_its_pin_is_in_the_folder(authority: Authority) -> None:
    layout = authority.layout

    assert not layout.issuing_key.exists()
    assert stat.S_IMODE(layout.issuing_token.stat().st_mode) == 0o600
    for file in layout.folder.rglob("*"):
        if file.is_file():
            assert PIN not in file.read_bytes()


def test_the_key_cannot_be_taken_out_of_its_token(authority: Authority, hsm: Hsm) -> None:
    import pkcs11

    signer = authority.unlock(PIN)

    key = signer.key  # type: ignore[attr-defined]  # a token's signer
    assert (key[pkcs11.Attribute.SENSITIVE], key[pkcs11.Attribute.EXTRACTABLE]) == (True, False)
    with pytest.raises(pkcs11.PKCS11Error):
        key[pkcs11.Attribute.VALUE]
    assert "PrivateKey" not in repr(signer)
    assert hsm.uri() in repr(signer)


def test_a_key_that_lies_in_the_token_already_is_taken(hsm: Hsm, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()

    first = founded(tmp_path / "one", hsm.uri(object="lies"))
    second = founded(tmp_path / "two", hsm.uri(object="lies"))

    assert first.issuing.public_key() == second.issuing.public_key()
    with pytest.raises(Refused, match="is on P-256, not P-384"):
        founded(tmp_path / "three", hsm.uri(object="lies"), kind=KeyType.P384)
    assert not (tmp_path / "three").exists()


def test_a_key_that_could_be_taken_out_is_refused(hsm: Hsm) -> None:
    import pkcs11

    from ca.token import open_token

    token = open_token(hsm.uri(object="loose"), pin=PIN)
    curve = {pkcs11.Attribute.EC_PARAMS: pkcs11.util.ec.encode_named_curve_parameters("secp256r1")}
    parameters = token.session.create_domain_parameters(pkcs11.KeyType.EC, curve, local=True)
    loose = {pkcs11.Attribute.EXTRACTABLE: True, pkcs11.Attribute.SENSITIVE: False}
    parameters.generate_keypair(store=True, label="loose", id=b"7", private_template=loose)

    with pytest.raises(Refused, match="can be taken out"):
        token.signer()


@pytest.mark.parametrize(
    ("changes", "what", "mend"),
    [
        ({"module": "/absent.so"}, "/absent.so is not there", "install the token's PKCS#11 module"),
        ({"module": "/etc/passwd"}, "/etc/passwd cannot be loaded", "module-path in the URI"),
        ({"token": "other"}, "the token 'other' was not opened", "plug it in"),
        ({"object": "other"}, "there is no key 'other' in the token", "name another object"),
    ],
    ids=["no module", "no library", "no token", "no object"],
)
def test_what_is_missing_on_the_way_to_a_key_is_told_apart(
    hsm: Hsm, changes: dict[str, str], what: str, mend: str
) -> None:
    from ca.token import open_token

    with pytest.raises(BadInput) as caught:
        open_token(hsm.uri(**changes), pin=PIN).signer()
    assert (caught.value.what, mend in caught.value.next_step) == (what, True)


def test_a_wrong_pin_signs_nothing_and_says_that_tokens_lock(authority: Authority) -> None:
    with pytest.raises(BadInput, match="the PIN is wrong, and a token locks itself"):
        authority.unlock(b"999999")
    assert issue(authority, signer=authority.unlock(PIN)).serial


def test_each_failure_of_a_token_has_a_word_of_its_own(hsm: Hsm) -> None:
    import pkcs11

    from ca.token import explain
    from ca.token_uri import TokenUri

    uri = TokenUri.given(hsm.uri())
    words = {
        pkcs11.PinLocked: (Refused, "too often"),
        pkcs11.PinIncorrect: (BadInput, "PIN is wrong"),
        pkcs11.PinExpired: (Refused, "has expired"),
        pkcs11.UserPinNotInitialized: (Refused, "no PIN was set"),
        pkcs11.DeviceRemoved: (BadInput, "taken out"),
        pkcs11.DeviceMemory: (OtherSide, "DeviceMemory"),
    }
    for error, (kind, why) in words.items():
        said = explain(error(), uri)

        assert type(said) is kind
        assert why in said.why


def test_a_token_file_of_another_key_or_form_is_damage(
    authority: Authority, hsm: Hsm, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = founded(tmp_path / "other", hsm.uri(object="another"))
    file = authority.layout.issuing_token
    right = file.read_bytes()

    for wrong in (other.layout.issuing_token.read_bytes(), b"", b"[]", right.replace(b"token-1", b"token-9")):
        file.write_bytes(wrong)
        with pytest.raises(Damaged):
            Authority.open(authority.layout.folder, now=NOW)
    # The URI itself is not under the audit: where it leads to another key, the key tells.
    file.write_bytes(right.replace(b"object=issuing", b"object=another"))
    with pytest.raises(Damaged, match="is not that of the issuing authority"):
        Authority.open(authority.layout.folder, now=NOW).unlock(PIN)


def test_a_token_file_that_others_may_change_is_refused(authority: Authority) -> None:
    authority.layout.issuing_token.chmod(0o622)

    with pytest.raises(Refused, match="others may reach it"):
        Authority.open(authority.layout.folder, now=NOW)


def test_a_token_has_no_passphrase_to_change(authority: Authority) -> None:
    with pytest.raises(BadInput, match="which has a PIN"):
        authority.change_passphrase(PIN, PASSPHRASE, now=NOW, actor="tester")
    assert kinds(authority) == ["init"]


def test_a_token_below_a_root_kept_elsewhere(hsm: Hsm, tmp_path: Path) -> None:
    wanted = Ceremony.model_validate(
        {
            "trust_domain": "lab.example",
            "root": {"request_out": tmp_path / "ask.csr"},
            "issuing": {"token": hsm.uri(object="below")},
        }
    )
    found(tmp_path / "ca", wanted, secret=PIN, root_secret=b"", actor="tester", now=NOW, kdf=CHEAP)
    top = outside_root.made(tmp_path / "outside")

    signed = top.signs(tmp_path / "ask.csr")
    complete(
        tmp_path / "ca",
        certificate_file=signed,
        root_file=top.certificate,
        secret=PIN,
        kdf=CHEAP,
        actor="tester",
        now=NOW,
        floor=CHEAP,
    )

    authority = Authority.open(tmp_path / "ca", now=NOW, kdf_floor=CHEAP)
    assert issue(authority, signer=authority.unlock(PIN)).serial


def test_the_command_makes_and_uses_a_token_and_shows_no_pin(hsm: Hsm, tmp_path: Path) -> None:
    for name, secret in (("pin", PIN), ("root", PASSPHRASE)):
        (tmp_path / name).write_bytes(secret)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "wrong").write_bytes(b"999999")
    (tmp_path / "wrong").chmod(0o600)

    def init(pin: str) -> subprocess.CompletedProcess[str]:
        arguments = ["init", "--trust-domain", "lab.example", "--token", hsm.uri(object="by%20command")]
        arguments += ["--pin-file", str(tmp_path / pin), "--root-passphrase-file", str(tmp_path / "root")]
        return subprocess.run(
            [str(Path(sys.executable).with_name("node-ca")), *arguments, "--ca-dir", str(tmp_path / "ca")],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )

    refused = init("wrong")
    done = init("pin")

    assert (refused.returncode, refused.stdout) == (2, "")
    assert "why: the PIN is wrong" in refused.stderr
    assert done.returncode == 0, done.stderr
    rows = dict(line.split("\t") for line in done.stdout.splitlines())
    assert rows["issuing key"] == hsm.uri(object="by%20command")
    assert PIN.decode() not in done.stdout + done.stderr


def test_a_signer_without_a_folder_is_nothing_but_a_signer(hsm: Hsm) -> None:
    from ca.token import open_token

    token = open_token(hsm.uri(object="plain"), pin=PIN)
    signer = token.make_key(KeyType.P256)

    signer.public_key.verify(signer.sign(b"words"), b"words", ec.ECDSA(hashes.SHA256()))
    assert OnToken(signer, hsm.uri()).uri == hsm.uri()


def test_two_keys_of_one_name_are_told_apart_by_their_id(hsm: Hsm) -> None:
    import pkcs11

    from ca.token import open_token

    def way(number: str) -> str:
        return hsm.uri(object=f"twin;id=%0{number}")

    first = open_token(way("1"), pin=PIN).make_key(KeyType.P256)
    second = open_token(way("2"), pin=PIN).make_key(KeyType.P384)

    assert open_token(way("1"), pin=PIN).signer().public_key == first.public_key
    assert open_token(way("2"), pin=PIN).signer().public_key == second.public_key
    with pytest.raises(BadInput, match="the URI must lead to one"):
        open_token(hsm.uri(object="twin"), pin=PIN).has_key()
    session = open_token(way("1"), pin=PIN).session
    for public in session.get_objects(
        {pkcs11.Attribute.CLASS: pkcs11.ObjectClass.PUBLIC_KEY, pkcs11.Attribute.ID: b"\1"}
    ):
        public.destroy()
    with pytest.raises(Refused, match="its public half is not in the token"):
        open_token(way("1"), pin=PIN).signer()


def test_a_pin_is_text(hsm: Hsm) -> None:
    from ca.token import open_token

    with pytest.raises(BadInput, match="not UTF-8"):
        open_token(hsm.uri(), pin=b"\xff")
