"""What a VM is made from: templates by id, name or tag, linked or in full, and cloud images."""

from typing import Any

import pytest

from inventory.errors import Refused
from inventory.model import State
from provision.images import volume_of
from provision.wanted import WantedImage
from tests.provision.cluster_kit import answers
from tests.provision.kit import CLONE, Place, failure, make, state
from tests.provision.test_resume import Dies

CREATE = ("POST", "/nodes/pve1/qemu")
DOWNLOAD = ("POST", "/nodes/pve1/storage/local/download-url")
SHA = "5f2c1a349a1e4e0f8f6e6d0f6f4f7a115f2c1a349a1e4e0f8f6e6d0f6f4f7a11"
URL = "https://cloud.example/debian-12.qcow2"
VOLUME = f"local:import/muster-{SHA[:16]}-debian-12.qcow2"


def template(place: Place, vmid: int, name: str, *, node: str = "pve1", tags: str = "") -> Any:
    config = {
        "scsi0": f"local-lvm:base-{vmid}-disk-0,size=8G", "ide2": f"local-lvm:vm-{vmid}-cloudinit,media=cdrom",
        "net0": "virtio=BC:24:11:00:91:00,bridge=vmbr0", "boot": "order=scsi0", "tags": tags,
    }  # fmt: skip
    return place.pve.add_vm(vmid, name, node=node, template=True, config=config)


def test_a_template_is_found_by_its_tag(place: Place) -> None:
    template(place, 9100, "trixie", tags="muster-gpu;golden")
    place.write_site(profile_template="{tag: muster-gpu}")

    assert make(place.road()).node.state is State.AWAITING_IDENTITY
    assert ("POST", "/nodes/pve1/qemu/9100/clone") in place.requests.writes


def test_the_nearest_copy_is_cloned(place: Place) -> None:
    place.pve.add_node("pve2")
    template(place, 9100, "gold", node="pve1", tags="g")
    template(place, 9200, "gold", node="pve2", tags="g")

    for source in ("gold", "{tag: g}"):
        place.write_site(profile_template=source, profile_node="pve2")
        (clone, *_) = place.road().prepare("gpu-01", profile=None).steps
        assert (clone.template, clone.host) == (9200, "pve2")  # type: ignore[union-attr]  # it is a clone


def test_a_vm_with_the_name_of_a_template_is_passed_over(place: Place) -> None:
    template(place, 9100, "gold")
    place.pve.add_vm(300, "gold")
    place.write_site(profile_template="gold")

    (clone, *_) = place.road().prepare("gpu-01", profile=None).steps
    assert clone.template == 9100  # type: ignore[union-attr]  # it is a clone


def test_two_copies_on_one_host_are_not_chosen_from(place: Place) -> None:
    template(place, 9100, "gold")
    template(place, 9200, "gold")
    place.write_site(profile_template="gold")

    assert "could be VM 9100 or 9200, all on pve1; give its VM id" in failure(place).why


def test_a_copy_on_a_host_that_is_offline_is_passed_over(place: Place) -> None:
    place.pve.add_node("pve2", online=False)
    template(place, 9100, "gold")
    template(place, 9200, "gold", node="pve2")
    place.write_site(profile_template="gold")

    (clone, *_) = place.road().prepare("gpu-01", profile=None).steps
    assert clone.template == 9100  # type: ignore[union-attr]  # it is a clone


def test_another_hosts_own_storage_is_told_from_a_shared_one(place: Place) -> None:
    place.pve.add_node("pve2")
    place.write_site(profile_node="pve2")

    error = failure(place)

    assert isinstance(error, Refused)
    assert "template 9000 is on pve1 and the profile names pve2" in error.why
    assert "local-lvm is pve1's own; make the template on pve2 too, or set node: pve1" in error.why
    assert place.requests.writes == []


def test_a_linked_clone_is_asked_for_without_storage(place: Place) -> None:
    place.write_site(profile_linked="true")

    make(place.road())

    body = place.requests.body_of("POST", "/clone")
    assert body["full"] == "0"
    assert "storage" not in body


