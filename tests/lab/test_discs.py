"""A cloud-init disc that is uploaded to the lab is what its VM starts with, and is read as others read it."""

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import discs
from provision.seed import image
from tests.lab.api import NODE, Api, serving
from tests.require import need_command

VOLUME = "local:iso/own.iso"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEdqwWw1mnAOpxwXRDtf7oNXngTrsr8zvaNBc4p2WdmX infra"
FILES = {
    "meta-data": '{"instance-id": "i-1"}',
    "network-config": "{version: 2}",
    "user-data": f"#cloud-config\nuser: root\nssh_authorized_keys: [{KEY}]\n",
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The API of a lab without an authority."""
    with serving(tmp_path_factory.mktemp("lab")) as served:
        yield served


def upload(api: Api, data: bytes, *, name: str = "own.iso", **fields: str) -> str:
    """How the task ended."""
    session: Any = api._session  # noqa: SLF001 - the kit's session
    answer = session.post(
        f"{api.lab.url}/api2/json/nodes/{NODE}/storage/local/upload",
        data={"content": "iso", **fields},
        files={"filename": (name, data, "application/octet-stream")},
        timeout=600,
    )
    assert answer.status_code == 200, answer.reason
    return api.follow(answer.json()["data"])


def test_the_files_are_those_that_another_program_reads(tmp_path: Path) -> None:
    need_command("genisoimage")
    long = {f"file-{number:03}-with-a-long-name": str(number) * 700 for number in range(40)}
    for name, text in (FILES | long).items():
        (tmp_path / name).write_text(text)
    disc = tmp_path.with_suffix(".iso")
    made = [
        "genisoimage",
        "-quiet",
        "-output",
        str(disc),
        "-volid",
        "cidata",
        "-joliet",
        "-rock",
        str(tmp_path),
    ]
    subprocess.run(made, check=True, timeout=600)

    assert discs.files(disc.read_bytes()) == FILES | long
    assert discs.files(image(FILES)) == FILES


def test_an_image_with_another_label_is_no_disc_for_cloud_init(tmp_path: Path) -> None:
    need_command("genisoimage")
    disc = tmp_path / "other.iso"
    subprocess.run(
        ["genisoimage", "-quiet", "-o", str(disc), "-V", "OTHER", "-J", str(tmp_path)],
        check=True,
        timeout=600,
    )

    for data in (disc.read_bytes(), b"", b"\0" * 65536):
        with pytest.raises(discs.NoDisc):
            discs.files(data)


def test_what_arrived_otherwise_than_it_was_sent_is_not_kept(api: Api) -> None:
    wrong = {"checksum-algorithm": "sha256", "checksum": hashlib.sha256(b"else").hexdigest()}

    assert upload(api, b"data", name="bad.iso", **wrong).startswith("checksum mismatch: got ")
    assert api.get(f"/nodes/{NODE}/storage/local/content", content="iso").data == []


def test_a_running_vm_takes_another_disc_at_once_and_one_that_is_gone_is_missed(api: Api) -> None:
    right = {"checksum-algorithm": "sha256", "checksum": hashlib.sha256(image(FILES)).hexdigest()}
    assert upload(api, image(FILES), **right) == "OK"
    vm = api.clone("on-disc")
    assert api.call("PUT", f"{vm}/config", ide2=f"{VOLUME},media=cdrom").status == 200
    api.configure(vm, 31)
    without = [row["volid"] for row in api.get(f"/nodes/{NODE}/storage/local-lvm/content").data]
    assert f"local-lvm:vm-{vm.rpartition('/')[2]}-cloudinit" not in without
    assert api.task("POST", f"{vm}/status/start") == "OK"
    api.wait_for_agent(vm)

    other = api.clone("off-disc")
    api.call("PUT", f"{other}/config", ide2=f"{VOLUME},media=cdrom")
    put = api.call("PUT", f"{vm}/config", ide2="local-lvm:cloudinit,media=cdrom")
    config = api.get(f"{vm}/config", current=1).data
    gone = api.task("DELETE", f"/nodes/{NODE}/storage/local/content/{VOLUME}")

    assert put.status == 200
    assert config["ide2"].startswith(f"local-lvm:vm-{vm.rpartition('/')[2]}-cloudinit")
    assert not [key for key in config if key.startswith("unused")]
    assert gone == "OK"
    assert api.task("POST", f"{other}/status/start") == f"volume '{VOLUME}' does not exist"
