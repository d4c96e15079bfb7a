"""The adapter reads what a real Proxmox VE 9.2 answered: status line, reason phrase, headers and body as recorded."""

import ipaddress
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from inventory.console import Console
from inventory.errors import MusterError, OtherSide
from lab.tls import api_context
from provision.api_token import Token
from provision.hypervisor import ChangedMeanwhile, IdTaken, Unanswered, Unreachable
from provision.plan import Clone
from provision.proxmox import Proxmox
from provision.tasks import TaskFailed, Tools, follow
from tests.lab.recorded.answers import ANSWERS

ORDER = Clone(9000, "debian12-tpl", "pve1", "pve1", "local", None)
UPID = "UPID:pve1:00000179:0001F482:6B0D3C9B:qmclone:9000:prov@pve!t1:"
SECRET = "11111111-2222-4333-8444-555555555555"  # noqa: S105 - made up


class Recorded(BaseHTTPRequestHandler):
    """Answers with what was recorded, in the order that the test gave; the last is given again and again."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server = self.server
        assert isinstance(server, Host)
        server.asked.append(f"{self.command} {self.path.removeprefix('/api2/json')}")
        answer = ANSWERS[server.numbers.pop(0) if len(server.numbers) > 1 else server.numbers[0]]
        body = json.dumps(answer["body"]).encode() if "body" in answer else b""
        self.send_response_only(answer["status"], answer["reason"])
        self.send_header("Server", "pve-api-daemon/3.0")
        self.send_header("Cache-Control", "max-age=0")
        self.send_header("Pragma", "no-cache")
        self.send_header("Content-Length", str(len(body)))
        if body:
            self.send_header("Content-Type", "application/json;charset=UTF-8")
        self.send_header("Connection", "close" if answer["status"] == 401 else "Keep-Alive")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = answer["status"] == 401

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Host(ThreadingHTTPServer):
    """The recorded host. numbers: the answers to come. asked: what was asked for."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Recorded)
        context, ca = api_context(ipaddress.IPv4Address("127.0.0.1"), now=datetime.now(UTC))
        self.ca_file = folder / "ca.pem"
        self.ca_file.write_bytes(ca)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.numbers: list[int] = []
        self.asked: list[str] = []


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(tmp_path) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield served
        served.shutdown()
        thread.join()


@pytest.fixture
def proxmox(host: Host) -> Iterator[Proxmox]:
    token = Token("prov@pve", "t1", SECRET)
    with Proxmox(
        url=f"https://127.0.0.1:{host.server_port}", token=token, ca_file=host.ca_file, timeout_s=10
    ) as found:
        yield found


def clone(proxmox: Proxmox) -> str:
    return proxmox.clone(ORDER, vmid=100, name="gpu-01", description="muster: gpu-01 x")


def configure(proxmox: Proxmox) -> None:
    proxmox.configure("pve1", 100, changes={"name": "gpu-01"}, delete=[], digest="0" * 40)


def why(call: Any) -> str:
    with pytest.raises(MusterError) as caught:
        call()
    return caught.value.why


# What is there


def test_the_nodes_are_read_with_and_without_the_right_to_see_their_load(
    host: Host, proxmox: Proxmox
) -> None:
    for number in (3, 36):
        host.numbers = [number]

        assert {host: load.online for host, load in proxmox.hosts().items()} == {"pve1": True}


@pytest.mark.parametrize(
    ("number", "name", "active"), [(4, "local", True), (512, "tiny", False), (523, "tiny", False)]
)
def test_a_storage_is_active_or_lost_or_switched_off(
    host: Host, proxmox: Proxmox, number: int, name: str, *, active: bool
) -> None:
    host.numbers = [number]
    found = proxmox.storages("pve1")[name]

    assert (found.active, found.images, found.shared) == (active, True, False)


