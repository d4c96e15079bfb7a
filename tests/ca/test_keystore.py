"""The key file: encrypted, private from its first byte, refused where it is weak or open."""

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from ca.keystore import DEFAULT_KDF, KDF_FLOOR, Kdf, read_key, seal, unseal, write_key
from ca.profile import BACKDATE, fingerprint, root
from ca.signer import KeySigner, sign_certificate
from inventory.errors import BadInput, Damaged, MusterError, Refused
from tests.ca.material import CHEAP, NOW, PASSPHRASE
from tests.require import need_root


def certificate_of(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    signer = KeySigner(key)
    builder = root(signer.public_key, organisation="Test", now=NOW, serial=1 << 100, backdate=BACKDATE)
    return sign_certificate(builder, signer)


KEY = ec.generate_private_key(ec.SECP256R1())
CERTIFICATE = certificate_of(KEY)
SEALED = seal(KEY, certificate=CERTIFICATE, passphrase=PASSPHRASE, kdf=CHEAP)


def opened(data: bytes, *, passphrase: bytes = PASSPHRASE, floor: Kdf = CHEAP) -> KeySigner:
    return unseal(data, certificate=CERTIFICATE, passphrase=passphrase, floor=floor, name="key.json")


GONE = object()


def _places(head: dict[str, Any], before: str = "") -> Iterator[str]:
    """The dotted name of every field."""
    for key, value in head.items():
        if isinstance(value, dict):
            yield from _places(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def changed(key: str, value: object) -> bytes:
    """The envelope with one key (`part.key` for a nested one) set to another value."""
    head = json.loads(SEALED)
    *parts, last = key.split(".")
    part = head[parts[0]] if parts else head
    if value is GONE:
        del part[last]
    else:
        part[last] = value
    return json.dumps(head).encode()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    folder = tmp_path / "ca"
    folder.mkdir(mode=0o700)
    write_key(folder / "key.json", KEY, certificate=CERTIFICATE, passphrase=PASSPHRASE, kdf=CHEAP)
    return folder / "key.json"


def read(file: Path) -> KeySigner:
    return read_key(file, certificate=CERTIFICATE, passphrase=PASSPHRASE, floor=CHEAP)


def test_a_key_comes_back_and_signs(key_file: Path) -> None:
    signer = read(key_file)

    KEY.public_key().verify(signer.sign(b"words"), b"words", ec.ECDSA(hashes.SHA256()))
    assert "key" not in repr(signer)


def test_the_default_is_strong_and_is_accepted_without_a_word() -> None:
    started = time.monotonic()
    sealed = seal(KEY, certificate=CERTIFICATE, passphrase=PASSPHRASE, kdf=DEFAULT_KDF)

    assert opened(sealed, floor=KDF_FLOOR).public_key == KEY.public_key()
    assert DEFAULT_KDF.memory_kib >= 256 * 1024
    assert time.monotonic() - started < 300


@pytest.mark.parametrize("weak", [CHEAP, Kdf(255 * 1024, 3, 4)])
def test_a_weaker_key_file_is_refused_before_the_passphrase_is_tried(weak: Kdf) -> None:
    head = changed("kdf.memory_kib", weak.memory_kib)

    with pytest.raises(Refused, match="protected too weakly"):
        opened(head, floor=KDF_FLOOR)


@pytest.mark.parametrize("passphrase", [b"wrong", PASSPHRASE + b"\n", b""])
def test_a_wrong_passphrase_opens_nothing(passphrase: bytes) -> None:
    with pytest.raises(BadInput, match="passphrase is wrong"):
        opened(SEALED, passphrase=passphrase)


def test_an_empty_passphrase_encrypts_nothing() -> None:
    with pytest.raises(BadInput, match="empty"):
        seal(KEY, certificate=CERTIFICATE, passphrase=b"", kdf=CHEAP)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kdf.memory_kib", 128),
        ("kdf.iterations", 2),
        ("kdf.lanes", 2),
        ("kdf.more", 1),
        ("cipher.more", 1),
        ("kdf.salt", "A" * 22 + "=="),
        ("cipher.nonce", "A" * 16),
        ("note", "more"),
        ("ciphertext", json.loads(SEALED)["ciphertext"][:-8] + "AAAAAAA="),
    ],
)
def test_no_part_of_the_envelope_can_be_changed_unseen(key: str, value: object) -> None:
    with pytest.raises(BadInput, match="or the file was changed"):
        opened(changed(key, value))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kdf", GONE),
        ("kdf", []),
        ("ciphertext", GONE),
        ("ciphertext", 7),
        ("format", "muster-key-9"),
        ("kdf.name", "pbkdf2"),
        ("kdf.salt", "AAAA"),
        ("kdf.salt", "not base64!"),
        ("kdf.memory_kib", 1 << 40),
        ("kdf.memory_kib", "much"),
        ("kdf.iterations", 0),
        ("kdf.lanes", 0),
        ("kdf.lanes", 1000),
        ("certificate_sha256", "0" * 64),
    ],
)
def test_what_is_no_key_file_of_this_authority_is_damage(key: str, value: object) -> None:
    with pytest.raises(Damaged):
        opened(changed(key, value))


