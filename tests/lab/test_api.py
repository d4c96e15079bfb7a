"""The lab's API answers as a real Proxmox VE 9.2 does, for the calls that Muster makes."""

import re
import urllib.parse
from collections.abc import Iterator

import pytest
from proxmoxer import ProxmoxAPI, ResourceException

from tests.lab.api import CONFIG_GONE, NODE, Api, serving, vm_path


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The API of a lab without an authority."""
    with serving(tmp_path_factory.mktemp("lab")) as served:
        yield served


@pytest.fixture(scope="module")
def off(api: Api) -> str:
    """A clone that nobody starts."""
    return api.clone("off")


# Transport, login and rights


def test_a_request_without_credentials_is_told_so_in_the_reason_alone(api: Api) -> None:
    answer = Api(api.lab, {}).get("/nodes")

    assert (answer.status, answer.reason, answer.body) == (401, "No ticket", {})


def test_a_wrong_token_fails_without_telling_why(api: Api) -> None:
    answer = Api(api.lab, {"Authorization": "PVEAPIToken=muster@pve!lab=wrong"}).get("/version")

    assert (answer.status, answer.reason, answer.body) == (401, "Authentication failed!", {})


def test_the_version_is_that_of_proxmox_9(api: Api) -> None:
    version = api.get("/version").data

    assert version["release"] == "9.2"
    assert version["version"].startswith("9.2.")


def test_an_unknown_method_is_not_implemented(api: Api) -> None:
    answer = api.get("/nosuch")

    assert (answer.status, answer.reason) == (501, "Method 'GET /nosuch' not implemented")


def test_a_missing_privilege_is_named_with_its_path(api: Api) -> None:
    refused = api.call("POST", f"{vm_path(9000)}/snapshot", snapname="s1")

    assert (refused.status, refused.reason) == (403, "Permission check failed (/vms/9000, VM.Snapshot)")
    assert refused.body == {"data": None, "message": f"{refused.reason}\n"}


def test_rights_are_checked_before_parameters(api: Api) -> None:
    refused = api.call("POST", f"{vm_path(9000)}/snapshot", snapname="s1", bogus="1")

    assert refused.status == 403


def test_all_faulty_parameters_are_told_at_once(api: Api, off: str) -> None:
    answer = api.call("PUT", f"{off}/config", cores="many", bogus="1", onboot="True", sshkeys="ssh-rsa AA")

    assert (answer.status, answer.reason) == (400, "Parameter verification failed.")
    assert answer.body["errors"]["onboot"] == "type check ('boolean') failed - got 'True'"


def test_keys_must_be_percent_encoded_by_the_caller(api: Api, off: str) -> None:
    plain = api.call("PUT", f"{off}/config", sshkeys="ssh-rsa AA")
    no_key = api.call("PUT", f"{off}/config", sshkeys="hello")

    assert plain.body["errors"]["sshkeys"] == "invalid format - invalid urlencoded string: ssh-rsa AA\n"
    assert (no_key.status, no_key.reason) == (500, "SSH public key validation error")


def test_the_token_knows_its_rights(api: Api) -> None:
    held = api.get("/access/permissions").data

    assert held["/storage/local-lvm"] == {"Datastore.AllocateSpace": 1, "Datastore.Audit": 1}
    assert held["/vms"]["VM.Clone"] == 1


# Tasks


def test_a_task_is_followed_by_its_upid(api: Api, off: str) -> None:
    upid = api.call("PUT", f"{off}/resize", disk="scsi0", size="4G").data
    exit_status = api.follow(upid)
    status = api.get(f"/nodes/{NODE}/tasks/{upid}/status").data

    assert re.fullmatch(
        rf"UPID:{NODE}:[0-9A-F]{{8}}:[0-9A-F]{{8,9}}:[0-9A-F]{{8}}:resize:\d+:muster@pve!lab:", upid
    )
    assert exit_status == "OK"
    assert (status["user"], status["tokenid"], status["type"]) == ("muster@pve", "lab", "resize")


def test_a_failed_task_tells_why_in_its_status_and_at_the_end_of_its_log(api: Api) -> None:
    upid = api.call("POST", f"{vm_path(9000)}/status/start").data
    exit_status = api.follow(upid)
    log = api.get(f"/nodes/{NODE}/tasks/{upid}/log", limit=0).body

    assert exit_status == "you can't start a vm if it's a template"
    assert log["data"][-1]["t"] == f"TASK ERROR: {exit_status}"
    assert log["total"] == len(log["data"])


def test_a_page_of_a_task_log_starts_where_it_is_asked_to(api: Api, off: str) -> None:
    upid = api.call("PUT", f"{off}/resize", disk="scsi0", size="+1M").data
    api.follow(upid)
    log = api.get(f"/nodes/{NODE}/tasks/{upid}/log", start=1, limit=1).body

    assert log == {"data": [{"n": 2, "t": "TASK OK"}], "total": 2}


def test_an_unknown_task_is_told_apart_from_a_malformed_one(api: Api) -> None:
    unknown = f"UPID:{NODE}:00000001:00000001:00000001:qmstart:100:root@pam:"
    no_task = api.get(f"/nodes/{NODE}/tasks/{unknown}/status")
    malformed = api.get(f"/nodes/{NODE}/tasks/UPID:x/status")
    log = api.get(f"/nodes/{NODE}/tasks/{unknown}/log")

    assert no_task.body["errors"] == {"upid": "no such task"}
    assert malformed.body["errors"] == {"upid": "unable to parse worker upid"}
    assert log.data == [{"n": 1, "t": "unable to open file - No such file or directory"}]


# Clones and their config


def test_the_next_id_is_text_and_free(api: Api, off: str) -> None:
    free = api.get("/cluster/nextid").data
    taken = api.get("/cluster/nextid", vmid=off.rpartition("/")[2])

    assert isinstance(free, str)
    assert taken.body["errors"] == {"vmid": f"VM {off.rpartition('/')[2]} already exists"}


def test_a_clone_has_a_disk_a_cloud_init_drive_a_mac_and_a_uuid_of_its_own(api: Api, off: str) -> None:
    vmid = off.rpartition("/")[2]
    template, clone = api.get(f"{vm_path(9000)}/config").data, api.get(f"{off}/config").data

    assert clone["ide2"] == f"local-lvm:vm-{vmid}-cloudinit,media=cdrom,size=4M"
    assert clone["scsi0"].startswith(f"local-lvm:vm-{vmid}-disk-0,")
    assert clone["net0"] != template["net0"]
    assert clone["smbios1"] != template["smbios1"]
    assert clone["name"] == "off"


def test_numbers_are_numbers_but_memory_is_text(api: Api, off: str) -> None:
    assert api.call("PUT", f"{off}/config", cores="2", memory="2048", onboot=0).data is None
    config = api.get(f"{off}/config").data

    assert (config["cores"], config["memory"], config["onboot"]) == (2, "2048", 0)


def test_keys_come_back_as_they_were_given_and_tags_in_order(api: Api, off: str) -> None:
    keys = urllib.parse.quote(api.lab.places.login_keys.read_text().strip(), safe="")
    api.call("PUT", f"{off}/config", sshkeys=keys, tags="Muster,gpu;gpu")
    config = api.get(f"{off}/config").data

    assert (config["sshkeys"], config["tags"]) == (keys, "gpu;muster")


def test_a_change_that_crosses_another_is_refused_by_its_digest(api: Api, off: str) -> None:
    digest = api.get(f"{off}/config").data["digest"]
    first = api.call("PUT", f"{off}/config", digest=digest, description="one")
    second = api.call("PUT", f"{off}/config", digest=digest, description="two")

    assert first.status == 200
    assert (second.status, second.reason) == (500, "checksum mismatch (file change by other user?)")


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({}, 500, "no options specified"),
        ({"args": "-s"}, 500, "only root can set 'args' config"),
        ({"startup": "order=1"}, 403, "Permission check failed (/, Sys.Modify)"),
    ],
)
def test_a_change_that_a_host_refuses_is_refused(
    api: Api, off: str, fields: dict[str, str], status: int, reason: str
) -> None:
    answer = api.call("PUT", f"{off}/config", **fields)

    assert (answer.status, answer.reason) == (status, reason)


def test_a_disk_grows_and_never_shrinks(api: Api) -> None:
    vm = api.clone("grows")
    grown = api.task("PUT", f"{vm}/resize", disk="scsi0", size="8G")
    same = api.task("PUT", f"{vm}/resize", disk="scsi0", size="8G")
    shrunk = api.task("PUT", f"{vm}/resize", disk="scsi0", size="2G")
    volumes = {
        item["volid"]: item["size"] for item in api.get(f"/nodes/{NODE}/storage/local-lvm/content").data
    }
    vmid = vm.rpartition("/")[2]

    assert (grown, same, shrunk) == ("OK", "OK", "shrinking disks is not supported")
    assert api.get(f"{vm}/config").data["scsi0"] == f"local-lvm:vm-{vmid}-disk-0,size=8G"
    assert volumes[f"local-lvm:vm-{vmid}-disk-0"] == 8 << 30


def test_what_is_no_disk_is_not_resized(api: Api, off: str) -> None:
    assert api.task("PUT", f"{off}/resize", disk="scsi5", size="8G") == "disk 'scsi5' does not exist"
    assert api.task("PUT", f"{off}/resize", disk="ide2", size="8G") == "you can't resize a cdrom"


def test_a_missing_vm_is_told_at_once_or_by_the_task(api: Api) -> None:
    vm, gone = vm_path(999), CONFIG_GONE.format(999)

    assert api.get(f"{vm}/config").reason == gone
    assert api.call("DELETE", vm).reason == gone
    assert api.call("POST", f"{vm}/agent/ping").reason == gone
    assert api.task("POST", f"{vm}/status/start") == gone
    assert api.task("PUT", f"{vm}/resize", disk="scsi0", size="8G") == gone
    missing = api.call("POST", f"{vm}/clone", newid=998)
    assert missing.reason == f"unable to find configuration file for VM 999 on node '{NODE}'"


def test_a_taken_id_is_refused(api: Api, off: str) -> None:
    vmid = off.rpartition("/")[2]

    assert (
        api.call("POST", f"{vm_path(9000)}/clone", newid=vmid, full=1).reason
        == f"unable to create VM {vmid}: config file already exists"
    )


def test_the_cloud_init_data_follows_the_config_and_so_does_its_instance_id(api: Api, off: str) -> None:
    def dump() -> dict[str, str]:
        return {
            kind: api.get(f"{off}/cloudinit/dump", type=kind).data for kind in ("user", "network", "meta")
        }

    before = dump()
    api.call(
        "PUT", f"{off}/config", ciuser="somebody", ipconfig0=f"ip={api.address(77)}/24,gw={api.address(1)}"
    )
    after, again = dump(), dump()

    assert "user: somebody" in after["user"]
    assert f"address: '{api.address(77)}'" in after["network"]
    assert re.fullmatch(r"instance-id: [0-9a-f]{40}\n", after["meta"])
    assert after["meta"] != before["meta"]
    assert again == after


def test_the_drive_is_told_apart_from_the_config(api: Api) -> None:
    vm = api.clone("drive")
    api.call("PUT", f"{vm}/config", ciuser="one")
    never_written = api.get(f"{vm}/cloudinit").data
    api.call("PUT", f"{vm}/cloudinit")
    api.call("PUT", f"{vm}/config", ciuser="two")
    waiting = api.get(f"{vm}/cloudinit").data

    assert never_written == [{"key": "ciuser", "value": "one"}]
    assert waiting == [{"key": "ciuser", "value": "one", "pending": "two"}]


def test_proxmoxer_reads_the_reason(api: Api) -> None:
    token = api.lab.places.token.read_text().strip()
    who, _, secret = token.partition("=")
    user, _, name = who.partition("!")
    proxmox = ProxmoxAPI(
        api.lab.url.removeprefix("https://"),
        user=user,
        token_name=name,
        token_value=secret,
        verify_ssl=str(api.lab.places.api_ca),
    )

    with pytest.raises(ResourceException) as raised:
        proxmox.nodes(NODE).qemu(999).config.get()

    assert raised.value.status_code == 500
    assert raised.value.content == CONFIG_GONE.format(999)