def test_a_linked_clone_on_another_storage_is_refused_before_any_write(place: Place) -> None:
    place.pve.add_ceph_storage("ceph")
    place.write_site(profile_linked="true", profile_storage="ceph")

    assert "a linked clone stays on its template's storage, local-lvm" in failure(place).why
    assert place.requests.writes == []


def from_image(place: Place, image: str = f"{{url: '{URL}', sha256: {SHA}}}", **more: str) -> None:
    """A site whose profile is built from an image, and a storage that takes images."""
    place.pve.storages["local"]["content"] = "iso,vztmpl,backup,import"
    place.write_site(ticket=True, profile_image=image, **more)
    text = place.site_file.read_text()
    place.site_file.write_text(text.replace("    template: 9000\n", ""))


def test_a_vm_is_built_from_an_image_that_proxmox_fetches_and_checks(place: Place) -> None:
    from_image(place, profile_disk_gib="12")

    made = make(place.road())

    assert made.node.state is State.AWAITING_IDENTITY
    assert place.requests.writes[:2] == [DOWNLOAD, CREATE]
    asked = place.requests.body_of("POST", "/download-url")
    assert asked == {
        "content": "import", "url": URL, "checksum": SHA, "checksum-algorithm": "sha256",
        "filename": VOLUME.rpartition("/")[2],
    }  # fmt: skip
    body = place.requests.body_of("POST", "/qemu")
    assert body["scsi0"] == f"local-lvm:0,import-from={VOLUME},discard=on,iothread=1,ssd=1"
    assert (body["scsihw"], body["ide2"]) == ("virtio-scsi-single", "local-lvm:cloudinit")
    assert f"uuid={made.node.uuid}" in body["smbios1"]
    assert body["name"] == "gpu-01"
    assert "start" not in body
    assert not [write for write in place.requests.writes if write[1].endswith("/clone")]


def test_a_firmware_disk_comes_with_ovmf_and_with_keys_only_if_asked_for(place: Place) -> None:
    for secure, keys in (("false", 0), ("true", 1)):
        from_image(place, profile_bios="ovmf", profile_machine="q35", profile_secure_boot=secure)
        step = next(
            step for step in place.road().prepare("gpu-01", profile=None).steps if hasattr(step, "config")
        )

        assert dict(step.config)["efidisk0"] == f"local-lvm:1,efitype=4m,pre-enrolled-keys={keys}"


def test_the_rules_hold_for_a_vm_from_an_image_too(place: Place) -> None:
    from_image(
        place,
        profile_gpus="{mapping: h100, count: 1}",
        profile_network="{bridge: b, queues: 9, address: dhcp}",
    )
    answers(place).mappings = {"h100": {"pve1": 1}}

    error = failure(place)

    assert "GPUs need a q35 machine (pcie=1), and a VM from an image has the default, i440fx" in error.why
    assert "net0 has 9 queues" in error.why
    assert place.requests.writes == []


def test_an_image_is_fetched_once_for_all_nodes(place: Place) -> None:
    from_image(place)
    road = place.road()
    prepared = [road.prepare(name, profile=None) for name in ("gpu-01", "gpu-02")]
    for each in prepared:
        road.carry_out(each)
    make(place.road(), "gpu-03")

    assert place.requests.writes.count(DOWNLOAD) == 1
    assert place.requests.writes.count(CREATE) == 3


def test_an_image_that_proxmox_has_is_not_fetched(place: Place) -> None:
    place.pve.store_file("local", "mine.qcow2", 1024, "import")
    from_image(place, "{volume: 'local:import/mine.qcow2'}")

    make(place.road())

    assert place.requests.writes[0] == CREATE