@given(
    st.binary(max_size=200)
    | st.integers(0, len(SEALED) - 1).map(lambda at: SEALED[:at] + b"}" + SEALED[at + 1 :])
)
@settings(max_examples=50)
def test_no_bytes_whatsoever_end_in_a_traceback(data: bytes) -> None:
    with contextlib.suppress(MusterError):
        opened(data)


def test_the_key_of_another_certificate_is_damage() -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    mixed = seal(other, certificate=CERTIFICATE, passphrase=PASSPHRASE, kdf=CHEAP)

    with pytest.raises(Damaged, match="does not match the certificate"):
        opened(mixed)


def test_a_key_file_is_private_from_its_first_byte(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        write_key(tmp_path / "key.json", KEY, certificate=CERTIFICATE, passphrase=PASSPHRASE, kdf=CHEAP)
    finally:
        os.umask(former)

    assert stat.S_IMODE((tmp_path / "key.json").stat().st_mode) == 0o600


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    place = tmp_path / "key.json"
    place.write_text("mine")
    place.chmod(0o644)

    with pytest.raises(Refused, match="never overwritten"):
        write_key(place, KEY, certificate=CERTIFICATE, passphrase=PASSPHRASE, kdf=CHEAP)
    assert place.read_text() == "mine"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_file_that_others_reach_is_refused_with_its_mend(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)

    with pytest.raises(Refused) as caught:
        read(key_file)
    assert caught.value.next_step == f"chmod 600 {key_file}"


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_may_change_is_refused_with_its_mend(key_file: Path, mode: int) -> None:
    key_file.parent.chmod(mode)

    with pytest.raises(Refused) as caught:
        read(key_file)
    assert caught.value.next_step == f"chmod go-w {key_file.parent}"


def test_a_link_in_the_place_of_the_key_file_is_refused(key_file: Path) -> None:
    key_file.rename(key_file.with_name("elsewhere"))
    key_file.symlink_to("elsewhere")

    with pytest.raises(Refused, match="not a plain file"):
        read(key_file)


def test_a_missing_key_file_is_damage(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="missing"):
        read(tmp_path / "key.json")


def test_another_users_key_file_is_refused(key_file: Path) -> None:
    need_root()
    os.chown(key_file, 12345, 12345)

    with pytest.raises(Refused, match="another user"):
        read(key_file)


def test_the_certificates_fingerprint_is_sealed_with_the_key() -> None:
    # The same key in a certificate made anew: the envelope is opened up to the cipher, which then refuses.
    anew = certificate_of(KEY)
    moved = changed("certificate_sha256", fingerprint(anew))

    with pytest.raises(BadInput, match="or the file was changed"):
        unseal(moved, certificate=anew, passphrase=PASSPHRASE, floor=CHEAP, name="key.json")


@pytest.mark.parametrize("place", [*_places(json.loads(SEALED))])
def test_every_field_of_the_envelope_is_judged_or_sealed(place: str) -> None:
    value = json.loads(SEALED)
    for part in place.split("."):
        value = value[part]
    other = value + 1 if isinstance(value, int) else value[:-4] + ("AAA=" if value[-4:] != "AAA=" else "BBB=")

    with pytest.raises((BadInput, Damaged)):
        opened(changed(place, other))
