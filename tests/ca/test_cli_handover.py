"""What `node-ca issue` hands over: names picked on the command line, and files that replace none."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

from ca import show
from ca.authority import Authority
from inventory.console import Console
from inventory.errors import BadInput, Refused
from tests.ca.material import NOW, PASSPHRASE, UUID, issue, new_authority, policy_text, request
from tests.require import need

TWO = policy_text(names=["{node}.nodes.lab.example", "{node}.gpu.lab.example"])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path, text=TWO)


def test_the_names_that_were_picked_are_certified_and_rehearsed_alike(authority: Authority) -> None:
    csr, names, addresses = request(), ["gpu-01.gpu.lab.example"], ["10.0.0.8", "10.0.0.7"]

    rehearsed = authority.rehearse(
        csr,
        node="gpu-01",
        vm_uuid=UUID,
        static_address=None,
        names=names,
        addresses=addresses,
        now=NOW,
        actor="tester",
    )
    issued = authority.issue(
        csr,
        node="gpu-01",
        vm_uuid=UUID,
        static_address=None,
        names=names,
        addresses=addresses,
        signer=authority.unlock(PASSPHRASE),
        now=NOW,
        actor="tester",
    )

    assert (rehearsed.names, rehearsed.addresses) == (issued.names, issued.addresses)
    assert (issued.names, issued.addresses) == (tuple(names), tuple(addresses))
    leaf = x509.load_pem_x509_certificate(issued.certificate_pem)
    san = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert san.get_values_for_type(x509.DNSName) == names
    assert [str(address) for address in san.get_values_for_type(x509.IPAddress)] == addresses


def test_chain_and_bundle_arrive_in_a_new_folder(authority: Authority, tmp_path: Path) -> None:
    out = tmp_path / "a" / "new" / "folder"
    show.refuse_to_overwrite(out)

    show.hand_over(Console(quiet=True), issue(authority), authority, out)

    leaf, above = x509.load_pem_x509_certificates((out / "cert.pem").read_bytes())
    assert (leaf.issuer, above) == (authority.issuing.subject, authority.issuing)
    assert x509.load_pem_x509_certificates((out / "bundle.pem").read_bytes()) == [authority.root]
    assert {stat.S_IMODE(file.stat().st_mode) for file in out.iterdir()} == {0o644}


def _file(out: Path) -> None:
    out.mkdir()
    (out / "bundle.pem").write_text("mine")


def _link(out: Path) -> None:
    out.mkdir()
    (out / "cert.pem").symlink_to("nowhere")


@pytest.mark.parametrize("there", [_file, _link])
def test_what_lies_in_the_folder_already_is_never_replaced(
    tmp_path: Path, there: Callable[[Path], None]
) -> None:
    there(tmp_path / "out")

    with pytest.raises(Refused, match="exists"):
        show.refuse_to_overwrite(tmp_path / "out")


def test_a_place_that_cannot_become_a_folder_is_refused_before_anything_is_signed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")

    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadInput, match="not a folder that you can write to"):
            show.refuse_to_overwrite(out)
    show.refuse_to_overwrite(None)


def test_a_disk_that_fails_after_signing_loses_no_certificate(authority: Authority) -> None:
    need(Path("/dev/full").exists(), "/dev/full", "mount /dev")
    issued = issue(authority)

    with pytest.raises(Refused, match="was issued, but not handed over") as caught:
        show.hand_over(Console(quiet=True), issued, authority, Path("/dev/full/out"))
    kept = authority.layout.issued / f"{issued.serial}.pem"
    assert str(kept) in caught.value.next_step
    assert kept.read_bytes() == issued.chain_pem
