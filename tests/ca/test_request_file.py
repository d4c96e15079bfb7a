"""Where a request's bytes come from: a file or standard input, and never more of them than a request has."""

import io
import sys
from pathlib import Path

import pytest

from ca.request import MAX_BYTES, read_file, read_request
from inventory.errors import BadInput
from tests.ca.material import request


def test_a_request_comes_from_a_file_or_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    csr = request()
    (tmp_path / "node.csr").write_bytes(csr)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(csr)))

    assert read_file(tmp_path / "node.csr") == csr == read_file(Path("-"))
    assert read_request(csr).sha256


def test_an_endless_request_is_not_read_to_its_end() -> None:
    with pytest.raises(BadInput, match="at most"):
        read_request(read_file(Path("/dev/zero")))
    assert len(read_file(Path("/dev/zero"))) == MAX_BYTES + 1


def test_a_request_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for place, why in ((tmp_path / "absent", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(BadInput, match=why):
            read_file(place)
