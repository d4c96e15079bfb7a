"""PKCS#11 URIs: what leads to a key in a token is read, what would give away a PIN is refused."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ca.token_uri import TokenUri
from inventory.errors import BadInput

WHOLE = "pkcs11:token=lab%20ca;serial=01ab;object=issuing;id=%01%ff;type=private?module-path=/usr/lib/p11.so"


def test_every_part_of_a_uri_arrives_unquoted() -> None:
    found = TokenUri.parse(WHOLE)

    assert (found.token, found.serial, found.object) == ("lab ca", "01ab", "issuing")
    assert (found.id, found.module, found.text) == (b"\x01\xff", Path("/usr/lib/p11.so"), WHOLE)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("issuing", "does not begin with pkcs11:"),
        ("pkcs11:token=a;object=b", "no absolute module-path"),
        ("pkcs11:token=a;object=b?module-path=p11.so", "no absolute module-path"),
        ("pkcs11:object=b?module-path=/p", "names no token"),
        ("pkcs11:token=;object=b?module-path=/p", "names no token"),
        ("pkcs11:token=a?module-path=/p", "names no object"),
        ("pkcs11:token=a;object=b?module-path=/p&pin-value=1234", "holds a PIN"),
        ("pkcs11:token=a;object=b;pin-value=1234?module-path=/p", "holds a PIN"),
        ("pkcs11:token=a;object=b?module-path=/p&pin-source=file:/x", "pin-source is not used"),
        ("pkcs11:token=a;object=b;colour=red?module-path=/p", "colour: unknown"),
        ("pkcs11:token=a;object=b?module-path=/p&module-name=x", "module-name: unknown"),
        ("pkcs11:token=a;token=c;object=b?module-path=/p", "token is there twice"),
        ("pkcs11:token=a;object=b;type=cert?module-path=/p", "type is not private"),
        ("pkcs11:token=%ff;object=b?module-path=/p", "not UTF-8"),
        ("pkcs11:token=%1b[2J;object=b?module-path=/p", "cannot be printed"),
        ("pkcs11:token=%zz;object=b?module-path=/p", "not written as key=value"),
        (f"pkcs11:token={'a' * 3000};object=b?module-path=/p", "does not begin"),
    ],
)
def test_what_is_no_way_to_one_key_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(BadInput) as caught:
        TokenUri.given(text)
    assert reason in caught.value.why
    assert "1234" not in str(caught.value) + caught.value.next_step


@given(st.text(max_size=60).map(lambda text: f"pkcs11:{text}"))
def test_no_uri_whatsoever_ends_in_a_traceback(text: str) -> None:
    with contextlib.suppress(BadInput):
        TokenUri.given(text)
