"""The adapter: Proxmox's answers, in its own words, turned into ours."""

import logging
import socket
from pathlib import Path

import pytest
from requests.utils import DEFAULT_CA_BUNDLE_PATH

from inventory.errors import BadInput, OtherSide, Refused
from provision.api_token import Token, read_token
from provision.hypervisor import ChangedMeanwhile, IdTaken, Unanswered, Unreachable
from provision.plan import Clone
from provision.proxmox import Proxmox
from tests.provision.kit import SECRET, TOKEN_ID, Place

ORDER = Clone(9000, "debian-12", "pve1", "pve1", "local-lvm", None)


@pytest.fixture
def proxmox(place: Place) -> Proxmox:
    place.road()
    return place.adapters[0]


def clone(proxmox: Proxmox, vmid: int = 100) -> str:
    return proxmox.clone(ORDER, vmid=vmid, name="gpu-01", description="muster: gpu-01 x")


def test_what_the_cluster_lists(proxmox: Proxmox, place: Place) -> None:
    place.pve.add_node("pve2", online=False)

    (template,) = proxmox.guests()
    assert (template.vmid, template.name, template.host, template.template) == (
        9000,
        "debian-12",
        "pve1",
        True,
    )
    assert {host: load.online for host, load in proxmox.hosts().items()} == {"pve1": True, "pve2": False}
    assert proxmox.storages("pve1")["local-lvm"].images
    assert not proxmox.storages("pve1")["local"].images


def test_an_absent_vm_has_no_config(proxmox: Proxmox) -> None:
    assert proxmox.config("pve1", 999) is None


def test_a_free_id_is_told_and_a_taken_one_is_none(proxmox: Proxmox) -> None:
    assert proxmox.free_id() == 100
    assert proxmox.free_id(5000) == 5000
    assert proxmox.free_id(9000) is None


def test_no_free_id_in_the_datacenters_range_is_told(proxmox: Proxmox, place: Place) -> None:
    place.pve.fail("GET", "/cluster/nextid", 500, "unable to get any free VMID in range [500, 502]")

    with pytest.raises(OtherSide, match="free VMID in range"):
        proxmox.free_id()


@pytest.mark.parametrize(
    "wording",
    [
        "unable to create VM 100: config file already exists",
        "unable to create VM 100 - VM 100 already exists on node 'pve1'",
        "unable to create VM 100 - CT 100 already exists on node 'pve1'",
    ],
)
def test_a_taken_id_is_known_by_every_wording(proxmox: Proxmox, place: Place, wording: str) -> None:
    place.pve.fail("POST", "/clone", 500, wording)

    with pytest.raises(IdTaken):
        clone(proxmox)


@pytest.mark.parametrize("status", [596, 597, 598, 599])
def test_a_write_that_the_proxy_lost_may_have_happened(proxmox: Proxmox, place: Place, status: int) -> None:
    place.pve.fail("POST", "/clone", status, "Broken pipe")

    with pytest.raises(Unanswered):
        clone(proxmox)


def test_a_write_that_reached_nobody_did_not_happen(proxmox: Proxmox, place: Place) -> None:
    place.pve.fail("POST", "/clone", 595, "No route to host")

    with pytest.raises(Unreachable, match="No route to host"):
        clone(proxmox)


def test_a_connection_that_breaks_after_the_write_was_sent_may_have_done_it(
    proxmox: Proxmox, place: Place
) -> None:
    proxmox.hosts()
    place.pve.flaky_network(drop_rate=1.0)

    with pytest.raises(Unanswered):
        clone(proxmox)
    with pytest.raises(Unreachable):
        proxmox.hosts()


def test_a_slow_answer_to_a_write_may_have_done_it(place: Place) -> None:
    with Proxmox(
        url=place.pve.url,
        token=read_token(place.folder / "pve.token")[0],
        ca_file=place.ca_file,
        timeout_s=2.0,
    ) as proxmox:
        proxmox.hosts()
        place.pve.time_scale = 1.0
        place.pve.slow_network(6.0)

        with pytest.raises(Unanswered, match="no answer in time"):
            clone(proxmox)


def test_a_changed_digest_is_told(proxmox: Proxmox) -> None:
    clone(proxmox)

    with pytest.raises(ChangedMeanwhile):
        proxmox.configure("pve1", 100, changes={"cores": "3"}, delete=[], digest="0" * 40)


def test_keys_are_set_and_deleted(proxmox: Proxmox, place: Place) -> None:
    clone(proxmox)

    proxmox.configure("pve1", 100, changes={"cores": "3"}, delete=["tags", "boot"], digest=None)

    assert place.pve.vm(100).config["cores"] == "3"
    assert "tags" not in place.pve.vm(100).config
    assert "boot" not in place.pve.vm(100).config


def test_every_faulty_parameter_is_told(proxmox: Proxmox) -> None:
    clone(proxmox)

    with pytest.raises(OtherSide) as caught:
        proxmox.configure("pve1", 100, changes={"cores": "zero", "name": "a_b"}, delete=[], digest=None)
    assert "Parameter verification failed." in caught.value.why
    assert "cores: type check ('integer') failed" in caught.value.why
    assert "name: invalid format" in caught.value.why


def test_a_missing_right_is_told_in_proxmoxs_words(proxmox: Proxmox, place: Place) -> None:
    place.pve.grant(TOKEN_ID, "/vms/9000", "VM.Audit")

    with pytest.raises(OtherSide, match=r"VM\.Clone") as caught:
        clone(proxmox)
    assert "to the user and to the token" in caught.value.next_step


