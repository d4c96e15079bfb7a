"""The checks of a node: each verdict has a machine that earns it, made of files below a root of the test's own."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from verify.events import Check, read
from verify.probe.tls import Identity
from verify.probe.verdicts import FAILED, NOT_JUDGED, PASSED, check, status

from .hosts import SYSTEM, UUID, Host
from .identities import Authority, identity, leaf_of, revocation_list

OTHER = "99999999-2222-3333-4444-555555555555"
DAY = dt.timedelta(days=1)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


# -- which verdicts fail a node --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ((), PASSED),
        ((("pass", True), ("info", True), ("warning", True), ("unknown", False)), PASSED),
        ((("unknown", True), ("pass", True)), NOT_JUDGED),
        ((("unknown", True), ("critical", False)), FAILED),
    ],
    ids=["none", "nothing bad", "essential unknown", "critical"],
)
def test_a_critical_check_fails_and_an_essential_unknown_one_cannot_be_judged(
    verdicts: tuple[tuple[str, bool], ...], code: int
) -> None:
    checks = [
        check("x", verdict, expected="", found="", why="", essential=essential)
        for verdict, essential in verdicts
    ]

    assert status(checks) == code


def test_a_check_that_is_well_advises_nothing() -> None:
    well = check("x", "pass", expected="", found="", why="", advice="do it")
    bad = check("x", "warning", expected="", found="", why="", advice="do it")

    assert (well["next"], bad["next"]) == (None, "do it")


def test_whatever_a_check_says_is_an_event_that_the_other_side_takes() -> None:
    said = check("x\udc80" * 500, "critical", expected="e" * 5000, found="\ud800", why="", advice="a" * 5000)

    assert isinstance(read(json.dumps({"event": "check", **said}).encode()), Check)


def test_a_sound_machine_passes_every_check_that_needs_no_hardware(host: Host, good: Identity) -> None:
    seen = host.look(good, fabrics=[])

    assert seen.status == PASSED
    for name in (
        "identity",
        "certificate-chain",
        "key-matches",
        "key-file",
        "expiry",
        "machine-uuid",
        "clock",
    ):
        assert seen.verdict(name) == "pass", seen.found(name)
    assert all(each["why"] and each["expected"] for each in seen.checks.values())
    assert seen.missing == [
        *("fabrics (none declared)", "GPUs (none here, none asked)", "inference engine", "between nodes")
    ]


# -- identity --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "life", "verdict"),
    [
        (20.0, 30.0, "pass"),
        (9.0, 30.0, "warning"),
        (2.9, 30.0, "critical"),
        (-1.0, 30.0, "critical"),
        (0.9, 1.0, "pass"),
        (0.2, 1.0, "warning"),
        (0.05, 1.0, "critical"),
    ],
)
def test_a_certificate_near_its_end_is_told(
    host: Host, lab: Authority, tmp_path: Path, left: float, life: float, verdict: str
) -> None:
    now = dt.datetime.now(dt.UTC)
    made = identity(tmp_path / "id", by=lab, begins=now - (life - left) * DAY, ends=now + left * DAY)

    assert host.look(made).verdict("expiry") == verdict


def test_a_key_of_another_certificate_is_critical(host: Host, lab: Authority, tmp_path: Path) -> None:
    seen = host.look(identity(tmp_path / "id", by=lab, other_key=True))

    assert (seen.verdict("key-matches"), seen.verdict("identity"), seen.status) == (
        "critical",
        "critical",
        FAILED,
    )


@pytest.mark.parametrize(("mode", "verdict"), [(0o600, "pass"), (0o640, "warning"), (0o644, "critical")])
def test_the_mode_of_the_key_is_judged(
    host: Host, lab: Authority, tmp_path: Path, mode: int, verdict: str
) -> None:
    assert host.look(identity(tmp_path / "id", by=lab, mode=mode)).verdict("key-file") == verdict


def test_a_key_that_others_can_replace_is_critical(host: Host, lab: Authority, tmp_path: Path) -> None:
    made = identity(tmp_path / "id", by=lab)
    (tmp_path / "id").chmod(0o777)

    assert host.look(made).verdict("key-file") == "critical"


def test_a_revocation_list_is_read_by_the_nodes_openssl(host: Host, lab: Authority, tmp_path: Path) -> None:
    made, other = identity(tmp_path / "id", by=lab), identity(tmp_path / "other", by=lab)
    listed = tmp_path / "crl.pem"
    absent = host.look(made._replace(crl_file=str(listed)))
    listed.write_bytes(revocation_list(lab, revoked=leaf_of(other)))
    fine = host.look(made._replace(crl_file=str(listed)))
    listed.write_bytes(revocation_list(lab, revoked=leaf_of(made)))
    revoked = host.look(made._replace(crl_file=str(listed)))
    listed.write_text("nothing\n")
    empty = host.look(made._replace(crl_file=str(listed)))

    assert host.look(made).verdict("revocation-list") == "info"
    assert absent.verdict("revocation-list") == "warning"
    assert (fine.verdict("revocation-list"), fine.found("revocation-list")[:12]) == ("pass", "1.0 days old")
    assert revoked.verdict("revocation-list") == "critical"
    assert f"serial {leaf_of(made).serial_number:x} is on it" in revoked.found("revocation-list")
    assert empty.verdict("revocation-list") == "critical"


def test_a_list_whose_next_update_has_passed_is_critical(host: Host, lab: Authority, tmp_path: Path) -> None:
    made = identity(tmp_path / "id", by=lab)
    listed = tmp_path / "crl.pem"
    listed.write_bytes(revocation_list(lab, revoked=leaf_of(identity(tmp_path / "other", by=lab))))
    host.tool(
        "openssl",
        f"[ $1 = crl ] && exec {SYSTEM.split(':')[3]}/openssl \"$@\" | sed 's/Next Update: .*/{PAST}/'",
    )
    seen = host.look(made._replace(crl_file=str(listed)))

    assert seen.verdict("revocation-list") == "critical"
    assert "its next update was due" in seen.found("revocation-list")


PAST = "Next Update: Jan  1 00:00:00 2020 GMT"


@pytest.mark.parametrize(
    ("about", "verdict"),
    [
        ({}, "pass"),
        ({"machine_uuid": UUID}, "pass"),
        ({"machine_uuid": OTHER}, "critical"),
        ({"certified_uuid": OTHER}, "critical"),
        ({"installed_uuid": OTHER}, "critical"),
        ({"certified_uuid": None}, "unknown"),
    ],
    ids=["same", "read by the login", "cloned", "another's receipt", "restored", "nobody knows"],
)
def test_an_identity_on_another_machine_than_the_certified_one_is_critical(
    host: Host, good: Identity, about: dict[str, Any], verdict: str
) -> None:
    assert host.look(good, **about).verdict("machine-uuid") == verdict


def test_what_onboarding_noted_beside_the_key_counts_where_no_receipt_is_at_hand(
    host: Host, lab: Authority, tmp_path: Path
) -> None:
    made = identity(tmp_path / "id", by=lab)
    (tmp_path / "id" / "uuid").write_text(f"{OTHER}\n")

    assert host.look(made, certified_uuid=None).verdict("machine-uuid") == "critical"


# -- the machine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ahead_s", "verdict"), [(0.0, "pass"), (-4.0, "pass"), (30.0, "warning"), (-90.0, "critical")]
)
def test_a_clock_that_differs_from_the_controllers_is_told(
    host: Host, good: Identity, ahead_s: float, verdict: str
) -> None:
    seen = host.look(good, ahead_s=ahead_s)

    assert seen.verdict("clock") == verdict
    assert ("behind" if ahead_s < 0 else "ahead") in seen.found("clock")


@pytest.mark.parametrize(
    ("script", "verdict"), [("echo yes", "pass"), ("echo no", "warning"), ("exit 1", "unknown")]
)
def test_whether_the_clock_is_kept_is_asked(host: Host, good: Identity, script: str, verdict: str) -> None:
    host.tool("timedatectl", script)

    assert host.look(good).verdict("clock-kept") == verdict


@pytest.mark.parametrize(
    ("words", "settings", "verdict"),
    [
        ("/usr/sbin/qemu-ga", "", "warning"),
        ("/usr/sbin/qemu-ga", "[general]\nblock-rpcs = guest-file-open,guest-file-read,guest-exec\n", "pass"),
        ("/usr/sbin/qemu-ga", "[general]\nblacklist=guest-file-open,guest-exec,guest-file-read\n", "pass"),
        ("/usr/sbin/qemu-ga", "#block-rpcs = guest-file-open,guest-file-read,guest-exec\n", "warning"),
        ("/usr/sbin/qemu-ga", "block-rpcs = guest-file-write\n", "warning"),
        ("/usr/sbin/qemu-ga", "allow-rpcs = guest-ping,guest-network-get-interfaces\n", "pass"),
        ("/usr/sbin/qemu-ga", "allow-rpcs = guest-ping,guest-file-read\n", "warning"),
        ("qemu-ga\0--block-rpcs=guest-file-open,guest-file-read,guest-exec", "", "pass"),
        ("qemu-ga\0-b\0guest-file-open,guest-file-read,guest-exec\0-v", "", "pass"),
    ],
)
def test_a_guest_agent_that_can_read_files_is_a_warning(
    host: Host, good: Identity, words: str, settings: str, verdict: str
) -> None:
    host.file("/proc/77/comm", "qemu-ga\n")
    host.file("/proc/77/cmdline", words)
    host.file("/etc/qemu/qemu-ga.conf", settings)
    seen = host.look(good)

    assert seen.verdict("guest-agent") == verdict, seen.found("guest-agent")
    assert (seen.checks["guest-agent"]["next"] or "block-rpcs").startswith("block-rpcs")


def test_limits_that_engines_run_into_are_told(host: Host, good: Identity) -> None:
    host.file(
        "/proc/self/limits", "Max open files            1024                 4096                 files\n"
    )
    seen = host.look(good, hugepages=32)

    assert (seen.verdict("open-files"), seen.found("open-files")) == ("warning", "1024, at most 4096")
    assert (seen.verdict("shared-memory"), seen.verdict("huge-pages")) == ("warning", "critical")
    assert seen.found("numa-nodes") == "1"


def test_ports_that_are_taken_are_listed_but_for_loopback_ones(host: Host, good: Identity) -> None:
    rows = "0: 0100007F:1F90 00000000:0000 0A\n1: 00000000:0016 00000000:0000 0A\n2: 0A00000A:2328 0B00000A:0016 01\n"
    host.file("/proc/net/tcp", f"  sl  local_address rem_address   st\n{rows}")

    assert host.look(good).found("listening-ports") == "taken: 22"


def test_an_agent_file_that_is_wrong_or_unread_is_no_pass(host: Host, good: Identity) -> None:
    wrong, unread = host.look(good, config_fault="agent.yaml:2:1"), host.look(good, config_unread="no answer")

    assert (wrong.verdict("agent-config"), wrong.status) == ("critical", FAILED)
    assert (unread.verdict("agent-config"), unread.status) == ("unknown", NOT_JUDGED)