@pytest.mark.parametrize(
    ("image", "content", "why"),
    [
        ("{volume: 'local:import/gone.qcow2'}", "import", "local:import/gone.qcow2 is not there"),
        ("{volume: 'nfs:import/gone.qcow2'}", "import", "it has no active storage nfs"),
        (f"{{url: '{URL}', sha256: {SHA}}}", "iso", "none of its storages takes images to import"),
    ],
)
def test_an_image_that_cannot_be_had_is_refused_before_any_write(
    place: Place, image: str, content: str, why: str
) -> None:
    from_image(place, image)
    place.pve.storages["local"]["content"] = content

    error = failure(place)

    assert f"pve1: {why}" in error.why
    assert place.requests.writes == []


def test_a_download_that_fails_is_told_and_no_vm_is_made(place: Place) -> None:
    from_image(place)

    def fails(_method: str, path: str) -> None:
        if "/tasks/" in path and path.endswith("/status"):
            place.pve.tasklog[-1]["exitstatus"] = "download failed: checksum mismatch: got 'ab', expect 'cd'"

    place.requests.on_next = fails

    error = failure(place)

    assert "checksum mismatch" in error.why
    assert place.requests.writes == [DOWNLOAD]
    assert state(place) is State.PROVISION_FAILED


def test_an_id_taken_meanwhile_is_drawn_again_for_an_image_too(place: Place) -> None:
    from_image(place)
    place.pve.fail(
        "POST", "/qemu", 500, "unable to create VM 100 - VM 100 already exists on node 'pve1'", times=1
    )

    assert make(place.road()).node.vmid == 101


def test_nodes_that_are_made_at_once_fetch_their_image_once(place: Place) -> None:
    from_image(place, profile_memory_mib="16")

    done = place.run("gpu-[1-6]", "--yes")

    assert done.returncode == 0, done.stderr
    assert place.requests.writes.count(DOWNLOAD) == 1
    assert place.requests.writes.count(CREATE) == 6


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", ["clone", "start"])
def test_a_run_that_dies_on_its_way_is_finished_with_one_vm(place: Place, at: str, *, after: bool) -> None:
    from_image(place)
    with pytest.raises(KeyboardInterrupt):
        make(place.road(adapter=lambda proxmox: Dies(proxmox, at=at, after=after)))

    made = make(place.road())

    assert made.node.state is State.AWAITING_IDENTITY
    assert [vm.vmid for vm in place.pve.vms] == [9000, 100]
    assert (place.requests.writes.count(DOWNLOAD), place.requests.writes.count(CREATE)) == (1, 1)


def test_running_twice_changes_nothing(place: Place) -> None:
    from_image(place)

    def grows_the_disk(method: str, path: str) -> None:
        if method == "PUT" and path.endswith("/resize"):
            place.pve.vm(100).config["scsi0"] = "local-lvm:vm-100-disk-0,size=8G"

    place.requests.on_next = grows_the_disk
    make(place.road())
    before = len(place.requests.writes)

    assert ("PUT", "/nodes/pve1/qemu/100/resize") in place.requests.writes
    assert place.road().prepare("gpu-01", profile=None).steps == ()
    assert len(place.requests.writes) == before


def test_the_plan_shows_what_would_be_fetched_and_made(place: Place) -> None:
    from_image(place)

    done = place.run("gpu-01", "--plan")

    assert f"+ fetch      {URL} to {VOLUME} on pve1, checked by its SHA-256" in done.stdout
    assert f"+ create     from image {VOLUME}, on storage local-lvm of pve1" in done.stdout
    assert place.requests.writes == []


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://h/a/noble.img", "muster-5f2c1a349a1e4e0f-noble.qcow2"),
        ("https://h/x.raw?y=/z.iso", "muster-5f2c1a349a1e4e0f-x.raw"),
    ],
)
def test_a_fetched_image_carries_its_checksum_in_its_name(url: str, name: str) -> None:
    assert volume_of(WantedImage(url=url, sha256=SHA.upper()), "local") == f"local:import/{name}"


def test_the_clone_is_still_the_way_of_a_template(place: Place) -> None:
    make(place.road())

    assert place.requests.writes[0] == CLONE