def test_a_refused_token_is_named_and_its_secret_is_not(place: Place) -> None:
    place.pve.apitokens[TOKEN_ID] = "another"

    with (
        Proxmox(url=place.pve.url, token=Token("muster@pve", "t", SECRET), ca_file=place.ca_file) as proxmox,
        pytest.raises(OtherSide, match="muster@pve!t") as caught,
    ):
        proxmox.hosts()

    assert SECRET not in repr(caught.value) + caught.value.why + caught.value.next_step
    assert caught.value.__context__ is None
    assert SECRET not in repr(Token("muster@pve", "t", SECRET))


def test_a_task_is_followed_by_its_upid(proxmox: Proxmox) -> None:
    upid = clone(proxmox)

    status = proxmox.task(upid)
    assert status is not None
    assert status.outcome == "OK"
    assert proxmox.task_log(upid)[-1] == "TASK OK"
    assert proxmox.task("UPID:pve1:00000154:00016BDF:6B0D3B3D:resize:999:root@pam:") is None
    assert proxmox.newest_task("pve1", vmid=9000, kind="qmclone") == upid
    assert proxmox.newest_task("pve1", vmid=9000, kind="qmstart") is None


@pytest.mark.parametrize("lines", [3, 50, 51, 180])
def test_the_end_of_a_long_log_is_read(proxmox: Proxmox, place: Place, lines: int) -> None:
    upid = clone(proxmox)
    place.pve.tasks[upid]["log"] = [f"line {number}" for number in range(1, lines + 1)]

    assert proxmox.task_log(upid) == tuple(
        f"line {number}" for number in range(max(1, lines - 19), lines + 1)
    )


@pytest.mark.parametrize(
    "words",
    [
        "QEMU guest agent is not running",
        "VM 9000 is not running",
        "VM 9000 qmp command 'guest-ping' failed - got timeout",
    ],
)
def test_an_agent_that_does_not_answer_is_none(proxmox: Proxmox, place: Place, words: str) -> None:
    place.pve.fail("GET", "/agent/network-get-interfaces", 500, words)

    assert proxmox.interfaces("pve1", 9000) is None


def test_an_agent_that_is_not_configured_is_an_error(proxmox: Proxmox, place: Place) -> None:
    place.pve.fail("GET", "/agent/network-get-interfaces", 500, "No QEMU guest agent configured")

    with pytest.raises(OtherSide, match="No QEMU guest agent configured"):
        proxmox.interfaces("pve1", 9000)


def test_an_absent_file_is_none(proxmox: Proxmox, place: Place) -> None:
    words = "Agent error: failed to open file '/etc/machine-id' (mode: 'r'): No such file or directory"
    place.pve.fail("GET", "/agent/file-read", 500, words)

    assert proxmox.read_file("pve1", 9000, "/etc/machine-id") is None


def test_an_agent_that_falls_silent_is_not_an_absent_file(proxmox: Proxmox, place: Place) -> None:
    place.pve.fail("GET", "/agent/file-read", 500, "QEMU guest agent is not running")

    with pytest.raises(Unreachable, match="agent is not running"):
        proxmox.read_file("pve1", 9000, "/etc/machine-id")


def test_a_file_that_is_not_listed_is_refused_before_any_request(proxmox: Proxmox, place: Place) -> None:
    with pytest.raises(Refused):
        proxmox.read_file("pve1", 9000, "/etc/shadow")

    assert place.requests == []


def test_no_level_of_logging_makes_proxmoxer_show_what_is_sent(
    proxmox: Proxmox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("proxmoxer", "proxmoxer.core", "proxmoxer.backends.https"):
        logging.getLogger(name).setLevel(logging.DEBUG)

    clone(proxmox)
    proxmox.configure("pve1", 100, changes={"cipassword": "hush"}, delete=[], digest=None)

    assert "hush" not in caplog.text
    assert SECRET not in caplog.text
    assert "gpu-01" not in caplog.text


def _url_of(bound: socket.socket) -> str:
    bound.bind(("127.0.0.1", 0))
    return f"https://127.0.0.1:{bound.getsockname()[1]}"


def test_nobody_at_the_address_is_out_of_reach(place: Place) -> None:
    with (
        socket.socket() as bound,  # nobody else gets its port, and nobody listens on it
        Proxmox(url=_url_of(bound), token=Token("a@pve", "b", "c"), ca_file=place.ca_file) as proxmox,
        pytest.raises(Unreachable, match="Connection refused"),
    ):
        clone(proxmox)


def test_a_missing_ca_file_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no CA file"):
        Proxmox(url="https://127.0.0.1:1", token=Token("a@pve", "b", "c"), ca_file=tmp_path / "ca.pem")


def test_the_environment_cannot_switch_verification_off(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(place.ca_file))
    monkeypatch.setenv("CURL_CA_BUNDLE", "")
    other = Path(DEFAULT_CA_BUNDLE_PATH)

    with (
        Proxmox(url=place.pve.url, token=Token("a@pve", "b", "c"), ca_file=other) as proxmox,
        pytest.raises(OtherSide, match="not trusted") as caught,
    ):
        proxmox.hosts()
    assert "it presents a certificate with SHA-256 " in caught.value.why
    assert place.requests == []


def test_a_token_file_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "pve.token"
    file.write_text(f"{TOKEN_ID}={SECRET}\n")
    file.chmod(0o644)

    token, warnings = read_token(file)

    assert (token.id, token.secret) == (TOKEN_ID, SECRET)
    assert "chmod 600" in warnings[0]
    file.chmod(0o600)
    assert read_token(file)[1] == []