def test_a_storage_without_images_is_known(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [458]

    assert [name for name, found in proxmox.storages("pve1").items() if found.images] == ["local"]


def test_vms_that_the_host_has_not_counted_yet_have_no_name(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [433]
    found = {guest.vmid: guest for guest in proxmox.guests()}

    assert (found[301].name, found[301].host, found[301].template) == ("", "pve1", False)
    assert (found[9000].name, found[9000].template) == ("debian12-tpl", True)


def test_a_config_is_read_and_a_missing_one_is_none(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [305, 95]
    config = proxmox.config("pve1", 201)

    assert config is not None
    assert (config["memory"], config["cores"]) == ("768", 2)
    assert proxmox.config("pve1", 999) is None


@pytest.mark.parametrize(("number", "running"), [(83, False), (168, True), (600, False)])
def test_a_vm_runs_or_not(host: Host, proxmox: Proxmox, number: int, *, running: bool) -> None:
    host.numbers = [number]

    assert proxmox.running("pve1", 100) is running


# Ids and clones


def test_a_free_id_comes_as_text_and_a_taken_one_is_none(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [2, 87, 86]

    assert (proxmox.free_id(), proxmox.free_id(105), proxmox.free_id(100)) == (100, 105, None)


def test_a_range_of_ids_that_is_full_is_told(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [774]

    assert "unable to get any free VMID in range [500, 502]" in why(proxmox.free_id)


def test_a_clone_gives_its_task(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [302]

    assert clone(proxmox) == UPID


@pytest.mark.parametrize("number", [89, 196, 376, 814])
def test_an_id_that_another_took_meanwhile_is_known(host: Host, proxmox: Proxmox, number: int) -> None:
    host.numbers = [number]

    with pytest.raises(IdTaken):
        clone(proxmox)


@pytest.mark.parametrize("number", [99, 198, 199, 201, 202, 297, 299, 395, 457, 519, 599])
def test_whatever_else_refuses_a_clone_is_told_in_its_words(
    host: Host, proxmox: Proxmox, number: int
) -> None:
    host.numbers = [number]
    with pytest.raises(OtherSide) as caught:
        clone(proxmox)

    assert type(caught.value) not in {IdTaken, Unanswered, Unreachable}
    for text in (ANSWERS[number].get("body", {}).get("errors") or {"": ANSWERS[number]["reason"]}).values():
        assert text.strip() in caught.value.why


# Config


@pytest.mark.parametrize("number", [117, 118])
def test_a_digest_that_does_not_hold_is_known(host: Host, proxmox: Proxmox, number: int) -> None:
    host.numbers = [number]

    with pytest.raises(ChangedMeanwhile):
        configure(proxmox)


@pytest.mark.parametrize("number", [385, 596, 603, 108, 306, 307, 308, 313])
def test_a_change_that_is_refused_is_told_in_the_hosts_words(
    host: Host, proxmox: Proxmox, number: int
) -> None:
    host.numbers = [number]

    assert ANSWERS[number]["reason"] in why(lambda: configure(proxmox))


@pytest.mark.parametrize("number", [59, 106, 416, 419, 471, 472])
def test_each_faulty_parameter_is_told(host: Host, proxmox: Proxmox, number: int) -> None:
    host.numbers = [number]
    told = why(lambda: configure(proxmox))

    for name, fault in ANSWERS[number]["body"]["errors"].items():
        assert f"{name}: {fault.strip()}" in told


def test_a_change_a_resize_and_a_start_are_done(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [105, 128, 157]
    configure(proxmox)

    assert str(proxmox.resize("pve1", 100, disk="scsi0", size_gib=2)).split(":")[5] == "resize"
    assert proxmox.start("pve1", 100).split(":")[5] == "qmstart"


# Tasks


@pytest.mark.parametrize(
    ("number", "outcome"),
    [(129, None), (303, "OK"), (528, "WARNINGS: 1"), (133, "shrinking disks is not supported")],
)
def test_a_task_runs_or_has_an_outcome(
    host: Host, proxmox: Proxmox, number: int, outcome: str | None
) -> None:
    host.numbers = [number]
    found = proxmox.task(UPID)

    assert found is not None
    assert found.outcome == outcome


@pytest.mark.parametrize("number", [357, 358])
def test_a_task_that_the_host_does_not_know_is_none(host: Host, proxmox: Proxmox, number: int) -> None:
    host.numbers = [number]

    assert proxmox.task(UPID) is None


def test_another_users_task_is_refused_in_the_hosts_words(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [362]

    assert "Permission check failed (/nodes/pve1, Sys.Audit)" in why(lambda: proxmox.task(UPID))


def test_a_clone_that_ran_out_of_space_is_told_with_its_log(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [499, 500]
    with pytest.raises(TaskFailed) as caught:
        follow(Tools(proxmox, Console(quiet=True)), UPID, "cloning", timeout_s=5)

    assert caught.value.outcome == ANSWERS[499]["body"]["data"]["exitstatus"]
    assert "No space left on device" in caught.value.why
    assert host.asked[-1].endswith("/log?start=0&limit=50")


def test_a_warning_is_told_and_is_no_failure(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [528, 529]
    (warning,) = follow(Tools(proxmox, Console(quiet=True)), UPID, "destroying", timeout_s=5)

    assert warning.startswith(
        "Could not remove disk 'local:9000/base-9000-disk-0.qcow2/302/vm-302-disk-0.qcow2'"
    )


@pytest.mark.parametrize(
    ("number", "lines"),
    [(158, ("no content",)), (359, ("unable to open file - No such file or directory",))],
)
def test_a_log_that_is_empty_or_gone_is_one_line(
    host: Host, proxmox: Proxmox, number: int, lines: tuple[str, ...]
) -> None:
    host.numbers = [number]

    assert proxmox.task_log(UPID) == lines


def test_the_newest_task_of_a_kind_is_found(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [363]

    assert proxmox.newest_task("pve1", vmid=201, kind="qmstart") == ANSWERS[363]["body"]["data"][0]["upid"]
    assert proxmox.newest_task("pve1", vmid=201, kind="qmclone") is None


# Guest agent


def test_what_the_agent_tells_of_the_network_is_read(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [336]
    found = proxmox.interfaces("pve1", 201)

    assert found is not None
    assert [nic["name"] for nic in found] == ["lo", "eth0"]


@pytest.mark.parametrize("number", [149, 169, 171, 330, 621])
def test_an_agent_that_does_not_answer_is_none(host: Host, proxmox: Proxmox, number: int) -> None:
    host.numbers = [number]

    assert proxmox.interfaces("pve1", 201) is None


@pytest.mark.parametrize("number", [102, 340, 747])
def test_an_agent_that_never_will_answer_is_an_error(host: Host, proxmox: Proxmox, number: int) -> None:
    host.numbers = [number]

    assert ANSWERS[number]["reason"] in why(lambda: proxmox.interfaces("pve1", 201))


def test_a_file_is_read_and_a_missing_one_is_none(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [346, 347]

    assert proxmox.read_file("pve1", 201, "/etc/machine-id") == "node1\n"
    assert proxmox.read_file("pve1", 201, "/etc/machine-id") is None


def test_a_file_that_the_token_may_not_read_is_an_error(host: Host, proxmox: Proxmox) -> None:
    host.numbers = [345]

    assert "VM.GuestAgent.FileRead|VM.GuestAgent.Unrestricted" in why(
        lambda: proxmox.read_file("pve1", 201, "/etc/machine-id")
    )


# What is in between


@pytest.mark.parametrize("number", [22, 28])
def test_a_token_that_is_refused_is_named_though_the_answer_has_no_body(
    host: Host, proxmox: Proxmox, number: int
) -> None:
    host.numbers = [number]
    with pytest.raises(OtherSide, match="refused the token prov@pve!t1") as caught:
        proxmox.hosts()

    assert ANSWERS[number]["reason"] in caught.value.why
    assert SECRET not in caught.value.why


@pytest.mark.parametrize("number", [780, 861])
def test_a_host_that_the_proxy_cannot_reach_is_out_of_reach_also_for_a_write(
    host: Host, proxmox: Proxmox, number: int
) -> None:
    host.numbers = [number]

    assert ANSWERS[number]["reason"] in why(proxmox.hosts)
    with pytest.raises(Unreachable):
        clone(proxmox)


def test_an_answer_that_the_proxy_lost_leaves_a_write_open_and_a_read_to_be_asked_again(
    host: Host, proxmox: Proxmox
) -> None:
    host.numbers = [343]

    with pytest.raises(Unanswered, match="the answer to POST"):
        clone(proxmox)
    with pytest.raises(Unreachable):
        proxmox.hosts()


@pytest.mark.parametrize("number", [51, 782])
def test_a_host_that_the_cluster_does_not_have_is_told(host: Host, proxmox: Proxmox, number: int) -> None:
    host.numbers = [number]

    assert ANSWERS[number]["reason"] in why(lambda: proxmox.storages("other"))
